#include <algorithm>

#include "allocator/pool/pool.h"

namespace poolgrad {

Statistics Pool::statistics() const {
  const std::lock_guard lock(mutex_);
  const Standstill standstill(*this);
  Statistics statistics = statistics_;
  survey(statistics);
  statistics.bookkeeping_bytes = bookkeeping_bytes();
  if (planner_ != nullptr) {
    statistics.planned_hits = planner_->hits();
    statistics.plan_divergences = planner_->divergences();
    statistics.plans = planner_->plans();
  }
  return statistics;
}

void Pool::survey(Statistics& statistics) const {
  const auto stream_of = [&](const Block& block) -> StreamStatistics& {
    auto& streams = statistics.streams;
    const std::uint64_t stream = block.stream;
    const auto at = std::ranges::lower_bound(streams, stream, {}, &StreamStatistics::stream);
    if (at != streams.end() && at->stream == stream) return *at;
    return *streams.insert(at, StreamStatistics{.stream = stream});
  };
  std::size_t releasable = 0;
  for (const Arena& arena : arenas_) {
    for (const auto& window : arena.windows()) {
      std::uintptr_t run = 0;  // where the present run of cached blocks starts; 0: there is none
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        const BlockState state = block->state;
        const bool hole = state == BlockState::uncommitted;
        if (!hole && (block->previous == nullptr || block->previous->state == BlockState::uncommitted)) {
          ++statistics.segments;
        }
        if (planner_ != nullptr && planner_->is_slab(block)) {
          for (const Block& piece : pieces_of(block)) {
            (piece.state == BlockState::live ? stream_of(piece).live_bytes : stream_of(piece).cached_bytes) +=
                piece.size;
          }
        }
        if (state == BlockState::live) stream_of(*block).live_bytes += block->size;
        if (state == BlockState::pending) {
          statistics.pending_bytes += block->size;
          stream_of(*block).pending_bytes += block->size;
        }
        if (state != BlockState::free && state != BlockState::magazine) {
          run = 0;
          continue;
        }
        if (state == BlockState::magazine) statistics.magazine_bytes += block->size;
        stream_of(*block).cached_bytes += block->size;
        if (((block->address | block->end()) & (page_ - 1)) != 0) ++statistics.inactive_split;
        if (run == 0) run = block->address;
        const bool run_ends = block->next == nullptr ||
                              (block->next->state != BlockState::free && block->next->state != BlockState::magazine);
        if (!run_ends) continue;
        statistics.largest_free_bytes = std::max<std::uint64_t>(statistics.largest_free_bytes, block->end() - run);
        const std::uintptr_t begin = (run + page_ - 1) & ~(page_ - 1);
        const std::uintptr_t end = block->end() & ~(page_ - 1);
        if (end > begin) releasable += end - begin;
      }
    }
  }
  statistics.inactive_split_bytes = statistics.cached_bytes() - releasable;
}

void Pool::reset_peaks() {
  const std::lock_guard lock(mutex_);
  const Standstill standstill(*this);
  const auto reset = [](Gauge& gauge) { gauge.peak = gauge.current; };
  reset(statistics_.allocation);
  reset(statistics_.allocated_bytes);
  reset(statistics_.requested_bytes);
  reset(statistics_.reserved_bytes);
  reset(statistics_.active_bytes);
  for (Gauge& gauge : statistics_.category_bytes) reset(gauge);
}

std::uint64_t Pool::sequence_hash() const {
  const std::lock_guard lock(mutex_);
  const Standstill standstill(*this);
  // A sum, so it does not matter in which order threads are seen; with one thread, that thread's hash.
  std::uint64_t hash = retired_hash_ + (sequence_.hash() - RequestSequence::start);
  for (const ThreadCache* cache : caches_) hash += cache->sequence.hash() - RequestSequence::start;
  return hash;
}

void Pool::reset_sequence_hash() {
  const std::lock_guard lock(mutex_);
  const Standstill standstill(*this);
  retired_hash_ = RequestSequence::start;
  sequence_.reset_hash();
  for (ThreadCache* cache : caches_) cache->sequence.reset_hash();
}

bool Pool::restart(std::size_t budget) {
  trim(SIZE_MAX);
  const std::lock_guard lock(mutex_);
  const Standstill standstill(*this);
  if (statistics_.active_bytes.current != 0) return false;
  statistics_ = Statistics{};
  tick_ = decay_due_ = decayed_mark_ = 0;
  tick_marks_.clear();
  retired_hash_ = RequestSequence::start;
  sequence_.restart();
  for (ThreadCache* cache : caches_) cache->sequence.restart();
  routine_.forget();
  budget_ = budget;
  return true;
}

}  // namespace poolgrad
