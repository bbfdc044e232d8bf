// Pools with one deliberate bug each, for the fuzzer to find.
#pragma once

#include <unordered_map>

#include "allocator/caching_allocator.h"
#include "allocator/memory/memory_adaptor.h"

namespace poolgrad::testing {

/// Sometimes allocates a part of a live block.
class OverlappingPool : public CachingAllocator {
 public:
  using CachingAllocator::CachingAllocator;
  std::variant<void*, std::string> try_allocate(const AllocationRequest& request) {
    if (++calls_ % 8 == 0 && last_ != nullptr && request.bytes <= 64 && request.alignment == 64) return last_ + 64;
    auto result = CachingAllocator::try_allocate(request);
    if (request.bytes > 128 && std::holds_alternative<void*>(result))
      last_ = static_cast<char*>(std::get<void*>(result));
    return result;
  }
  std::size_t usable_size(const void* pointer) const {
    return last_ != nullptr && pointer == last_ + 64 ? 64 : CachingAllocator::usable_size(pointer);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream stream) noexcept {
    if (pointer == last_) last_ = nullptr;
    CachingAllocator::deallocate(pointer, bytes, alignment, stream);
  }
  bool expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream) {
    if (pointer == last_) last_ = nullptr;  // a freed part is no longer inside a live block
    return CachingAllocator::expand_in_place(pointer, bytes, wanted, stream);
  }

 private:
  std::size_t calls_ = 0;
  char* last_ = nullptr;
};

/// Treats every free as one on the stream of the allocation, so it reuses blocks that another stream may still use.
class HastyPool : public CachingAllocator {
 public:
  using CachingAllocator::CachingAllocator;
  std::variant<void*, std::string> try_allocate(const AllocationRequest& request) {
    auto result = CachingAllocator::try_allocate(request);
    if (void* const* pointer = std::get_if<void*>(&result)) streams_[*pointer] = request.stream;
    return result;
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream) noexcept {
    CachingAllocator::deallocate(pointer, bytes, alignment, streams_[pointer]);
  }

 private:
  std::unordered_map<void*, Stream> streams_;
};

/// Has a budget that is `pages` larger than it reports (smaller if negative).
template <int pages>
class MisjudgingPool : public CachingAllocator {
 public:
  MisjudgingPool(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config)
      : MisjudgingPool(memory, config, static_cast<std::size_t>(pages) * memory->granularity()) {}
  void set_budget(std::size_t bytes) { CachingAllocator::set_budget(bytes + error_); }
  std::size_t budget() const { return CachingAllocator::budget() - error_; }

 private:
  MisjudgingPool(std::unique_ptr<DeviceMemory>& memory, AllocatorConfig& config, std::size_t error)
      : CachingAllocator(std::move(memory), (config.budget += error, config)), error_(error) {}
  const std::size_t error_;
};
using GenerousPool = MisjudgingPool<1>;
using TimidPool = MisjudgingPool<-1>;

/// Forgets to count one allocation in eight.
class ForgetfulPool : public CachingAllocator {
 public:
  using CachingAllocator::CachingAllocator;
  Statistics statistics() const {
    Statistics counted = CachingAllocator::statistics();
    counted.requests -= counted.requests / 8;
    return counted;
  }
};

/// Loses one free in eight.
class LeakyPool : public CachingAllocator {
 public:
  using CachingAllocator::CachingAllocator;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream stream) noexcept {
    if (++calls_ % 8 != 0) CachingAllocator::deallocate(pointer, bytes, alignment, stream);
  }

 private:
  std::size_t calls_ = 0;
};

/// Never aligns to more than 64 bytes.
class CrookedPool : public CachingAllocator {
 public:
  using CachingAllocator::CachingAllocator;
  std::variant<void*, std::string> try_allocate(AllocationRequest request) {
    request.alignment = 64;
    return CachingAllocator::try_allocate(request);
  }
};

/// Ends the program at the eighth allocation.
class DyingPool : public CachingAllocator {
 public:
  using CachingAllocator::CachingAllocator;
  std::variant<void*, std::string> try_allocate(const AllocationRequest& request) {
    if (++calls_ == 8) std::abort();
    return CachingAllocator::try_allocate(request);
  }

 private:
  std::size_t calls_ = 0;
};

/// A device that ignores waits of streams for events.
class DeafMemory : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;
  void stream_wait(Stream, EventId) override {}
};

/// Reuses blocks of other streams without waiting for them.
class RushingPool : public CachingAllocator {
 public:
  RushingPool(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config)
      : CachingAllocator(std::make_unique<DeafMemory>(std::move(memory)), config) {}
};

/// Ignores use().
class IgnorantPool : public CachingAllocator {
 public:
  using CachingAllocator::CachingAllocator;
  void use(void*, Stream) {}
};

/// Ignores stream_destroyed().
class NostalgicPool : public CachingAllocator {
 public:
  using CachingAllocator::CachingAllocator;
  void stream_destroyed(Stream) {}
};

}  // namespace poolgrad::testing
