// What a climb that failed tells its caller.
#include <algorithm>
#include <map>

#include "allocator/pool.h"

namespace poolgrad {

std::string Pool::report(const Need& need, std::vector<Yield> yields) {
  OomFacts facts;
  facts.device = device_;
  facts.requested = need.requested;
  facts.rounded = need.size;
  facts.tag = need.tag;
  facts.device_free = memory_->info().free;
  {
    const Lock lock(mutex_);
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
      for (const Block* block : arena.live_blocks()) {
        facts.live += block->requested;
        facts.rounding += block->size - block->requested;
        facts.live_by_category[static_cast<std::size_t>(block->tag.category)] += block->size;
        facts.live_by_scope[block->tag.scope] += block->size;
      }
      for (const auto& [block, bytes] : arena.pinners()) {
        facts.pinners.push_back({block->tag, block->requested, bytes});
      }
    }
    facts.stranded = free - facts.releasable;
  }
  facts.yields = std::move(yields);
  record({.address = facts.device_free,
          .size = need.requested,
          .scope = need.tag.scope,
          .kind = TraceKind::out_of_memory,
          .category = need.tag.category});
  return oom_report(facts);
}

}  // namespace poolgrad
