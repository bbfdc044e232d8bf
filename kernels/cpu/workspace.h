// Scratch memory of one kernel call on the CPU, from the pool, tagged `workspace`. Allocate before a parallel region.
#pragma once

#include <cstdint>
#include <string_view>

#include "allocator/caching_allocator.h"
#include "allocator/memory_scope.h"

namespace poolgrad::kernels {

template <class T>
class Workspace {
 public:
  /// `count` uninitialised elements, 64-byte aligned.
  Workspace(std::string_view name, std::int64_t count) : bytes_(static_cast<std::size_t>(count) * sizeof(T)) {
    const MemoryScope scope(name, Category::workspace);
    data_ = static_cast<T*>(allocator_for(cpu).allocate(bytes_, alignment, Stream{cpu}));
  }
  ~Workspace() { allocator_for(cpu).deallocate(data_, bytes_, alignment, Stream{cpu}); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  T* data() const { return data_; }

 private:
  static constexpr std::size_t alignment = 64;
  std::size_t bytes_;
  T* data_;
};

}  // namespace poolgrad::kernels
