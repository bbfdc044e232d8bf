// Scratch memory of one kernel call, from the pool, with category `workspace`. Allocate it before a parallel region.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/memory_scope.h"

namespace poolgrad::kernels {

template <class T>
class Workspace {
 public:
  /// Allocates `count` uninitialized elements on the stream's device, with `alignment` in bytes.
  Workspace(Stream stream, std::string_view name, std::int64_t count, std::size_t alignment = 64)
      : stream_(stream), bytes_(static_cast<std::size_t>(count) * sizeof(T)), alignment_(alignment) {
    const MemoryScope scope(name, Category::workspace);
    data_ = static_cast<T*>(allocator_for(stream.device).allocate(bytes_, alignment_, stream));
  }
  Workspace(std::string_view name, std::int64_t count) : Workspace(Stream{cpu}, name, count) {}
  ~Workspace() { allocator_for(stream_.device).deallocate(data_, bytes_, alignment_, stream_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  T* data() const { return data_; }

 private:
  Stream stream_;
  std::size_t bytes_, alignment_;
  T* data_;
};

/// Host scratch for planning a call. A simulated device allocates it too, without bytes.
template <class T>
class PlanningSpace {
 public:
  /// Allocates `count` elements with value T{}.
  PlanningSpace(Stream stream, std::string_view name, std::int64_t count) : space_(stream, name, count) {
    if (stream.device.is_cpu())
      std::uninitialized_fill_n(space_.data(), count, T{});
    else
      simulated_.resize(static_cast<std::size_t>(count));
  }

  T* data() { return simulated_.empty() ? space_.data() : simulated_.data(); }
  const T* data() const { return simulated_.empty() ? space_.data() : simulated_.data(); }

 private:
  static_assert(std::is_trivially_destructible_v<T>);
  Workspace<T> space_;
  std::vector<T> simulated_;
};

}  // namespace poolgrad::kernels
