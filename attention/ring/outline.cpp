#include "attention/ring/outline.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "allocator/error.h"

namespace poolgrad::attention {

namespace {

double sum_of(const std::vector<double>& pairs) { return std::accumulate(pairs.begin(), pairs.end(), 0.0); }

RingPlan plan_of(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t tokens) {
  if (ranks < 1 || tokens < ranks || tokens % ranks != 0)
    throw ValueError(fmt::format("[RingCostModel] {} tokens do not divide among {} ranks", tokens, ranks));
  return {pattern, layout, ranks, heads, tokens, tokens, 0};
}

std::int64_t elements(const RingShare& s, std::int64_t heads, std::int64_t width) {
  return s.batch * s.tokens * heads * width;
}

}  // namespace

std::int64_t RingShare::key_bytes() const {
  return ring_message_bytes(batch, tokens, kv_heads, width, value_width, dtype);
}
std::int64_t RingShare::gradient_bytes() const {
  return ring_message_bytes(batch, tokens, kv_heads, width, value_width, compute_dtype(dtype));
}

RingCostModel::RingCostModel(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t tokens)
    : plan_(plan_of(pattern, layout, ranks, heads, tokens)) {
  for (const int step : plan_.visited()) {
    std::vector<double> most(plan_.passes(), 0.0);
    for (int rank = 0; rank < ranks; ++rank) {
      if (!plan_.computes(rank, step)) continue;
      std::vector<double> pairs;
      for (const kernels::AttentionSchedule& pass : plan_.compile(rank, step).passes)
        pairs.push_back(pass.count_pairs());
      if (sum_of(pairs) > sum_of(most)) most = std::move(pairs);
    }
    most_pairs_.push_back(std::move(most));
  }
}

std::vector<RingSend> RingCostModel::sends(int rank, const RingShare& share, Exchange exchange, bool backward) const {
  const std::int64_t keys = share.key_bytes(), gradients = share.gradient_bytes();
  const std::vector<int>& visited = plan_.visited();
  const int ranks = plan_.ranks();
  std::vector<RingSend> sends;
  if (visited.size() < 2) return sends;
  const auto next = [&](std::size_t phase) { return phase + 1 < visited.size() ? visited[phase + 1] : ranks; };
  if (exchange == Exchange::ring) {
    for (std::size_t phase = 0; phase < visited.size(); ++phase) {
      const int distance = next(phase) - visited[phase];
      if (phase + 1 < visited.size()) sends.push_back({distance, keys});
      if (backward) sends.push_back({distance, gradients});
    }
    return sends;
  }
  for (std::size_t phase = 1; phase < visited.size(); ++phase)
    sends.push_back({visited[phase], plan_.computes((rank + visited[phase]) % ranks, visited[phase]) ? keys : 0});
  for (std::size_t phase = 1; backward && phase < visited.size(); ++phase)
    sends.push_back({ranks - visited[phase], plan_.computes(rank, visited[phase]) ? gradients : 0});
  return sends;
}

RingMemory RingCostModel::memory(const RingShare& share, Exchange exchange) const {
  const auto element = static_cast<std::int64_t>(size_of(share.dtype));
  const auto compute = static_cast<std::int64_t>(size_of(compute_dtype(share.dtype)));
  const std::int64_t q = elements(share, share.heads, share.width), k = elements(share, share.kv_heads, share.width);
  const std::int64_t v = elements(share, share.kv_heads, share.value_width);
  const std::int64_t out = elements(share, share.heads, share.value_width), lse = elements(share, share.heads, 1);
  const std::size_t steps = plan_.visited().size();
  const bool travels = steps > 1, several = steps * plan_.passes() > 1, narrow = element != compute;
  const auto slots = static_cast<std::int64_t>(exchange == Exchange::ring ? 2 : steps);
  RingMemory memory;
  memory.forward_slots = travels ? slots * share.key_bytes() : 0;
  memory.backward_slots =
      memory.forward_slots + (travels ? (exchange == Exchange::ring ? 2 : 3) * share.gradient_bytes() : 0);
  const std::int64_t kept = element * (q + k + v + out) + compute * lse;
  memory.forward = kept + memory.forward_slots + (several && narrow ? compute * out : 0);
  const std::int64_t sums = several && narrow ? compute * (q + (travels ? 0 : k + v)) : 0;
  // The gradients of the results and of q, k and v, and delta.
  memory.backward = kept + memory.backward_slots + element * (out + q + k + v) + compute * lse + sums;
  return memory;
}

}  // namespace poolgrad::attention
