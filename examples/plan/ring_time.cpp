#include "examples/plan/ring_time.h"

#include <algorithm>

namespace poolgrad::examples {

namespace {

using attention::Exchange;
using attention::RingCostModel;
using attention::RingShare;

/// The clock of a rank through the phases, in nanoseconds.
class RankClock {
 public:
  RankClock(const RingCostModel& ring, const RingShare& share, Exchange exchange, const Cluster& cluster)
      : ring_(ring),
        share_(share),
        cluster_(cluster),
        gathers_(exchange == Exchange::all_gather),
        travels_(ring.plan().visited().size() > 1),
        several_(ring.plan().visited().size() * ring.plan().passes() > 1) {
    const auto view = [&](std::int64_t heads, std::int64_t width, DType dtype) {
      return View{&share_storage_, dtype, 4, {share.batch, share.tokens, heads, width}, {}};
    };
    const DType compute = compute_dtype(share.dtype);
    q_ = view(share.heads, share.width, share.dtype), out_ = view(share.heads, share.value_width, share.dtype);
    k_ = view(share.kv_heads, share.width, share.dtype), v_ = view(share.kv_heads, share.value_width, share.dtype);
    lse_ = view(share.heads, 1, compute);
    carry_ = view(share.heads, share.value_width, several_ ? compute : share.dtype);
    dq_ = view(share.heads, share.width, several_ ? compute : share.dtype);
    dk_ = view(share.kv_heads, share.width, several_ ? compute : share.dtype);
    dv_ = view(share.kv_heads, share.value_width, several_ ? compute : share.dtype);
  }

  PassTime forward() {
    for (std::size_t phase = 0; phase < phases(); ++phase) {
      meet(phase);
      const std::vector<double>& pairs = ring_.most_pairs(phase);
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        const bool first = phase == 0 && i == 0, last = phase + 1 == phases() && i + 1 == pairs.size();
        kernels::Cost cost = kernels::traffic(q_, k_, v_, last ? out_ : carry_, lse_);
        if (!first) cost.bytes += kernels::traffic(carry_, lse_).bytes;
        cost.operations = operations(pairs[i], 2.0);
        compute(cost);
      }
    }
    return time();
  }

  PassTime backward() {
    compute(kernels::traffic(out_, out_, lse_));  // shared by the results and their gradient in each row
    for (std::size_t phase = 0; phase < phases(); ++phase) {
      meet(phase);
      const std::vector<double>& pairs = ring_.most_pairs(phase);
      const kernels::Cost read = kernels::traffic(q_, k_, v_, lse_, lse_, out_);
      if (cluster_.overlaps_gradients)  // three of seven products are for the queries
        for (const double n : pairs) compute({read.bytes + kernels::traffic(dq_).bytes, operations(n, 3.0)});
      make_place(phase);
      for (const double n : pairs)
        if (cluster_.overlaps_gradients)
          compute({read.bytes + kernels::traffic(dk_, dv_).bytes, operations(n, 4.0)});
        else
          compute({read.bytes + kernels::traffic(dq_, dk_, dv_).bytes, operations(n, 7.0)});
      if (travels_ && (!gathers_ || phase > 0)) gradients_ = send(share_.gradient_bytes());
    }
    if (travels_) receive_gradients(phases());
    if (dq_.dtype != q_.dtype) compute(kernels::traffic(q_, dq_));
    if (travels_ || dk_.dtype != k_.dtype) compute(kernels::traffic(k_, dk_)), compute(kernels::traffic(v_, dv_));
    return time();
  }

 private:
  std::size_t phases() const { return ring_.plan().visited().size(); }
  double operations(double pairs, double products) const {
    return kernels::attention_operations(pairs, share_.heads, products, q_, v_);
  }
  void compute(const kernels::Cost& cost) {
    const double takes = cluster_.device.nanoseconds(cost);
    now_ += takes, computing_ += takes;
  }
  void wait(double until) { now_ = std::max(now_, until); }
  /// Returns the arrival time of the message.
  double send(std::int64_t bytes) {
    link_free_ = std::max(now_, link_free_) + 1e9 * static_cast<double>(bytes) / cluster_.link.bytes_per_second;
    return link_free_ + 1e9 * cluster_.link.latency;
  }
  PassTime time() const { return {1e-9 * now_, 1e-9 * computing_}; }

  /// As RingKeys::meet().
  void meet(std::size_t phase) {
    if (phase > 0) wait(keys_[gathers_ ? phase - 1 : 0]);
    if (phase == 0 && travels_) compute(kernels::traffic(k_, k_)), compute(kernels::traffic(v_, v_));
    if (!gathers_ && phase + 1 < phases()) keys_.assign(1, send(share_.key_bytes()));
    for (std::size_t later = 1; gathers_ && phase == 0 && later < phases(); ++later)
      keys_.push_back(send(share_.key_bytes()));
  }
  /// As RingGradients::receive() and place().
  void receive_gradients(std::size_t phase) {
    if (phase < (gathers_ ? 2u : 1u)) return;
    wait(gradients_);
    if (gathers_) compute(kernels::traffic(dk_, dk_, dk_)), compute(kernels::traffic(dv_, dv_, dv_));
  }
  void make_place(std::size_t phase) {
    if (!travels_) return;
    receive_gradients(phase);
    if (gathers_ && phase > 0) compute(kernels::traffic(dk_)), compute(kernels::traffic(dv_));
  }

  const RingCostModel& ring_;
  const RingShare& share_;
  const Cluster& cluster_;
  bool gathers_, travels_, several_;
  char share_storage_ = 0;  // shared views are counted
  View q_, k_, v_, out_, lse_, carry_, dq_, dk_, dv_;
  double now_ = 0, computing_ = 0, link_free_ = 0, gradients_ = 0;
  std::vector<double> keys_;
};

}  // namespace

PassTime forward_time(const RingCostModel& ring, const RingShare& share, Exchange exchange, const Cluster& cluster) {
  return RankClock(ring, share, exchange, cluster).forward();
}

PassTime backward_time(const RingCostModel& ring, const RingShare& share, Exchange exchange, const Cluster& cluster) {
  return RankClock(ring, share, exchange, cluster).backward();
}

}  // namespace poolgrad::examples
