#include "allocator/pool/page_provider.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "allocator/base/address_sanitizer.h"
#include "allocator/base/rounding.h"
#include "allocator/error.h"

namespace poolgrad {

namespace {

// An address space of 2^40 bytes per device holds many windows of this size, and one usually suffices. Larger requests
// get a power of two: otherwise slowly growing requests would need a new window each time.
constexpr std::size_t largest_window = std::size_t{64} << 30;
// Used if the device has too few addresses (ulimit -v), to leave some for others and the program itself.
constexpr std::size_t scarce_window = std::size_t{256} << 20;
// More than any device has, so larger windows are not requested.
constexpr std::size_t most_addresses = std::size_t{1} << 42;
// For less, a release and a commit cost no more than a move.
constexpr std::size_t least_stitched = std::size_t{8} << 20;

// While idle memory is below the larger limit, commits are preferred to moves, which have to wait for streams.
constexpr std::size_t most_idle = std::size_t{64} << 20;
constexpr std::size_t most_idle_share = 32;  // of the reserved bytes

// The cost of a device call does not depend on the bytes, so few large handles are better. Near the budget they are
// small: a later request may need the extra pages, or the rest of a handle that a small block pins.
constexpr std::size_t most_handle = std::size_t{256} << 20;
constexpr std::size_t most_ahead = std::size_t{128} << 20;
constexpr std::size_t most_ahead_share = 64;  // of the reserved bytes
// Handles and extra pages take at most this share of the unused budget. The larger share holds for extra pages of
// long-lived blocks, and for handles until a seventh of the budget is reserved.
constexpr std::size_t near_budget = 512;
constexpr std::size_t far_from_budget = 256;
constexpr std::size_t far_share = 7;  // of the whole budget
// A handle of the long-lived arena takes at most this share of the unused budget: its blocks are rarely freed.
constexpr std::size_t long_lived_share = 64;

}  // namespace

PageProvider::PageProvider(PoolContext& context, Arenas& arenas, StreamTracker& tracker)
    : context_(context), arenas_(arenas), tracker_(tracker), budget_(context.settings.config.budget) {
  if (budget_ == 0) budget_ = context_.memory->info().total;
}

bool PageProvider::add_window(PoolLock& lock, Arena& arena, AllocationAttempt& attempt) {
  const std::size_t slack = attempt.alignment > context_.settings.page ? attempt.alignment : 0;
  if (attempt.size > most_addresses || slack > most_addresses) return false;
  void* address = nullptr;
  std::size_t size = 0;
  UnlockedCall call(lock, [&]() noexcept {
    if (address == nullptr) return;
    UnlockedCall giving_back(lock);
    giving_back([&] { context_.memory->unreserve(address, size); });
  });
  const std::size_t least = round_up(attempt.size + slack, context_.settings.page);
  const auto reserve = [&] {
    call([&] {
      const std::size_t usual =
          std::min(round_up(context_.memory->info().total, context_.settings.page), largest_window);
      const std::size_t wanted = least <= usual ? usual : std::bit_ceil(least);
      size = 0;
      for (const std::size_t window : {wanted, std::min(usual, scarce_window), least}) {
        if (address != nullptr || size == std::max(least, window)) continue;
        size = std::max(least, window);
        address = context_.memory->reserve(size);
      }
    });
    return address != nullptr;
  };
  attempt.addresses_full = !reserve() && !(remove_empty_windows(lock) && reserve());
  if (attempt.addresses_full) {
    std::string text = "the device has no " + format_bytes(least) + " of contiguous addresses left";
    if (std::ranges::find(attempt.remarks, text) == attempt.remarks.end()) attempt.remarks.push_back(std::move(text));
    return false;
  }
  try {
    arena.add_window(reinterpret_cast<std::uintptr_t>(address), size);
  } catch (const std::bad_alloc&) {
    return false;  // too many addresses for the bookkeeping
  }
  call.done();
  return true;
}

bool PageProvider::remove_empty_windows(PoolLock& lock) {
  bool removed = false;
  for (Arena& arena : arenas_) {
    while (const auto window = arena.remove_empty_window()) {
      removed = true;
      UnlockedCall call(lock);
      call([&] { context_.memory->unreserve(reinterpret_cast<void*>(window->first), window->second); });
    }
  }
  return removed;
}

std::size_t PageProvider::page_deficit(const AllocationAttempt& attempt) const {
  const Arena& arena = arenas_.of(attempt.tag);
  const Arena::Growth growth =
      arena.plan_growth(attempt.size, attempt.alignment, attempt.stream.id, context_.settings.page);
  return growth.hole != nullptr ? growth.bytes : round_up(attempt.size, context_.settings.page);
}

std::size_t PageProvider::unused_budget() const {
  return budget_ - std::min<std::size_t>(budget_, context_.claimed_bytes());
}

std::size_t PageProvider::growth_step(const AllocationAttempt& attempt) const {
  const std::size_t reserved = context_.claimed_bytes();
  // Use large pages once they round the reserved bytes up by at most a few percent.
  constexpr std::size_t large_page_share = 16;
  const std::size_t large =
      std::clamp(std::bit_floor(reserved / large_page_share), context_.settings.page, context_.settings.large_page);
  // A transient block that fills its pages shares them with no other, so that they can be released after its free.
  const bool long_lived = is_long_lived(attempt.tag.category);
  const bool alone = !long_lived && arenas_.of(attempt.tag).fills_pages(attempt.size);
  if (alone || context_.settings.config.mode == AllocatorMode::none) return large;
  return std::max(large, std::min({most_ahead, std::bit_floor(reserved / most_ahead_share),
                                   std::bit_floor(unused_budget() / (long_lived ? far_from_budget : near_budget))}));
}

std::size_t PageProvider::largest_handle(const AllocationAttempt& attempt) const {
  const bool far = context_.claimed_bytes() <= budget_ / far_share;
  const std::size_t share =
      is_long_lived(attempt.tag.category) ? long_lived_share : (far ? far_from_budget : near_budget);
  const std::size_t allowed = unused_budget() / share;
  return std::clamp(round_down(allowed, context_.settings.page), context_.settings.page,
                    std::max(context_.settings.page, most_handle));
}

bool PageProvider::commit_handles(std::uintptr_t address, const std::vector<std::size_t>& sizes,
                                  std::size_t& committed) {
  const auto give_back = [&] {
    if (committed != 0) context_.memory->decommit(reinterpret_cast<void*>(address), committed);
  };
  try {
    for (const std::size_t size : sizes) {
      if (!context_.memory->commit(reinterpret_cast<void*>(address + committed), size)) {
        give_back();
        return false;
      }
      committed += size;
    }
  } catch (...) {
    give_back();
    throw;
  }
  return true;
}

std::size_t PageProvider::commit(PoolLock& lock, AllocationAttempt& attempt) {
  Arena& arena = arenas_.of(attempt.tag);
  std::size_t step = growth_step(attempt);
  std::size_t alignment = arena.preferred_alignment(attempt.size, attempt.alignment);
  // Returns false at the minimum.
  const auto ask_for_less = [&] {
    was_short_ = true;
    return std::exchange(step, context_.settings.page) != context_.settings.page ||
           std::exchange(alignment, attempt.alignment) != attempt.alignment;
  };
  const auto refuse = [&] {
    note_refused(attempt);
    return std::size_t{0};
  };
  while (true) {
    // Other threads may have freed memory since the last search. A growth counts only free neighbors that are too
    // small, so it would commit too much. No thread would search again after another one takes a part.
    attempt.block = arena.take(attempt.size, attempt.alignment, attempt.stream.id);
    if (attempt.block != nullptr) return 0;
    const Arena::Growth growth = arena.plan_growth(attempt.size, alignment, attempt.stream.id, step);
    const std::size_t pages = growth.hole != nullptr ? growth.bytes : round_up(attempt.size, context_.settings.page);
    attempt.device_calls_seen = context_.mutex.calls_ended();
    attempt.frees_seen = context_.accounts.allocation.freed;
    if (pages > unused_budget()) {
      if (!ask_for_less()) return refuse();
      continue;
    }
    if (growth.hole == nullptr) {
      if (!add_window(lock, arena, attempt)) return refuse();
      continue;
    }
    if (commit_growth(lock, attempt, arena, growth)) {
      attempt.block = arena.take(attempt.size, attempt.alignment, attempt.stream.id);
      if (attempt.block != nullptr) return pages;
      // Another thread took the neighbors of the new pages meanwhile: grow again.
    } else if (!ask_for_less()) {
      return refuse();
    }
  }
}

bool PageProvider::commit_growth(PoolLock& lock, AllocationAttempt& attempt, Arena& arena,
                                 const Arena::Growth& growth) {
  Block* block = arena.begin_growth(growth, attempt.stream.id);
  context_.asked_bytes += growth.bytes;
  std::size_t given = 0;
  UnlockedCall call(lock, [&]() noexcept {
    context_.asked_bytes -= growth.bytes;
    context_.reserve(given);
    context_.unreserve(given);
    arena.uncommit(block);
  });
  const std::vector<std::size_t> sizes =
      context_.memory->divisible() ? std::vector{growth.bytes} : handle_sizes(growth.bytes, largest_handle(attempt));
  attempt.device_full = true;
  const auto commit_all = [&] { return commit_handles(block->address, sizes, given); };
  if (!call.timed(context_.accounts, sizes.size(), commit_all)) return false;
  call.done();
  attempt.device_full = false;
  context_.asked_bytes -= growth.bytes;
  context_.reserve(growth.bytes);
  ++context_.accounts.num_device_alloc;
  block->window->handles.set(block->address, sizes);
  context_.recorder.record_pages(TraceKind::segment_map, block->address, growth.bytes);
  forbid_access(context_.settings.device, reinterpret_cast<void*>(block->address), growth.bytes);
  start_age(block);
  arena.put(block);
  return true;
}

void PageProvider::start_age(Block* block) noexcept {
  block->epoch = context_.accounts.tick;
  if (!context_.settings.decays) return;
  try {
    block->window->ages.expect(block->end());
  } catch (const std::bad_alloc&) {
    // Then the pages have the block's age.
  }
  block->window->ages.note(block->address, block->end(), block->epoch);
}

// If commits are possible, idle pages are moved only with stitch_idle:on, and only if there are many.
std::size_t PageProvider::stitchable_bytes(const AllocationAttempt& attempt) const {
  const AllocatorConfig& config = context_.settings.config;
  if (!config.stitch || !can_move_ || round_up(attempt.size, context_.settings.page) < least_stitched) return 0;
  // With one more page for an unaligned begin, it suffices for any growth.
  const std::size_t enough = round_up(attempt.size, context_.settings.page) + context_.settings.page;
  const bool can_commit =
      !attempt.device_full && (enough <= unused_budget() || page_deficit(attempt) <= unused_budget());
  if (can_commit && !config.stitch_idle) return 0;
  const std::size_t most = std::max<std::size_t>(most_idle, context_.accounts.reserved_bytes.current / most_idle_share);
  // Counting idle bytes visits all blocks; skip it if there cannot be many.
  if (can_commit && arenas_.free_bytes() <= most) return 0;
  const std::size_t least = can_commit ? most + 1 : 1;
  const std::size_t idle = arenas_.releasable_bytes(least);
  return idle < least ? 0 : idle;
}

std::size_t PageProvider::stitch(PoolLock& lock, AllocationAttempt& attempt) {
  Arena& arena = arenas_.of(attempt.tag);
  // Moves the part of the run that the budget does not allow to commit, and commits the rest afterwards. If all could
  // be committed, moves all it can.
  const std::size_t allowed = attempt.device_full ? 0 : unused_budget() & ~(context_.settings.page - 1);
  std::size_t idle = 0;
  bool all_allowed = false;
  Arena::Growth growth;
  for (const std::size_t alignment : {arena.preferred_alignment(attempt.size, attempt.alignment), attempt.alignment}) {
    growth = arena.plan_growth(attempt.size, alignment, attempt.stream.id, context_.settings.page);
    if (growth.hole == nullptr) return 0;
    all_allowed = allowed >= growth.bytes;
    if (!all_allowed) growth.bytes -= allowed;
    idle = arenas_.releasable_bytes(growth.bytes);
    if (all_allowed) growth.bytes = std::min(growth.bytes, round_down(idle, context_.settings.page));
    if (growth.bytes <= idle) break;
  }
  if (growth.bytes > idle) return 0;
  if (!all_allowed) note_refused(attempt);
  arenas_.store().reserve(3);
  Block* const spare = arenas_.store().make();  // so that the bookkeeping of moved pages cannot fail
  Block* target = arena.begin_growth(growth, attempt.stream.id);
  std::size_t moved = 0;
  Streams refused;
  {
    UnlockedCall call(lock, [&]() noexcept {
      arenas_.store().recycle(spare);
      if (moved == 0) {
        arena.uncommit(target);
        return;
      }
      if (moved < target->size) arena.uncommit(arena.split(target, moved));
      forbid_access(context_.settings.device, reinterpret_cast<void*>(target->address), moved);
      start_age(target);
      arena.put(target);
    });
    while (moved < target->size) {
      const std::uintptr_t to = target->address + moved;
      const std::size_t step = move_handles(lock, to, target->size - moved, target, refused);
      if (step == 0) break;
      moved += step;
    }
  }
  return moved;
}

std::size_t PageProvider::move_handles(PoolLock& lock, std::uintptr_t to, std::size_t bytes, const Block* target,
                                       Streams& refused) {
  for (Arena& arena : arenas_) {
    while (Block* source = arena.take_movable_handles(bytes, target, refused)) {
      UnlockedCall call(lock, [&]() noexcept { arena.put(source); });
      if (!tracker_.finish(lock, {{source->stream, source->ticket}}, refused)) continue;
      const std::size_t size = source->size;
      const bool moved = call.timed(context_.accounts, 1, [&] {
        try {
          return context_.memory->move(reinterpret_cast<void*>(source->address), reinterpret_cast<void*>(to), size);
        } catch (const Error&) {
          return false;  // the device is broken; the next call that can throw will
        }
      });
      if (!moved) {
        can_move_ = false;
        return 0;
      }
      call.done();
      allow_access(context_.settings.device, reinterpret_cast<void*>(source->address), size);
      source->window->handles.move(source->address, target->window->handles, to, size);
      context_.recorder.record_pages(TraceKind::segment_unmap, source->address, size);
      context_.recorder.record_pages(TraceKind::segment_map, to, size);
      arena.uncommit(source);
      return size;
    }
  }
  return 0;
}

}  // namespace poolgrad
