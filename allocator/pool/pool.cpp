#include "allocator/pool/pool.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "allocator/base/address_sanitizer.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"

namespace poolgrad {

namespace {

constexpr unsigned char poison_byte = 0xFF;

}  // namespace

Pool::Pool(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config)
    : context_(std::move(memory), config),
      arenas_(context_.settings.granule, context_.settings.page, context_.memory->divisible()),
      tracker_(context_, arenas_,
               [this](std::uint64_t stream, std::uint64_t ticket) { caches_.set_ticket(stream, ticket); }),
      pages_(context_, arenas_, tracker_),
      trimmer_(context_, arenas_, tracker_, pages_),
      caches_(context_, arenas_, tracker_),
      plan_(context_, arenas_, tracker_),
      reclaim_policy_(context_, arenas_, tracker_, caches_, pages_, trimmer_),
      inspector_(context_, arenas_, tracker_, caches_, pages_, trimmer_, plan_) {
  if (config.trace != 0) inspector_.start_trace(config.trace);
  context_.settings.place = ThreadCacheTable::enter(*this);
}

Pool::~Pool() {
  reclaim_policy_.set_callback({});  // it may hold memory of the pool
  ThreadCacheTable::forget(*this);
  {
    PoolLock lock(context_.mutex);
    tracker_.finish_all(lock);
  }
  for (const Arena& arena : arenas_) {
    for (const auto& window : arena.windows()) {
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (block->state != BlockState::uncommitted) {
          // Committed memory starts and ends at pages, but blocks may not: release whole committed stretches.
          const std::uintptr_t begin = block->address;
          while (block->next != nullptr && block->next->state != BlockState::uncommitted) block = block->next;
          allow_access(settings().device, reinterpret_cast<void*>(begin), block->end() - begin);
          memory().decommit(reinterpret_cast<void*>(begin), block->end() - begin);
        }
      }
      memory().unreserve(reinterpret_cast<void*>(window->address), window->size);
    }
  }
}

std::variant<void*, std::string> Pool::allocate(const AllocationRequest& request) {
  AllocationAttempt attempt;
  attempt.requested = request.bytes;
  attempt.alignment = request.alignment;
  attempt.stream = request.stream;
  if (settings().tags) attempt.tag = request.tag;
  attempt.may_reclaim = request.may_reclaim;
  attempt.priority = request.priority;
  attempt.location = request.location;
  if (!std::has_single_bit(attempt.alignment)) {
    throw ValueError("[allocate] alignment must be a power of two, got " + std::to_string(attempt.alignment));
  }
  check_stream("allocate", attempt.stream);
  // Rounding up huge requests would overflow; this size fails on every device.
  constexpr std::size_t most = std::size_t{1} << 60;
  attempt.size = settings().rounded(std::min(request.bytes, most), attempt.alignment);
  attempt.alignment = std::min(attempt.alignment, most);

  ThreadCache* cache = own_cache();
  // Read under the lock: once the block is live, a thread that drops the plan may replace its Block.
  std::uintptr_t address = 0;
  const Found found(*this, attempt);
  const auto hand_over = [&] {
    record_allocation(attempt.block, request, attempt.tag, cache);
    address = std::exchange(attempt.block, nullptr)->address;
  };
  {
    PoolLock lock(context_.mutex);
    caches_.add_up(cache);
    tracker_.revive(attempt.stream);
    ++context_.accounts.requests;
    ++context_.accounts.tick;
    if (settings().tags) caches_.sequence_of(cache).request(request.bytes, attempt.tag.category);
    // Large blocks need merged free neighbors for a good place: on training steps without phases, at most 110 % of
    // the live peak in place of 113 %.
    constexpr std::size_t large = std::size_t{64} << 10;
    if (attempt.size >= large) caches_.drain(cache);
    trimmer_.release_decayed(lock);
    attempt.block = take(attempt, cache);
    if (attempt.block != nullptr) {
      context_.accounts.hit(attempt.tag.category);
      hand_over();
    } else {
      context_.accounts.missed(attempt.tag.category);
    }
  }
  if (address == 0) {
    const auto give_up_plan = [this] {
      const PoolLock lock(context_.mutex);
      return plan_.drop(true);
    };
    std::vector<ReclaimResult> yields = reclaim_policy_.reclaim(attempt);
    if (attempt.block == nullptr && give_up_plan()) yields = reclaim_policy_.reclaim(attempt);
    if (attempt.block == nullptr) return inspector_.report(attempt, std::move(yields));
    const PoolLock lock(context_.mutex);
    caches_.add_up(cache);
    hand_over();
  }
  void* pointer = reinterpret_cast<void*>(address);
  if (settings().poison || settings().races) {
    try {
      make_ready(pointer, request);
    } catch (...) {
      give_back(pointer, request.bytes, request.stream);
      throw;
    }
  }
  return pointer;
}

Block* Pool::take(const AllocationAttempt& attempt, ThreadCache* cache) {
  if (Block* block = plan_.place(attempt)) return block;
  Arena& arena = arenas_.of(attempt.tag);
  Block* block = nullptr;
  if (!is_long_lived(attempt.tag.category))
    block = caches_.take(cache, attempt.size, attempt.alignment, attempt.stream.id);
  if (block == nullptr) block = arena.take(attempt.size, attempt.alignment, attempt.stream.id);
  // Drain only the depot and the thread's own magazines: this does not disturb other threads.
  if (block == nullptr && caches_.drain(cache) != 0) {
    block = arena.take(attempt.size, attempt.alignment, attempt.stream.id);
  }
  // Idle pages of the long-lived arena serve transient blocks before new pages.
  if (block == nullptr && !is_long_lived(attempt.tag.category)) {
    constexpr std::size_t most_idle = std::size_t{64} << 20, most_idle_share = 32;  // of the reserved bytes
    Arena& other = arenas_.other_than(attempt.tag);
    if (other.free_bytes() >
        std::max<std::size_t>(most_idle, context_.accounts.reserved_bytes.current / most_idle_share))
      block = other.take(attempt.size, attempt.alignment, attempt.stream.id);
  }
  // Drop a plan whose slabs leave too little budget for the request.
  if (block == nullptr && plan_.is_possible() && pages_.page_deficit(attempt) > pages_.unused_budget() &&
      plan_.drop(true)) {
    block = arena.take(attempt.size, attempt.alignment, attempt.stream.id);
  }
  return block;
}

void Pool::make_ready(void* pointer, const AllocationRequest& request) {
  if (settings().poison) memory().fill(pointer, request.bytes, poison_byte, request.stream);
  if (settings().races) memory().touch(pointer, request.bytes, request.stream, CallSite::of(request.location));
}

void Pool::poison(PoolLock& lock, std::uintptr_t address, std::size_t bytes, Stream stream) noexcept {
  void* pointer = reinterpret_cast<void*>(address);
  if (settings().poison) {
    UnlockedCall call(lock);
    call([&] {
      try {
        memory().fill(pointer, bytes, poison_byte, stream);
      } catch (...) {
        // The block returns unchanged.
      }
    });
  }
  forbid_access(settings().device, pointer, bytes);
}

void Pool::record_allocation(Block* block, const AllocationRequest& request, Tag tag, ThreadCache* cache) {
  if (Arena::expect_live(block)) {
    const StopTheWorld stopped(caches_);
    block->window->live.forget_former();
  }
  plan_.note_served(block, tag, request.alignment);
  caches_.hand_out(block, request.bytes, tag, caches_.sequence_of(cache).number(tag.category));
  allow_access(settings().device, reinterpret_cast<void*>(block->address), request.bytes);
  if (!context_.recorder.running()) return;
  context_.recorder.record_block(TraceKind::allocate, *block, tracker_.now(request.stream.id),
                                 CallSite::of(request.location), alignment_flags(request.alignment));
}

void Pool::record_free(const Block* block, Stream stream, ThreadCache* cache, bool completed) {
  context_.accounts.given_back(*block);
  if (settings().tags) caches_.sequence_of(cache).release(block->number, block->tag.category);
  if (!context_.recorder.running()) return;
  context_.recorder.record_block(TraceKind::free_requested, *block, tracker_.now(stream.id), {},
                                 completed ? completed_at_once : std::uint8_t{0});
}

void Pool::deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept {
  if (pointer == nullptr) return;
  const auto outlives_its_stream = [&] {
    const PoolLock lock(context_.mutex);
    const Block* block = arenas_.live(pointer);
    return block != nullptr && tracker_.outlives(*block, stream);
  };
  if (settings().races && !outlives_its_stream()) {
    try {
      memory().touch(pointer, bytes, stream, {}, Access::reads);  // in addition to the uses from use()
    } catch (const DeviceError& error) {
      settings().die("race on", pointer, error.what());
    } catch (...) {
      // The detector failed, not the program.
    }
  }
  give_back(pointer, bytes, stream);
  if (settings().config.mode != AllocatorMode::none) return;
  try {
    release_cached(SIZE_MAX);
  } catch (...) {
    // Cached until the next attempt.
  }
}

void Pool::give_back(void* pointer, std::size_t bytes, Stream stream) noexcept {
  ThreadCache* cache = own_cache();
  PoolLock lock(context_.mutex);
  caches_.add_up(cache);
  Block* block = arenas_.live(pointer);
  if (block == nullptr) die_of_bad_pointer(pointer);
  if (block->requested != bytes) {
    settings().die("wrong size for", pointer,
                   "it has " + std::to_string(block->requested) + " bytes, not " + std::to_string(bytes));
  }
  if (stream.device != settings().device) {
    settings().die("stream of another device for", pointer, to_string(stream.device));
  }
  if (!has_stream(stream)) settings().die("invalid stream id in the free of", pointer, std::to_string(stream.id));
  const bool own = block->stream == stream.id && !block->used_elsewhere;
  bool over = true;
  if (!own) {
    try {
      block = plan_.leave(block);
    } catch (const std::bad_alloc&) {
      over = tracker_.wait_for(lock, {}, stream);  // frees its place in the plan instead
    }
  }
  record_free(block, stream, cache, own);
  if (own && caches_.keep(cache, block)) {
    forbid_access(settings().device, pointer, block->size);
    context_.accounts.no_longer_active(block->size);
    return;
  }
  Arena::clear_live(block);
  if (settings().poison) block->state = BlockState::busy;
  poison(lock, block->address, bytes, stream);
  if (!over) return;
  if (plan_.take_back(block, stream)) {
    context_.accounts.no_longer_active(block->size);
    return;
  }
  tracker_.free(lock, block, stream);
}

void Pool::die_of_bad_pointer(const void* pointer) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (const Arena& arena : arenas_) {
    const Block* block = arena.containing(address);
    if (block == nullptr) continue;
    if (block->state != BlockState::live) settings().die("double free of", pointer, "no live block contains it");
    settings().die("not the start of a block:", pointer,
                   "it is " + std::to_string(address - block->address) + " bytes into a block of " +
                       std::to_string(block->requested));
  }
  settings().die("foreign pointer", pointer, "this pool did not allocate it");
}

std::size_t Pool::usable_size(const void* pointer) {
  const PoolLock lock(context_.mutex);
  if (const Block* block = arenas_.live(pointer)) return block->size;
  throw ValueError("[usable_size] not the start of a live block of the pool of " + to_string(settings().device));
}

void Pool::begin_phase() {
  if (plan_.is_possible()) return;  // a plan gives each step equal places anyway
  bool is_short = false;
  {
    const PoolLock lock(context_.mutex);
    caches_.begin_phase();
    is_short = pages_.was_short();
  }
  // Not for GPUs, whose handles cost too much: on the zoo at 1.01 of the lower bound, 11.4 s of calls instead of 2.7 s.
  if (is_short && memory().divisible()) release_cached(SIZE_MAX);
}

void Pool::begin_step() {
  context_.recorder.begin_step();
  begin_phase();
  if (!plan_.is_possible()) return;
  plan_.begin_step(trimmer_, [this](AllocationAttempt& attempt) {
    reclaim_policy_.search(attempt);
    if (attempt.block == nullptr) reclaim_policy_.reclaim(attempt);
  });
}

void Pool::refuse_stream(const char* function, Stream stream) const {
  if (stream.device == settings().device) {
    throw DeviceError("[" + std::string(function) + "] no stream has the id " + std::to_string(stream.id) +
                      ": ids are below 2^62");
  }
  throw DeviceError("[" + std::string(function) + "] the stream belongs to " + to_string(stream.device) +
                    ", the pool to " + to_string(settings().device));
}

void Pool::use(void* pointer, Stream stream, Access access, std::source_location location) {
  check_stream("use", stream);
  std::size_t bytes = 0;
  {
    const PoolLock lock(context_.mutex);
    Block* block = arenas_.live(pointer);
    if (block == nullptr) {
      throw ValueError("[use] not the start of a live block of the pool of " + to_string(settings().device));
    }
    tracker_.revive(stream);
    bytes = block->requested;
    if (stream.id != block->stream) tracker_.use(plan_.leave(block), stream);
  }
  // Last: a race is an error, but the pool must wait for the use in any case.
  if (settings().races) memory().touch(pointer, bytes, stream, location, access);
}

bool Pool::transfer_to_stream(void* pointer, Stream stream) {
  check_stream("transfer_to_stream", stream);
  PoolLock lock(context_.mutex);
  Block* block = arenas_.live(pointer);
  if (block == nullptr) {
    throw ValueError("[transfer_to_stream] not the start of a live block of the pool of " +
                     to_string(settings().device));
  }
  tracker_.revive(stream);
  if (block->stream == stream.id && !block->used_elsewhere) return true;
  return tracker_.transfer_to_stream(lock, plan_.leave(block), stream);
}

void Pool::order(Stream later, Stream earlier) {
  check_stream("order", later);
  check_stream("order", earlier);
  if (later == earlier) return;
  PoolLock lock(context_.mutex);
  tracker_.order(lock, later, earlier);
}

void Pool::stream_destroyed(Stream stream) {
  check_stream("stream_destroyed", stream);
  PoolLock lock(context_.mutex);
  if (!plan_.drop(false)) plan_.forget_unfinished(false);  // a recording would plan a slab on a destroyed stream
  tracker_.destroy(lock, stream, [&](const auto& rename) {
    const StopTheWorld stopped(caches_);
    caches_.drain_stream(stream.id);
    rename();
  });
}

std::size_t Pool::trim(std::size_t bytes) {
  if (bytes == SIZE_MAX) reclaim_policy_.empty_derived_caches();
  const std::size_t released = release_cached(bytes);
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  caches_.tidy();
  arenas_.tidy();
  trimmer_.tidy();
  tracker_.tidy();
  return released;
}

std::size_t Pool::release_cached(std::size_t bytes) {
  PoolLock lock(context_.mutex);
  plan_.drop(false);
  caches_.drain_all();
  tracker_.poll_pending(lock);
  std::size_t released = trimmer_.release(lock, bytes);
  if (released < bytes && tracker_.pending_bytes() != 0) {
    tracker_.synchronise_pending(lock);
    released += trimmer_.release(lock, bytes - released);
  }
  return released;
}

std::size_t Pool::budget() {
  const PoolLock lock(context_.mutex);
  return pages_.budget();
}

void Pool::set_budget(std::size_t bytes) {
  const std::size_t wanted = bytes != 0 ? bytes : memory().info().total;
  {
    const PoolLock lock(context_.mutex);
    plan_.drop(false);
  }
  const std::vector<std::string> remarks = reclaim_policy_.press_pinned_below(wanted);
  PoolLock lock(context_.mutex);
  const std::size_t previous = pages_.budget();
  const std::size_t pinned = trimmer_.pinned_bytes();
  const std::string device = to_string(settings().device);
  if (pinned > wanted) {
    std::string text = "[set_budget] live memory holds " + format_bytes(pinned) + " of pages on " + device +
                       ", more than the new budget of " + format_bytes(wanted);
    for (const std::string& remark : remarks) text += "; " + remark;
    throw ValueError(text);
  }
  pages_.set_budget(wanted);
  try {
    while (context_.claimed_bytes() > wanted) {
      if (trimmer_.release(lock, context_.claimed_bytes() - wanted) != 0) continue;
      // Another thread took the cached pages first.
      throw ValueError("[set_budget] " + device + " could not release enough cached pages for a budget of " +
                       format_bytes(wanted));
    }
  } catch (...) {
    pages_.set_budget(previous);
    throw;
  }
}

bool Pool::restart(std::size_t budget) {
  trim(SIZE_MAX);
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  if (context_.accounts.active_bytes.current != 0) return false;
  context_.accounts.restart();
  trimmer_.restart();
  caches_.reset_sequence_hash();
  context_.use_magazines(true);
  for (Arena& arena : arenas_) arena.ignore_growth(false);
  pages_.set_budget(budget);
  return true;
}

void Pool::go_on(bool in_child) noexcept {
  if (in_child) {
    context_.mutex.forget_waiting_threads();
    held_still_->caches.unlock();
    held_still_->trace.unlock();
    caches_.keep_only_own();
    // Blocks that other threads had taken but not yet returned to their callers.
    plan_.forget_unfinished(false);
    for (Arena& arena : arenas_) {
      for (const auto& window : arena.windows()) {
        for (Block* block = window->first; block != nullptr; block = block->next) {
          if (block->state == BlockState::busy && !plan_.is_slab(block)) block = tracker_.put_back(block);
        }
      }
    }
  }
  held_still_.reset();
}

bool Pool::expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream) {
  if (stream.device != settings().device || wanted > (std::size_t{1} << 60)) return false;
  if (!resize(pointer, bytes, wanted, stream)) return false;
  if (wanted > bytes && (settings().poison || settings().races)) {
    try {
      make_ready(static_cast<std::byte*>(pointer) + bytes, {.bytes = wanted - bytes, .stream = stream});
    } catch (...) {
      resize(pointer, wanted, bytes, stream);
      throw;
    }
  }
  return true;
}

bool Pool::resize(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream) {
  ThreadCache* cache = own_cache();
  PoolLock lock(context_.mutex);
  caches_.add_up(cache);
  tracker_.revive(stream);
  Block* block = arenas_.live(pointer);
  if (block == nullptr || block->requested != bytes) {
    throw ValueError("[expand_in_place] not a live block of " + std::to_string(bytes) + " bytes of the pool of " +
                     to_string(settings().device));
  }
  if (block->stream != stream.id || block->used_elsewhere) return false;
  block = plan_.leave(block);
  arenas_.store().reserve(1);  // for resize()
  const std::size_t size = settings().rounded(wanted);
  Arena& arena = arenas_.of(block);
  const auto fits = [&] { return size <= block->size + arena.free_after(block); };
  if (!fits()) caches_.drain(cache);
  if (!fits()) return false;
  // Counted and traced as a free and an allocation of the same block.
  const Tag tag = block->tag;
  record_free(block, stream, cache, true);
  context_.accounts.no_longer_active(block->size);
  tracker_.stamp(block);  // the rest of a free neighbor too is as young as in a replay of the trace
  Block* rest = arena.resize(block, size);
  ++context_.accounts.requests;
  context_.accounts.hit(tag.category);
  if (settings().tags) caches_.sequence_of(cache).request(wanted, tag.category);
  record_allocation(block, {.bytes = wanted, .stream = stream, .tag = tag}, tag, cache);
  if (wanted < bytes) poison(lock, reinterpret_cast<std::uintptr_t>(pointer) + wanted, bytes - wanted, stream);
  if (rest != nullptr) tracker_.put_back(rest);
  return true;
}

}  // namespace poolgrad
