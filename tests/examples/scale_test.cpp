// plan --ranks: its times equal those of real rings whose ranks are simulated devices with a link between them.
#include "examples/plan/scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "attention/ring/pass.h"
#include "examples/plan/plan.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using attention::Communicator;
using attention::Exchange;
using attention::Layout;
using attention::Message;
using attention::Pattern;
using attention::RingCostModel;
using attention::RingShare;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::error_of;

/// Messages with sizes but no bytes, between ranks that take turns. A message begins when both of its ends have
/// started, and when its sender's and its receiver's earlier messages are done.
class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(Link link) : link_(link) {}

  struct Post {
    double started;
    std::int64_t bytes;
  };
  struct Rank {
    std::vector<std::pair<int, std::size_t>> out, in;  // in order: the peer, and the message's number in this pair
  };

  void send(int from, int to, Post post) { put(from, to, post, true); }
  void receive(int from, int to, Post post) { put(from, to, post, false); }
  std::size_t last_sent(int from, int to) const { return sends_.at({from, to}).size() - 1; }

  /// Returns when the message has left the sender; both ends must have started.
  double left(int from, int to, std::size_t number) {
    double& known = left_[{{from, to}, number}];
    if (known > 0) return known;
    const Post &out = sends_.at({from, to}).at(number), &in = receives_.at({from, to}).at(number);
    EXPECT_EQ(out.bytes, in.bytes);
    double begin = std::max(out.started, in.started);
    for (const bool sender : {true, false}) {
      const auto& order = sender ? ranks_[from].out : ranks_[to].in;
      const std::pair own{sender ? to : from, number};
      const auto at = std::find(order.begin(), order.end(), own);
      if (at == order.begin()) continue;
      const auto [peer, before] = *(at - 1);
      begin = std::max(begin, sender ? left(from, peer, before) : left(peer, to, before));
    }
    return left_[{{from, to}, number}] = begin + 1e9 * static_cast<double>(out.bytes) / link_.bytes_per_second;
  }
  double arrived(int from, int to, std::size_t number) { return left(from, to, number) + 1e9 * link_.latency; }

 private:
  void put(int from, int to, Post post, bool sends) {
    auto& posts = (sends ? sends_ : receives_)[{from, to}];
    if (sends)
      ranks_[from].out.emplace_back(to, posts.size());
    else
      ranks_[to].in.emplace_back(from, posts.size());
    posts.push_back(post);
  }

  using Pair = std::pair<int, int>;
  Link link_;
  std::map<Pair, std::vector<Post>> sends_, receives_;
  std::map<int, Rank> ranks_;
  std::map<std::pair<Pair, std::size_t>, double> left_;
};

class SimulatedRank : public Communicator {
 public:
  SimulatedRank(SimulatedNetwork& network, int rank, int size, Device device)
      : network_(network), rank_(rank), size_(size), device_(device) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<attention::Transfer> start(Stream, int to, Message out, int from, Message in) override {
    const auto now = static_cast<double>(device_clock(device_));
    network_.send(rank_, to, {now, out.bytes});
    network_.receive(from, rank_, {now, in.bytes});
    const std::size_t number = network_.last_sent(rank_, to);
    return std::make_unique<Exchange>(*this, to, number, from, received_[from]++);
  }

 private:
  class Exchange : public attention::Transfer {
   public:
    Exchange(SimulatedRank& own, int to, std::size_t out, int from, std::size_t in)
        : own_(own), to_(to), from_(from), out_(out), in_(in) {}
    void wait() override {
      const double until =
          std::max(own_.network_.arrived(own_.rank_, to_, out_), own_.network_.arrived(from_, own_.rank_, in_));
      const auto now = static_cast<double>(device_clock(own_.device_));
      if (until > now) advance_clock(own_.device_, static_cast<std::uint64_t>(until - now + 0.5));
    }

   private:
    SimulatedRank& own_;
    int to_, from_;
    std::size_t out_, in_;
  };

  SimulatedNetwork& network_;
  int rank_, size_;
  Device device_;
  std::map<int, std::size_t> received_;
};

struct Seconds {
  double forward = 0, backward = 0;
};

/// Returns the time of the slowest rank of a real ring, whose ranks are simulated devices with their own clocks.
Seconds simulated(const Pattern& pattern, Layout layout, int ranks, const RingShare& share, Exchange exchange,
                  Link link) {
  const attention::RingCall call{
      std::make_shared<const attention::RingPlan>(pattern, layout, ranks, share.heads, ranks * share.tokens,
                                                  ranks * share.tokens, 0),
      exchange,
      {},
      {}};
  std::vector<Device> devices;
  for (int rank = 0; rank < ranks; ++rank) {
    devices.push_back({DeviceType::sim, static_cast<std::uint8_t>(40 + rank)});
    configure_simulated_device(40 + rank, std::size_t{8} << 30, "cpu");
  }
  std::vector<attention::AttendOperands> operands(static_cast<std::size_t>(ranks));
  std::vector<Tensor> gradients;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto some = [&](std::int64_t heads, std::int64_t width) {
      return Tensor::empty({share.batch, share.tokens, heads, width},
                           {share.dtype, devices[static_cast<std::size_t>(rank)]});
    };
    attention::AttendOperands& x = operands[static_cast<std::size_t>(rank)];
    x.q = some(share.heads, share.width), x.k = some(share.kv_heads, share.width);
    x.v = some(share.kv_heads, share.value_width);
    gradients.push_back(some(share.heads, share.value_width));
  }
  std::vector<std::uint64_t> began(devices.size());
  const auto begin = [&] {  // sets all clocks to the same time
    std::uint64_t latest = 0;
    for (const Device device : devices) latest = std::max(latest, device_clock(device));
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      advance_clock(devices[rank], latest - device_clock(devices[rank]));
      began[rank] = latest;
    }
  };
  const auto longest = [&] {
    std::uint64_t most = 0;
    for (std::size_t rank = 0; rank < devices.size(); ++rank)
      most = std::max(most, device_clock(devices[rank]) - began[rank]);
    return 1e-9 * static_cast<double>(most);
  };
  const auto run = [&](auto& passes, SimulatedNetwork& network, const auto& make) {
    begin();
    for (int rank = 0; rank < ranks; ++rank)
      passes.push_back(
          make(static_cast<std::size_t>(rank),
               std::make_shared<SimulatedRank>(network, rank, ranks, devices[static_cast<std::size_t>(rank)])));
    for (int phase = 0; phase < passes[0]->phases(); ++phase)
      for (auto& pass : passes) pass->run(phase);
    return longest();
  };
  Seconds seconds;
  std::vector<std::unique_ptr<attention::RingForward>> forwards;
  SimulatedNetwork there(link), back(link);
  seconds.forward = run(forwards, there, [&](std::size_t rank, const std::shared_ptr<Communicator>& communicator) {
    return std::make_unique<attention::RingForward>(call, operands[rank], communicator);
  });
  std::vector<std::unique_ptr<attention::RingBackward>> backwards;
  seconds.backward = run(backwards, back, [&](std::size_t rank, const std::shared_ptr<Communicator>& communicator) {
    return std::make_unique<attention::RingBackward>(call, operands[rank], forwards[rank]->result(), gradients[rank],
                                                     Tensor(), communicator);
  });
  return seconds;
}

constexpr Link links[] = {{1e12, 1e-7}, {50e9, 5e-6}, {1e9, 1e-4}};  // limited by computing, by both, by the link

Seconds forecast(const Pattern& pattern, Layout layout, int ranks, const RingShare& share, Exchange exchange,
                 Link link) {
  const RingCostModel ring(pattern, layout, ranks, share.heads, ranks * share.tokens);
  const Cluster cluster{{}, link, false};  // no overlap of gradients, as on the CPU
  return {forward_time(ring, share, exchange, cluster).total, backward_time(ring, share, exchange, cluster).total};
}

const RingShare sizes[] = {
    {.batch = 1, .tokens = 1024, .heads = 4, .kv_heads = 4, .width = 64, .value_width = 64, .dtype = DType::bf16},
    {.batch = 2, .tokens = 256, .heads = 4, .kv_heads = 2, .width = 32, .value_width = 16, .dtype = DType::f32}};

TEST(RingTime, EqualsThatOfARealRingOnSimulatedDevices) {
  for (const RingShare& share : sizes)
    for (const Link& link : links)
      for (const int ranks : {1, 2, 3, 8, 16})
        for (const Layout layout : {Layout::contiguous, Layout::zigzag})
          for (const Pattern& pattern : {Pattern::dense(), Pattern::causal()}) {
            const Seconds real = simulated(pattern, layout, ranks, share, Exchange::ring, link);
            const Seconds model = forecast(pattern, layout, ranks, share, Exchange::ring, link);
            const std::string name = pattern.to_string() + ", " + to_string(layout) + ", " + std::to_string(ranks) +
                                     " ranks of " + std::to_string(share.tokens) + ", " +
                                     std::to_string(link.bytes_per_second);
            EXPECT_NEAR(real.forward, model.forward, 1e-3 * model.forward) << name;
            EXPECT_NEAR(real.backward, model.backward, 1e-3 * model.backward) << name;
          }
}

TEST(RingTime, IsNeverBelowThatOfARealRing) {
  const Pattern causal = Pattern::causal();
  for (const Pattern& pattern :
       {causal, Pattern::window(300, 0), Pattern::dilated({256, 2048, 16384}, {1, 2, 4}) & causal,
        Pattern::block_offsets(64, {0, -1, -2, -40}) & causal, Pattern::global_local(64, 256, 64) & causal,
        Pattern::strided(64) & causal})
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
      for (const Exchange exchange : {Exchange::ring, Exchange::all_gather})
        for (const Link& link : links) {
          const Seconds real = simulated(pattern, layout, 8, sizes[0], exchange, link);
          const Seconds model = forecast(pattern, layout, 8, sizes[0], exchange, link);
          const std::string name = pattern.to_string() + ", " + to_string(layout) +
                                   (exchange == Exchange::ring ? "" : ", gathered, ") +
                                   std::to_string(link.bytes_per_second);
          EXPECT_LE(real.forward, 1.001 * model.forward) << name;
          EXPECT_LE(real.backward, 1.001 * model.backward) << name;
          // The model adds up the times of all ranks where each rank computes in only a few of many steps.
          if (exchange == Exchange::ring) {
            EXPECT_GE(real.forward, 0.6 * model.forward) << name;
            EXPECT_GE(real.backward, 0.6 * model.backward) << name;
          }
        }
}

TEST(RingTime, HidesMessagesBehindLongerComputation) {
  const RingShare& share = sizes[0];
  const RingCostModel ring(Pattern::dense(), Layout::contiguous, 8, share.heads, 8 * share.tokens);
  const auto waiting = [&](double bytes_per_second, bool overlaps) {
    const Cluster cluster{{}, {bytes_per_second, 0}, overlaps};
    return std::pair{forward_time(ring, share, Exchange::ring, cluster).waiting(),
                     backward_time(ring, share, Exchange::ring, cluster).waiting()};
  };
  const auto [forward, backward] = waiting(50e9, false);
  EXPECT_EQ(forward, 0.0);
  EXPECT_GT(backward, 0.0);  // the CPU's kernel for both sides first computes the sums of the keys
  EXPECT_LT(waiting(50e9, true).second, backward);
  EXPECT_GT(waiting(1e9, true).first, 0.0);
}

class ScaleTest : public ::testing::Test {
 protected:
  ScaleTest() {
    options_.train.context = 64 * 4096;
    options_.train.layers = 2;
    options_.train.width = 64;
    options_.train.heads = 2;
    options_.train.device = "h200";
    options_.train.attention.attention = "causal";
    options_.ranks = 64;
  }
  Scale scale() {
    std::ostringstream out;
    Progress progress(out, false);
    return make_scale(options_, progress);
  }
  std::string refusal() {
    return error_of<ValueError>([&] { scale(); });
  }
  ScaleOptions options_;
};

TEST_F(ScaleTest, HasARowForEachSplitOfTheWork) {
  const Scale scale = this->scale();
  std::vector<std::string> names;
  for (const ScaleRow& row : scale.rows) names.push_back(row.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("ring, contiguous", "ring, zigzag", "ring, striped", "all-gather, contiguous",
                                     "all-gather, zigzag", "all-gather, striped", "data parallel"));
  const ScaleRow &contiguous = scale.rows[0], &zigzag = scale.rows[1], &gathered = scale.rows[4];
  EXPECT_GT(contiguous.forward.computing, 1.5 * zigzag.forward.computing);  // balanced
  EXPECT_EQ(gathered.memory.forward_slots, 32 * zigzag.memory.forward_slots);
  const ScaleRow& data = scale.rows[6];
  EXPECT_EQ(data.messages, 2 * 63);
  EXPECT_EQ(data.steps, 1u);
  EXPECT_EQ(data.forward.waiting(), 0.0);
  EXPECT_EQ(zigzag.messages, data.messages + 2 * (63 + 63 + 64));
  for (const ScaleRow& row : scale.rows)
    EXPECT_DOUBLE_EQ(row.step_seconds,
                     scale.other_seconds + row.forward.total + row.backward.total + row.reduction.total);
}

TEST_F(ScaleTest, OneRankTakesTheTimeOfTheDryRun) {
  options_.ranks = 1;
  options_.train.context = 2048;
  options_.train.device = "cpu";
  const Scale scale = this->scale();
  TrainOptions train = options_.train;
  EXPECT_NEAR(scale.rows[0].step_seconds, dry_run(train, no_limit, Through::steps).step_seconds,
              1e-6 * scale.rows[0].step_seconds);
  EXPECT_GT(scale.other_seconds, 0.0);
  EXPECT_EQ(scale.rows[0].messages, 0);
}

TEST_F(ScaleTest, AddsUpDifferentLayers) {
  options_.ranks = 8;
  options_.train.context = 8 * 1024;
  const auto rows = [&](const char* layers) {
    options_.train.layers = LayerList(layers);
    return scale().rows;
  };
  const auto window = rows("window:512"), causal = rows("causal+nope+heads:1"),
             both = rows("2*window:512,causal+nope+heads:1");
  for (std::size_t i = 0; i + 1 < both.size(); ++i) {
    EXPECT_DOUBLE_EQ(both[i].forward.total, 2 * window[i].forward.total + causal[i].forward.total) << both[i].name;
    EXPECT_DOUBLE_EQ(both[i].backward.total, 2 * window[i].backward.total + causal[i].backward.total) << both[i].name;
    EXPECT_EQ(both[i].steps, causal[i].steps) << both[i].name;
    EXPECT_EQ(both[i].memory.backward, std::max(window[i].memory.backward, causal[i].memory.backward));
  }
  options_.train.layers = LayerList("window,ring");
  EXPECT_EQ(refusal(), "[plan] --ranks already divides the sequences of every layer: --layers must not list a ring");
}

TEST_F(ScaleTest, FasterDevicesAndLinksTakeLessTime) {
  options_.train.dtype = "bf16";
  const double h200 = scale().rows[1].step_seconds;
  options_.train.device = "a100";
  EXPECT_GT(scale().rows[1].step_seconds, h200);
  options_.train.device = "h200";
  options_.link = "1GB/s,5us";
  EXPECT_GT(scale().rows[1].step_seconds, h200);
}

TEST_F(ScaleTest, ReportsAsTextJsonAndPage) {
  const Scale scale = this->scale();
  EXPECT_THAT(scale_text(scale),
              AllOf(HasSubstr("64 of 4,096 tokens each, 262,144 in all"), HasSubstr("h200: 4.80 TB/s"),
                    HasSubstr("nothing measured"), HasSubstr("data parallel")));
  const Json json = scale_json(scale);
  EXPECT_EQ(json["rows"].size(), 7u);
  EXPECT_EQ(json["rows"][1]["messages"], scale.rows[1].messages);
  EXPECT_TRUE(json["forecast"]);
  EXPECT_THAT(scale_html(scale), AllOf(HasSubstr("<td>ring, zigzag</td>"), HasSubstr("</html>")));
}

TEST_F(ScaleTest, RefusesBadOptionsInOneSentence) {
  options_.ranks = 100;
  EXPECT_EQ(refusal(), "[plan] a context of 262144 tokens does not divide among 100 ranks");
  options_.ranks = 129;
  EXPECT_EQ(refusal(), "[plan] --ranks must be from 1 to 128, but is 129");
  options_.ranks = 64;
  options_.train.device = "abacus";
  EXPECT_EQ(refusal(), "[plan] --device must be one of cpu, a100, h100, h200, rtx4090 with --ranks, but is abacus");
  options_.train.device = "h200";
  for (const char* link :
       {"", "50GB/s", "50GB,5us", "fast/s,5us", "50GB/s,5", "50GB/s,-5us", "0B/s,5us", "50GB/s,5us,"}) {
    options_.link = link;
    EXPECT_EQ(refusal(),
              "[plan] --link must be bytes a second and a latency, such as 50GB/s,5us, but is " + std::string(link));
  }
  options_.link = "50GB/s,5us";
  options_.train.dtype = "f64";
  EXPECT_EQ(refusal(), "[plan] --ranks knows the peaks of devices for f32, f16 and bf16, not f64");
}

TEST(ScaleLink, HasABandwidthAndALatency) {
  const Link link = parse_link("50GB/s,5us");
  EXPECT_EQ(link.bytes_per_second, 50e9);
  EXPECT_DOUBLE_EQ(link.latency, 5e-6);
  EXPECT_DOUBLE_EQ(parse_link("1.5GiB/s,20ns").latency, 20e-9);
  EXPECT_DOUBLE_EQ(parse_link("1.5GiB/s,0.5ms").bytes_per_second, 1.5 * (1 << 30));
}

TEST(ScaleProgram, DefaultsToFixedTokensPerRank) {
  PlanOptions options;
  const char* const line[] = {"plan", "--ranks", "8", "--link", "1GB/s,1us", "--device", "h100"};
  EXPECT_EQ(parse_plan_options(7, line, options), -1);
  EXPECT_EQ(options.train.context, 8 * 4096);
  PlanOptions told;
  const char* const with_context[] = {"plan", "--ranks", "8", "--context", "4096"};
  EXPECT_EQ(parse_plan_options(5, with_context, told), -1);
  EXPECT_EQ(told.train.context, 4096);
  PlanOptions other;
  const char* const with_longest[] = {"plan", "--ranks", "8", "--longest"};
  EXPECT_GT(parse_plan_options(4, with_longest, other), 0);
}

}  // namespace
}  // namespace poolgrad::examples
