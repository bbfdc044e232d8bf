#include "allocator/pool.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "allocator/address_sanitizer.h"
#include "allocator/error.h"

namespace poolgrad {

namespace {

constexpr unsigned char poison_byte = 0xFF;
constexpr std::uint64_t number_mask = (std::uint64_t{1} << 56) - 1;

// Scratch of kernels is left out: it differs with the back end and the number of threads, tensors do not.
bool is_hashed(Tag tag) { return tag.category != Category::workspace; }

// `value` is a size or a block number below 2^56.
std::uint64_t hash_word(std::uint64_t kind, std::uint64_t value, Category category) {
  return kind << 63 | static_cast<std::uint64_t>(category) << 56 | (value & number_mask);
}

}  // namespace

Pool::Pool(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config)
    : memory_(std::move(memory)),
      device_(memory_->device()),
      granule_(config.alignment),
      page_(memory_->granularity()),
      large_page_(memory_->large_page()),
      poison_(config.poison),
      arenas_{Arena(store_, granule_, page_), Arena(store_, granule_, page_)} {
  if (!std::has_single_bit(granule_) || granule_ < 16 || granule_ > page_) {
    throw ValueError("[allocator] the alignment must be a power of two from 16 to the page size of " +
                     std::to_string(page_) + " bytes, got " + std::to_string(granule_));
  }
  budget_ = config.budget != 0 ? config.budget : memory_->info().total;
}

Pool::~Pool() {
  for (const Pending& pending : pending_) {
    if (pending.event != 0) memory_->discard_event(pending.event);
  }
  for (const Arena& arena : arenas_) {
    for (const auto& window : arena.windows()) {
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (block->state != BlockState::uncommitted) {
          // Committed memory starts and ends at pages, blocks need not: release whole committed stretches.
          const std::uintptr_t begin = block->address;
          while (block->next != nullptr && block->next->state != BlockState::uncommitted) block = block->next;
          memory_->decommit(reinterpret_cast<void*>(begin), block->end() - begin);
        }
      }
      allow_access(device_, reinterpret_cast<void*>(window->address), window->size);
      memory_->unreserve(reinterpret_cast<void*>(window->address), window->size);
    }
  }
}

std::variant<void*, std::string> Pool::allocate(const AllocationRequest& request) {
  Need need{.requested = request.bytes, .alignment = request.alignment, .stream = request.stream, .tag = request.tag};
  if (!std::has_single_bit(need.alignment)) {
    throw ValueError("[allocate] alignment must be a power of two, got " + std::to_string(need.alignment));
  }
  if (need.stream.device != device_) {
    throw DeviceError("[allocate] the stream belongs to " + to_string(need.stream.device) + ", the pool to " +
                      to_string(device_));
  }
  // What no device can have would overflow when rounded up; this much cannot be had either.
  constexpr std::size_t most = std::size_t{1} << 60;
  need.size = (std::clamp<std::size_t>(request.bytes, 1, most) + granule_ - 1) & ~(granule_ - 1);
  need.alignment = std::min(need.alignment, most);

  {
    const std::lock_guard lock(mutex_);
    ++statistics_.requests;
    ++tick_;
    if (is_hashed(need.tag)) hash(hash_word(0, request.bytes, need.tag.category));
    need.block = arena_for(need.tag).take(need.size, need.alignment, need.stream.id);
    if (need.block != nullptr) {
      ++statistics_.pool_hits;
      void* pointer = publish(need.block, request.bytes, need.tag);
      if (!poison_) return pointer;
    } else {
      ++statistics_.num_alloc_retries;
    }
  }
  if (need.block == nullptr) {
    std::vector<Yield> yields = EmergencyLadder::climb(rungs(), need, [this](Need& n) { search(n); });
    if (need.block == nullptr) return report(need, std::move(yields));
    const std::lock_guard lock(mutex_);
    publish(need.block, request.bytes, need.tag);
  }
  void* pointer = reinterpret_cast<void*>(need.block->address);
  if (poison_) memory_->fill(pointer, request.bytes, poison_byte, request.stream);
  return pointer;
}

void Pool::search(Need& need) {
  const std::lock_guard lock(mutex_);
  need.block = arena_for(need.tag).take(need.size, need.alignment, need.stream.id);
}

void* Pool::publish(Block* block, std::size_t requested, Tag tag) {
  block->requested = requested;
  block->tag = tag;
  block->number = is_hashed(tag) ? ++number_ : 0;
  Arena::mark_live(block);
  allow_access(device_, reinterpret_cast<void*>(block->address), requested);
  statistics_.allocated_bytes.add(block->size);
  statistics_.requested_bytes.add(requested);
  statistics_.active_bytes.add(block->size);
  statistics_.category_bytes[static_cast<std::size_t>(tag.category)].add(requested);
  return reinterpret_cast<void*>(block->address);
}

void Pool::withdraw(Block* block) {
  if (is_hashed(block->tag)) hash(hash_word(1, block->number - hashed_from_, block->tag.category));
  block->epoch = ++tick_;
  statistics_.allocated_bytes.subtract(block->size);
  statistics_.requested_bytes.subtract(block->requested);
  statistics_.category_bytes[static_cast<std::size_t>(block->tag.category)].subtract(block->requested);
}

Arena* Pool::arena_of(const void* pointer) {
  for (Arena& arena : arenas_) {
    if (arena.owns(reinterpret_cast<std::uintptr_t>(pointer))) return &arena;
  }
  return nullptr;
}

void Pool::deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept {
  if (pointer == nullptr) return;
  Lock lock(mutex_);
  Arena* arena = &arenas_[0];
  Block* block = arena->live(reinterpret_cast<std::uintptr_t>(pointer));
  if (block == nullptr) {
    arena = &arenas_[1];
    block = arena->live(reinterpret_cast<std::uintptr_t>(pointer));
  }
  if (block == nullptr) die_of_bad_pointer(pointer);
  if (block->requested != bytes) {
    die("wrong size for", pointer,
        "it has " + std::to_string(block->requested) + " bytes, not " + std::to_string(bytes));
  }
  withdraw(block);
  Arena::clear_live(block);
  if (block->stream == stream.id && !poison_) {
    forbid_access(device_, pointer, block->size);
    statistics_.active_bytes.subtract(block->size);
    arena->put(block);
    return;
  }
  block->state = BlockState::busy;
  lock.unlock();
  EventId event = 0;
  try {
    if (poison_) memory_->fill(pointer, bytes, poison_byte, stream);
    if (block->stream != stream.id) event = memory_->record_event(stream);
  } catch (const Error&) {
    // The block waits until an event can be recorded.
  }
  forbid_access(device_, pointer, block->size);
  lock.lock();
  if (block->stream == stream.id) {
    statistics_.active_bytes.subtract(block->size);
    arena->put(block);
  } else {
    if (event != 0) ++statistics_.events_recorded;
    block->state = BlockState::pending;
    pending_.push_back({block, stream, event});
  }
}

void Pool::die(const char* what, const void* pointer, const std::string& detail) const noexcept {
  std::fprintf(stderr, "[deallocate] %s %p on %s: %s\n", what, pointer, to_string(device_).c_str(), detail.c_str());
  std::abort();
}

void Pool::die_of_bad_pointer(const void* pointer) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (const Arena& arena : arenas_) {
    const Block* block = arena.containing(address);
    if (block == nullptr) continue;
    if (block->state != BlockState::live) die("double free of", pointer, "no live block contains it");
    die("not the start of a block:", pointer,
        "it is " + std::to_string(address - block->address) + " bytes into a block of " +
            std::to_string(block->requested));
  }
  die("foreign pointer", pointer, "this pool never handed it out");
}

std::size_t Pool::usable_size(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  for (const Arena& arena : arenas_) {
    if (const Block* block = arena.live(reinterpret_cast<std::uintptr_t>(pointer))) return block->size;
  }
  throw ValueError("[usable_size] not the start of a live block of the pool of " + to_string(device_));
}

std::size_t Pool::budget() const {
  const std::lock_guard lock(mutex_);
  return budget_;
}

Statistics Pool::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void Pool::reset_peaks() {
  const std::lock_guard lock(mutex_);
  const auto reset = [](Gauge& gauge) { gauge.peak = gauge.current; };
  reset(statistics_.allocated_bytes);
  reset(statistics_.requested_bytes);
  reset(statistics_.reserved_bytes);
  reset(statistics_.active_bytes);
  for (Gauge& gauge : statistics_.category_bytes) reset(gauge);
}

std::uint64_t Pool::sequence_hash() const {
  const std::lock_guard lock(mutex_);
  return hash_;
}

void Pool::reset_sequence_hash() {
  const std::lock_guard lock(mutex_);
  hash_ = fnv_start;
  hashed_from_ = number_;
}

void Pool::add_client(std::weak_ptr<ReclaimClient> client) {
  const std::lock_guard lock(mutex_);
  std::erase_if(clients_, [](const auto& known) { return known.expired(); });
  clients_.push_back(std::move(client));
}

bool Pool::restart(std::size_t budget) {
  trim(SIZE_MAX);
  const std::lock_guard lock(mutex_);
  if (statistics_.active_bytes.current != 0) return false;
  statistics_ = Statistics{};
  tick_ = number_ = hashed_from_ = 0;
  hash_ = fnv_start;
  budget_ = budget;
  return true;
}

}  // namespace poolgrad
