// Scratch memory of one kernel call, from the pool, tagged `workspace`. Allocate before a parallel region. A size that
// depends on the operands alone, requested before runs_on_cpu(), makes a sim device see the same requests.
#pragma once

#include <cstdint>
#include <string_view>

#include "allocator/caching_allocator.h"
#include "allocator/memory_scope.h"

namespace poolgrad::kernels {

template <class T>
class Workspace {
 public:
  /// `count` uninitialised elements on the stream's device, 64-byte aligned.
  Workspace(Stream stream, std::string_view name, std::int64_t count)
      : stream_(stream), bytes_(static_cast<std::size_t>(count) * sizeof(T)) {
    const MemoryScope scope(name, Category::workspace);
    data_ = static_cast<T*>(allocator_for(stream.device).allocate(bytes_, alignment, stream));
  }
  Workspace(std::string_view name, std::int64_t count) : Workspace(Stream{cpu}, name, count) {}
  ~Workspace() { allocator_for(stream_.device).deallocate(data_, bytes_, alignment, stream_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  T* data() const { return data_; }

 private:
  static constexpr std::size_t alignment = 64;
  Stream stream_;
  std::size_t bytes_;
  T* data_;
};

}  // namespace poolgrad::kernels
