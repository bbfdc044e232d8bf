#include "allocator/pool/pool.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "allocator/base/address_sanitizer.h"
#include "allocator/call_site.h"
#include "allocator/error.h"

namespace poolgrad {

namespace {

constexpr unsigned char poison_byte = 0xFF;

std::uint64_t next_pool_id() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

Pool::Pool(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config)
    : id_(next_pool_id()),
      config_(config),
      memory_(std::move(memory)),
      device_(memory_->device()),
      granule_(config.mode == AllocatorMode::none ? memory_->granularity() : config.alignment),
      page_(memory_->granularity()),
      large_page_(config.mode == AllocatorMode::none ? page_ : memory_->large_page()),
      poison_(config.poison),
      tags_(config.mode != AllocatorMode::lightweight),
      races_(memory_->detects_races()),
      decays_(config.decay != 0 || config.decay_ms != 0),
      magazines_(config.magazines && !poison_ && !races_ && config.mode != AllocatorMode::none &&
                 config.mode != AllocatorMode::planned),
      routines_(config.routines && !poison_ && !races_ && config.mode != AllocatorMode::none &&
                config.mode != AllocatorMode::planned),
      packing_(config.packing),
      arenas_{Arena(store_, granule_, page_, memory_->divisible()),
              Arena(store_, granule_, page_, memory_->divisible())},
      // Poison is written without the lock, when a place is already free for the next.
      planner_(config.mode == AllocatorMode::planned && !poison_ ? std::make_unique<StepPlanner>(granule_) : nullptr) {
  if (!std::has_single_bit(config.alignment) || config.alignment < 16 || config.alignment > page_) {
    throw ValueError("[allocator] the alignment must be a power of two from 16 to the page size of " +
                     std::to_string(page_) + " bytes, got " + std::to_string(config.alignment));
  }
  budget_ = config.budget != 0 ? config.budget : memory_->info().total;
  if (config.trace != 0) start_trace(config.trace);
  place_ = ThreadCaches::enter(*this);
}

Pool::~Pool() {
  ThreadCaches::forget(*this);
  wait_for_all_work();
  StreamEvents events;
  order_.take_events(events);
  for (const StreamEvent& event : events) memory_->discard_event(event.id);
  for (const Arena& arena : arenas_) {
    for (const auto& window : arena.windows()) {
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (block->state != BlockState::uncommitted) {
          // Committed memory starts and ends at pages, blocks need not: release whole committed stretches.
          const std::uintptr_t begin = block->address;
          while (block->next != nullptr && block->next->state != BlockState::uncommitted) block = block->next;
          allow_access(device_, reinterpret_cast<void*>(begin), block->end() - begin);
          memory_->decommit(reinterpret_cast<void*>(begin), block->end() - begin);
        }
      }
      memory_->unreserve(reinterpret_cast<void*>(window->address), window->size);
    }
  }
}

std::variant<void*, std::string> Pool::allocate(const AllocationRequest& request) {
  Need need{.requested = request.bytes,
            .alignment = request.alignment,
            .stream = request.stream,
            .tag = tags_ ? request.tag : Tag{},
            .may_reclaim = request.may_reclaim,
            .priority = request.priority};
  if (!std::has_single_bit(need.alignment)) {
    throw ValueError("[allocate] alignment must be a power of two, got " + std::to_string(need.alignment));
  }
  if (need.stream.device != device_) {
    throw DeviceError("[allocate] the stream belongs to " + to_string(need.stream.device) + ", the pool to " +
                      to_string(device_));
  }
  // What no device can have would overflow when rounded up; this much cannot be had either.
  constexpr std::size_t most = std::size_t{1} << 60;
  need.size = rounded(std::min(request.bytes, most));
  need.alignment = std::min(need.alignment, most);

  ThreadCache* cache = ThreadCaches::of(*this);
  // Read under the lock: once the block is published, a thread that drops the plan may make another of it.
  std::uintptr_t address = 0;
  const Found found(*this, need);
  const auto hand_over = [&] {
    publish(need.block, request, need.tag, cache);
    address = std::exchange(need.block, nullptr)->address;
  };
  {
    Lock lock(mutex_);
    add_up(cache);
    order_.revive(need.stream.id);
    ++statistics_.requests;
    ++tick_;
    if (tags_) sequence_of(cache).request(request.bytes, need.tag.category);
    Arena& arena = arena_for(need.tag);
    // Where all but small blocks go depends on free neighbours being joined: on training steps, this takes reserved
    // bytes from 110 % of the live peak back to 105 %, and most hits are among the pairs that remain.
    constexpr std::size_t small = std::size_t{1} << 12;
    if (cache != nullptr && need.size >= small) drain(*cache);
    if (decays_ && decay_is_due()) release_decayed(lock);
    if (noted_bytes() > pack_above_) pack_or_wait();
    const bool observed = is_observed(cache);
    const std::uint64_t before = changes();
    need.block = planned_place(need);
    if (need.block == nullptr) need.block = arena.take(need.size, need.alignment, need.stream.id);
    // What the thread keeps for itself is its own to join: no other thread has to be disturbed for it.
    if (need.block == nullptr && cache != nullptr && drain(*cache) != 0) {
      need.block = arena.take(need.size, need.alignment, need.stream.id);
    }
    // A plan is given up for what the budget would not allow beside it.
    if (need.block == nullptr && planner_ != nullptr && page_deficit(need) > unused_budget() && drop_plan(true)) {
      need.block = arena.take(need.size, need.alignment, need.stream.id);
    }
    if (need.block != nullptr) {
      ++statistics_.pool_hits;
      if (tags_) ++statistics_.category_hits[static_cast<std::size_t>(need.tag.category)];
      hand_over();
      if (observed && request.bytes <= Routine::Act::most_bytes) {
        observe(*cache, Routine::Act::allocation(address, request.bytes, request.alignment, need.tag), request.stream,
                before);
      }
    } else {
      if (tags_) ++statistics_.category_misses[static_cast<std::size_t>(need.tag.category)];
    }
  }
  if (address == 0) {
    std::vector<Yield> yields = climb(need);
    if (need.block == nullptr && planner_ != nullptr && give_up_plan(true)) yields = climb(need);
    if (need.block == nullptr) return report(need, std::move(yields));
    const std::lock_guard lock(mutex_);
    add_up(cache);
    hand_over();
  }
  void* pointer = reinterpret_cast<void*>(address);
  if (poison_ || races_) make_ready(pointer, request);
  return pointer;
}

// What cannot be made ready is not handed out.
void Pool::make_ready(void* pointer, const AllocationRequest& request) {
  try {
    if (poison_) memory_->fill(pointer, request.bytes, poison_byte, request.stream);
    if (races_) memory_->touch(pointer, request.bytes, request.stream, CallSite::of(request.location));
  } catch (...) {
    give_back(pointer, request.bytes, request.stream);
    throw;
  }
}

void Pool::search(Need& need) {
  const std::lock_guard lock(mutex_);
  need.block = arena_for(need.tag).take(need.size, need.alignment, need.stream.id);
}

void Pool::put_back(Block* block) noexcept {
  if (planner_ != nullptr && planner_->owns(block)) {
    planner_->give_back(block, false);
    return;
  }
  stamp(block);
  arena_of(reinterpret_cast<void*>(block->address))->put(block);
}

void Pool::publish(Block* block, const AllocationRequest& request, Tag tag, ThreadCache* cache) {
  Arena::expect_live(block);
  note_served(block, tag, request.alignment);
  hand_out(block, request.bytes, tag, sequence_of(cache).number(tag.category));
  allow_access(device_, reinterpret_cast<void*>(block->address), request.bytes);
  if (trace_.running()) record_block(TraceKind::allocate, block, request.stream, cache, CallSite::of(request.location));
}

void Pool::hand_out(Block* block, std::size_t bytes, Tag tag, std::uint64_t number) {
  block->requested = bytes;
  block->tag = tag;
  block->number = number;
  block->used_elsewhere = false;
  Arena::mark_live(block);
  statistics_.allocation.add(1);
  statistics_.allocated_bytes.add(block->size);
  statistics_.requested_bytes.add(bytes);
  statistics_.active_bytes.add(block->size);
  if (tags_) statistics_.category_bytes[static_cast<std::size_t>(tag.category)].add(bytes);
}

void Pool::count_release(const Block* block) {
  ++tick_;
  statistics_.allocation.subtract(1);
  statistics_.allocated_bytes.subtract(block->size);
  statistics_.requested_bytes.subtract(block->requested);
  if (tags_) statistics_.category_bytes[static_cast<std::size_t>(block->tag.category)].subtract(block->requested);
}

void Pool::withdraw(const Block* block, Stream stream, ThreadCache* cache, bool completed) {
  count_release(block);
  if (tags_) sequence_of(cache).release(block->number, block->tag.category);
  if (trace_.running()) record_block(TraceKind::free_requested, block, stream, cache, {}, completed);
}

Arena* Pool::arena_of(const void* pointer) {
  for (Arena& arena : arenas_) {
    if (arena.owns(reinterpret_cast<std::uintptr_t>(pointer))) return &arena;
  }
  return nullptr;
}

void Pool::deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept {
  if (pointer == nullptr) return;
  if (races_ && !outlives(pointer, stream)) {
    try {
      memory_->touch(pointer, bytes, stream, {});
    } catch (const DeviceError& error) {
      die("race on", pointer, error.what());
    } catch (...) {
      // The detector failed, not the program.
    }
  }
  give_back(pointer, bytes, stream);
  if (config_.mode != AllocatorMode::none) return;
  try {
    release_cached(SIZE_MAX);
  } catch (...) {
    // It stays cached until the next time.
  }
}

bool Pool::outlives(const void* pointer, Stream stream) const {
  const std::lock_guard lock(mutex_);
  const std::optional<Block> block = live_copy(pointer);
  return block && outlives(&*block, stream);
}

void Pool::give_back(void* pointer, std::size_t bytes, Stream stream) noexcept {
  ThreadCache* cache = ThreadCaches::of(*this);
  Lock lock(mutex_);
  add_up(cache);
  Block* block = unpacked_at_last(pointer);
  if (block == nullptr && live_copy(pointer)) return;  // nobody's any more, for want of memory
  if (block == nullptr) die_of_bad_pointer(pointer);
  if (block->requested != bytes) {
    die("wrong size for", pointer,
        "it has " + std::to_string(block->requested) + " bytes, not " + std::to_string(bytes));
  }
  if (stream.device != device_) die("stream of another device for", pointer, to_string(stream.device));
  const bool own = block->stream == stream.id && !block->used_elsewhere;
  bool over = true;
  if (!own) {
    try {
      block = leave_plan(block);
    } catch (const std::bad_alloc&) {
      over = wait_for(lock, {}, stream);  // its place in the plan is given back instead
    }
  }
  const bool observed = is_observed(cache) && own;
  if (!observed) routine_.disturb();
  const std::uint64_t age = sequence_of(cache).last(block->tag.category) - block->number;
  const auto act = Routine::Act::free(block->address, bytes, block->tag, static_cast<std::uint32_t>(age));
  const std::uint64_t before = changes();
  withdraw(block, stream, cache, own);
  if (own && put_into_magazine(cache, block)) {
    forbid_access(device_, pointer, block->size);
    statistics_.active_bytes.subtract(block->size);
    return;
  }
  Arena::clear_live(block);
  if (poison_) {
    block->state = BlockState::busy;
    DeviceCall call(*this, lock, Nothing{});
    call([&] {
      try {
        memory_->fill(pointer, bytes, poison_byte, stream);
      } catch (...) {
        // It comes back as it is.
      }
    });
  }
  forbid_access(device_, pointer, block->size);
  if (!over) return;
  if (return_to_plan(block, stream)) {
    statistics_.active_bytes.subtract(block->size);
    return;
  }
  free_block(lock, block, stream);
  if (!observed) return;
  if (age > UINT32_MAX) routine_.disturb();  // another thread's
  observe(*cache, act, stream, before);
}

void Pool::die(const char* what, const void* pointer, const std::string& detail) const noexcept {
  std::fprintf(stderr, "[deallocate] %s %p on %s: %s\n", what, pointer, to_string(device_).c_str(), detail.c_str());
  std::abort();
}

void Pool::die_of_bad_pointer(const void* pointer) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (const Arena& arena : arenas_) {
    const std::optional<Block> block = arena.containing(address);
    if (!block) continue;
    if (block->state != BlockState::live) die("double free of", pointer, "no live block contains it");
    die("not the start of a block:", pointer,
        "it is " + std::to_string(address - block->address) + " bytes into a block of " +
            std::to_string(block->requested));
  }
  die("foreign pointer", pointer, "this pool never handed it out");
}

std::size_t Pool::usable_size(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  if (const std::optional<Block> block = live_copy(pointer)) return block->size;
  throw ValueError("[usable_size] not the start of a live block of the pool of " + to_string(device_));
}

bool Pool::expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream) {
  if (stream.device != device_ || wanted > (std::size_t{1} << 60)) return false;
  ThreadCache* cache = ThreadCaches::of(*this);
  const std::lock_guard lock(mutex_);
  add_up(cache);
  order_.revive(stream.id);
  Block* block = unpacked(pointer);
  if (block == nullptr || block->requested != bytes) {
    throw ValueError("[expand_in_place] not a live block of " + std::to_string(bytes) + " bytes of the pool of " +
                     to_string(device_));
  }
  if (block->stream != stream.id || block->used_elsewhere) return false;
  block = leave_plan(block);
  store_.reserve(1);  // for resize()
  routine_.disturb();
  const std::size_t size = rounded(wanted);
  Arena& arena = *arena_of(pointer);
  const auto fits = [&] { return size <= block->size + arena.free_after(block); };
  if (!fits() && cache != nullptr) drain(*cache);
  if (!fits()) return false;
  // Counts, and is traced, as a free and an allocation of the same block.
  const Tag tag = block->tag;
  withdraw(block, stream, cache, true);
  statistics_.active_bytes.subtract(block->size);
  forbid_access(device_, pointer, block->size);
  stamp(block);  // what is cut off is given back now
  arena.resize(block, size);
  ++statistics_.requests;
  ++statistics_.pool_hits;
  if (tags_) {
    sequence_of(cache).request(wanted, tag.category);
    ++statistics_.category_hits[static_cast<std::size_t>(tag.category)];
  }
  publish(block, {.bytes = wanted, .stream = stream, .tag = tag}, tag, cache);
  return true;
}

std::size_t Pool::budget() const {
  const std::lock_guard lock(mutex_);
  return budget_;
}

void Pool::add_client(std::weak_ptr<ReclaimClient> client) {
  const std::lock_guard lock(mutex_);
  std::erase_if(clients_, [](const auto& known) { return known.expired(); });
  clients_.push_back(std::move(client));
}

void Pool::set_out_of_memory_callback(OutOfMemoryCallback callback) {
  const std::lock_guard lock(mutex_);
  out_of_memory_callback_ = std::move(callback);
}

}  // namespace poolgrad
