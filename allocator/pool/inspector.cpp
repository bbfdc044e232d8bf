#include "allocator/pool/inspector.h"

#include <algorithm>
#include <new>

#include "allocator/base/rounding.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/report/laboratory_hook.h"

namespace poolgrad {

Statistics Inspector::statistics() const {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  Statistics statistics = context_.accounts;
  survey(statistics);
  statistics.bookkeeping_bytes = arenas_.bookkeeping_bytes() + tracker_.bookkeeping_bytes() +
                                 caches_.bookkeeping_bytes() + trimmer_.bookkeeping_bytes() + plan_.bookkeeping_bytes();
  plan_.count(statistics);
  return statistics;
}

void Inspector::survey(Statistics& statistics) const {
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
      std::uintptr_t run = 0;  // start of the current run of cached blocks; 0: none
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        const BlockState state = block->state;
        const bool hole = state == BlockState::uncommitted;
        if (!hole && (block->previous == nullptr || block->previous->state == BlockState::uncommitted)) {
          ++statistics.segments;
        }
        if (plan_.is_slab(block)) {
          for (const Block& piece : plan_.pieces_of(block)) {
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
        if (((block->address | block->end()) & (context_.settings.page - 1)) != 0) ++statistics.inactive_split;
        if (run == 0) run = block->address;
        const bool run_ends = block->next == nullptr ||
                              (block->next->state != BlockState::free && block->next->state != BlockState::magazine);
        if (!run_ends) continue;
        statistics.largest_free_bytes = std::max<std::uint64_t>(statistics.largest_free_bytes, block->end() - run);
        const std::uintptr_t begin = round_up(run, context_.settings.page);
        const std::uintptr_t end = round_down(block->end(), context_.settings.page);
        if (end > begin) releasable += end - begin;
      }
    }
  }
  statistics.inactive_split_bytes = statistics.cached_bytes() - releasable;
}

void Inspector::reset_peaks() {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  context_.accounts.reset_peaks();
}

std::uint64_t Inspector::active_bytes() const {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  return context_.accounts.active_bytes.current;
}

std::uint64_t Inspector::sequence_hash() const {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  return caches_.sequence_hash();
}

void Inspector::reset_sequence_hash() {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  caches_.reset_sequence_hash();
}

std::vector<BlockSnapshot> Inspector::snapshot() const {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  return all_blocks(false);
}

std::vector<BlockSnapshot> Inspector::all_blocks(bool number_scratch) const {
  std::vector<BlockSnapshot> blocks;
  std::size_t number = 0;
  for (const Arena& arena : arenas_) {
    for (const auto& window : arena.windows()) {
      const auto add = [&](const Block& block) {
        BlockSnapshot entry{block.address, block.size, block.state, block.stream, 0, number, 0, 0, {}};
        if (entry.state == BlockState::live || entry.state == BlockState::pending) {
          const bool scratch = (block.number & RequestSequence::scratch_bit) != 0;
          entry.number = scratch && !number_scratch ? 0 : block.number;
          entry.requested = block.requested;
          entry.tag = block.tag;
        }
        if (entry.state == BlockState::free || entry.state == BlockState::pending) entry.epoch = block.epoch;
        blocks.push_back(entry);
      };
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (!plan_.is_slab(block)) {
          add(*block);
        } else {
          for (const Block& piece : plan_.pieces_of(block)) add(piece);
        }
      }
      ++number;
    }
  }
  return blocks;
}

void Inspector::start_trace(std::size_t events) {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  const auto refusal = [&] {
    return OutOfMemoryError("[start_trace] the machine has no memory for rings of " + std::to_string(events) +
                            " events, " + format_bytes(events * sizeof(TraceEvent)) + " for each thread");
  };
  try {
    context_.recorder.start(events);
  } catch (const std::bad_alloc&) {
    throw refusal();
  }
  try {
    caches_.start_recording();
  } catch (const std::bad_alloc&) {
    caches_.stop_recording();
    context_.recorder.stop({});
    throw refusal();
  }
}

void Inspector::stop_trace() {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  caches_.stop_recording();
  context_.recorder.stop(all_blocks(true));
}

bool Inspector::tracing() const {
  const PoolLock lock(context_.mutex);
  return context_.recorder.running();
}

Trace Inspector::trace() const {
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  Trace trace = context_.recorder.collect(caches_.rings(), all_blocks(true));
  trace.device = context_.settings.device;
  trace.settings = context_.settings.config.text();
  return trace;
}

std::vector<std::string> Inspector::advice(const AllocationAttempt& attempt) const {
  // Replays take about as long as the recorded history, and the caller is waiting.
  constexpr std::size_t most_events = std::size_t{1} << 18;
  if (laboratory_hook == nullptr || !tracing()) return {};
  const Trace history = trace();
  if (history.events.size() > most_events) return {};
  AllocatorConfig config = context_.settings.config;
  {
    const PoolLock lock(context_.mutex);
    config.budget = pages_.budget();
  }
  return laboratory_hook(
      history, config, context_.memory->info().total,
      {.bytes = attempt.requested, .alignment = attempt.alignment, .stream = attempt.stream, .tag = attempt.tag});
}

std::string Inspector::report(const AllocationAttempt& attempt, std::vector<ReclaimResult> yields) {
  OomFacts facts;
  facts.device = context_.settings.device;
  facts.requested = attempt.requested;
  facts.rounded = attempt.size;
  facts.tag = attempt.tag;
  {
    PoolLock lock(context_.mutex);
    UnlockedCall call(lock);
    facts.device_free = call([&] { return context_.memory->info().free; });
  }
  {
    const PoolLock lock(context_.mutex);
    const StopTheWorld stopped(caches_);
    ++context_.accounts.num_ooms;
    facts.budget = pages_.budget();
    facts.reserved = context_.accounts.reserved_bytes.current;
    facts.pending = tracker_.pending_bytes();
    facts.missing_pages = pages_.page_deficit(attempt);
    std::size_t free = 0;
    for (const Arena& arena : arenas_) {
      free += arena.free_bytes();
      facts.releasable += arena.releasable_bytes();
      facts.largest_free = std::max(facts.largest_free, arena.largest_free());
      arena.for_each_live([&](const Block& block) {
        facts.live += block.requested;
        facts.rounding += block.size - block.requested;
        facts.live_by_category[static_cast<std::size_t>(block.tag.category)] += block.requested;
        facts.live_by_scope[block.tag.scope] += block.requested;
      });
      for (const auto& [block, bytes] : arena.pinners()) facts.pinners.push_back({block->tag, block->requested, bytes});
    }
    facts.stranded = free - facts.releasable;
  }
  facts.yields = std::move(yields);
  facts.remarks = attempt.remarks;
  if (const std::source_location at = CallSite::of(attempt.location); at.line() != 0)
    facts.requester = function_name(at.function_name()) + " at " + at.file_name() + ":" + std::to_string(at.line());
  facts.advice = advice(attempt);
  context_.recorder.record({.address = facts.device_free,
                            .size = attempt.requested,
                            .scope = attempt.tag.scope,
                            .stream = context_.recorder.stream_index(attempt.stream.id),
                            .kind = TraceKind::out_of_memory,
                            .category = attempt.tag.category});
  return oom_report(facts);
}

}  // namespace poolgrad
