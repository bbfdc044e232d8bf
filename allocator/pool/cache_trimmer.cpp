#include "allocator/pool/cache_trimmer.h"

#include <algorithm>

#include "allocator/base/address_sanitizer.h"

namespace poolgrad {

bool CacheTrimmer::join_mixed_handles(PoolLock& lock, Streams& refused) {
  for (Arena& arena : arenas_) {
    while (true) {
      const std::vector<Block*> run = arena.take_mixed_handles(refused);
      if (run.empty()) break;
      UnlockedCall call(lock, [&]() noexcept {
        for (Block* block : run) arena.put(block);
      });
      if (!tracker_.finish(lock, StreamTracker::stamps_of(run), refused)) continue;
      call.done();
      Block* block = arena.join(run);
      block->ticket = 0;  // no work on it is left
      arena.put(block);
      return true;
    }
  }
  return false;
}

bool CacheTrimmer::Candidate::goes_before(const Candidate& a, const Candidate& b) {
  if (a.block->epoch != b.block->epoch) return a.block->epoch < b.block->epoch;
  return a.arena != b.arena ? a.arena < b.arena : a.block->address > b.block->address;
}

std::vector<CacheTrimmer::Candidate> CacheTrimmer::least_recently_used(std::size_t bytes, const Streams& refused) {
  std::vector<Candidate> oldest;  // a heap with the newest on top
  std::size_t held = 0;
  for (Arena& arena : arenas_) {
    const auto consider = [&](Block* block) {
      Candidate candidate{&arena, block, 0};
      if (held >= bytes && !Candidate::goes_before(candidate, oldest.front())) return;
      candidate.bytes = whole_handles(block, block);
      if (candidate.bytes == 0) return;
      held += candidate.bytes;
      oldest.push_back(candidate);
      std::ranges::push_heap(oldest, Candidate::goes_before);
      while (held - oldest.front().bytes >= bytes) {
        held -= oldest.front().bytes;
        std::ranges::pop_heap(oldest, Candidate::goes_before);
        oldest.pop_back();
      }
    };
    arena.for_each_free_page_run(consider, refused);
  }
  std::ranges::make_heap(oldest, Candidate::goes_after);
  return oldest;
}

std::size_t CacheTrimmer::release_pages(PoolLock& lock, Arena& arena, Block* pages, Streams& refused) {
  UnlockedCall call(lock, [&]() noexcept { arena.put(pages); });
  if (!tracker_.finish(lock, {{pages->stream, pages->ticket}}, refused)) return 0;
  call.timed(context_.accounts, 1, [&] {
    allow_access(context_.settings.device, reinterpret_cast<void*>(pages->address), pages->size);
    context_.memory->decommit(reinterpret_cast<void*>(pages->address), pages->size);
  });
  call.done();
  ++context_.accounts.num_device_free;
  context_.unreserve(pages->size);
  context_.recorder.record_pages(TraceKind::segment_unmap, pages->address, pages->size);
  const std::size_t released = pages->size;
  arena.uncommit(pages);
  return released;
}

std::size_t CacheTrimmer::release(PoolLock& lock, std::size_t bytes) {
  std::size_t released = 0;
  Streams refused;  // and therefore skipped
  std::vector<Candidate> oldest;
  std::uint64_t known_changes = 0;
  while (released < bytes) {
    // During the device call, other threads may have taken or freed blocks; refusals also change the list.
    if (oldest.empty() || arenas_.changes() != known_changes) oldest = least_recently_used(bytes - released, refused);
    if (oldest.empty()) {
      if (join_mixed_handles(lock, refused)) continue;
      break;
    }
    std::ranges::pop_heap(oldest, Candidate::goes_after);
    const Candidate first = oldest.back();
    oldest.pop_back();
    Block* const pages = first.arena->take_handles(first.block, bytes - released);
    known_changes = arenas_.changes();
    released += release_pages(lock, *first.arena, pages, refused);
  }
  return released;
}

std::size_t CacheTrimmer::release_for(PoolLock& lock, const AllocationAttempt& attempt) {
  if (attempt.addresses_full) return release(lock, SIZE_MAX);  // some windows may then be empty
  std::size_t released = 0;
  // A release may take a neighbor that the growth counted on, so compute the deficit again each time.
  while (true) {
    const std::size_t pages = pages_.page_deficit(attempt);
    const std::size_t allowed = pages_.unused_budget();
    std::size_t missing = pages > allowed ? pages - allowed : 0;
    if (attempt.device_full && released < pages) missing = std::max(missing, pages - released);
    if (missing == 0) return released;
    const std::size_t step = release(lock, missing);
    if (step == 0) return released;
    released += step;
  }
}

bool CacheTrimmer::decay_is_due() {
  const AllocatorConfig& config = context_.settings.config;
  const std::uint64_t tick = context_.accounts.tick;
  if (config.decay != 0 && tick >= decay_due_) return true;
  if (config.decay_ms == 0) return false;
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds age =  // of which a sixteenth is more than nothing
      std::chrono::milliseconds(std::min<std::size_t>(config.decay_ms, std::size_t{1} << 40));
  const auto far = [&](std::size_t from_end) {
    const std::size_t marks = tick_marks_.size();
    const auto later = from_end == 0 ? now : tick_marks_[marks - from_end].time;
    return marks <= from_end || later - tick_marks_[marks - from_end - 1].time >= age / 16;
  };
  if (far(0) || far(1)) tick_marks_.emplace_back();
  tick_marks_.back() = {now, tick};
  // Only the newest of the old enough marks counts, and once.
  const auto young = std::ranges::find_if(tick_marks_, [&](const TickMark& mark) { return now - mark.time < age; });
  if (young == tick_marks_.begin()) return false;
  decayed_mark_ = std::prev(young)->tick;
  tick_marks_.erase(tick_marks_.begin(), young);
  return true;
}

void CacheTrimmer::release_old(PoolLock& lock) {
  const AllocatorConfig& config = context_.settings.config;
  Streams refused;
  while (true) {
    const std::uint64_t tick = context_.accounts.tick;  // advances during device calls
    const std::uint64_t by_ticks = config.decay != 0 && tick >= config.decay ? tick - config.decay + 1 : 0;
    const std::uint64_t limit = std::max(by_ticks, decayed_mark_ != 0 ? decayed_mark_ + 1 : 0);
    // Blocks freed from now on are younger.
    std::uint64_t oldest = tick;
    Arena* arena = arenas_.begin();
    Block* pages = arena->take_old_handles(limit, oldest, refused);
    if (pages == nullptr) pages = (++arena)->take_old_handles(limit, oldest, refused);
    if (pages == nullptr) {
      // Refused pages are tried again next time.
      if (refused.empty()) decay_due_ = oldest + std::min<std::uint64_t>(config.decay, UINT64_MAX - oldest);
      return;
    }
    release_pages(lock, *arena, pages, refused);
  }
}

void CacheTrimmer::restart() {
  decay_due_ = decayed_mark_ = 0;
  tick_marks_.clear();
}

}  // namespace poolgrad
