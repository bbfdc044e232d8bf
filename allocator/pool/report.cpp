// What a climb that failed tells its caller.
#include <algorithm>

#include "allocator/pool/pool.h"
#include "allocator/replay/advice.h"

namespace poolgrad {

std::vector<std::string> Pool::advice(const Need& need) const {
  // Replays take about as long as the history took; the caller is waiting.
  constexpr std::size_t most_events = std::size_t{1} << 18;
  if (!tracing()) return {};
  const Trace history = trace();
  if (history.events.size() > most_events) return {};
  AllocatorConfig config = config_;
  config.budget = budget();
  return checked_advice(history, config, memory_->info().total,
                        {.bytes = need.requested, .alignment = need.alignment, .stream = need.stream, .tag = need.tag});
}

std::string Pool::report(const Need& need, std::vector<Yield> yields) {
  OomFacts facts;
  facts.device = device_;
  facts.requested = need.requested;
  facts.rounded = need.size;
  facts.tag = need.tag;
  {
    Lock lock(mutex_);
    DeviceCall call(*this, lock, Nothing{});
    facts.device_free = call([&] { return memory_->info().free; });
  }
  {
    const Lock lock(mutex_);
    const Standstill standstill(*this);
    ++statistics_.num_ooms;
    facts.budget = budget_;
    facts.reserved = statistics_.reserved_bytes.current;
    facts.pending = pending_bytes();
    facts.missing_pages = page_deficit(need);
    std::size_t free = 0;
    for (const Arena& arena : arenas_) {
      free += arena.free_bytes();
      facts.releasable += arena.releasable_bytes();
      facts.largest_free = std::max(facts.largest_free, arena.largest_free());
      arena.for_each_live([&](const Block& block) {
        facts.live += block.requested;
        facts.rounding += block.size - block.requested;
        facts.live_by_category[static_cast<std::size_t>(block.tag.category)] += block.size;
        facts.live_by_scope[block.tag.scope] += block.size;
      });
      for (const auto& [block, bytes] : arena.pinners()) facts.pinners.push_back({block.tag, block.requested, bytes});
    }
    facts.stranded = free - facts.releasable;
  }
  facts.yields = std::move(yields);
  facts.advice = advice(need);
  record({.address = facts.device_free,
          .size = need.requested,
          .scope = need.tag.scope,
          .kind = TraceKind::out_of_memory,
          .category = need.tag.category});
  return oom_report(facts);
}

}  // namespace poolgrad
