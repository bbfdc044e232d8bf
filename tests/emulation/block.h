// The interface of a kernel to an emulated GPU: coordinates, barriers, warp collectives and shared memory. Every thread
// of a block is a fiber (ucontext). Blocks run one after another; a seed determines the order of blocks and threads.
//
// Undefined behavior of a kernel ends it with CudaError `[operator] what, which threads, where`. The checks cover:
//  - threads of a block that wait at different barriers, or for a thread that has returned
//  - a warp collective that some lanes do not reach
//  - an index outside a shared array
//  - a read of a shared element before it is written
//  - a write and another thread's access to a shared element without a barrier in between
//  - use of a shared element during a copy to it
//  - a wide access to global memory (load_whole(), store_whole() of elements.cuh) that is not aligned to its size
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/launch.h"

namespace poolgrad::emulation {

inline constexpr int warp_size = 32;

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

/// Coordinates of the running thread.
struct Coordinates {
  Index3 thread, block, block_size, grid_size;
};
extern thread_local Coordinates here;

using Where = std::source_location;

/// Runs the kernel once for every thread of the grid. All shared memory starts poisoned. A block has at most
/// `most_shared` bytes of it, static and dynamic (shared_limit.h).
void run_grid(std::string_view op, const kernels::LaunchShape& shape, std::uint64_t seed,
              const std::function<void()>& kernel, std::int64_t most_shared = kernels::max_shared_bytes);

/// __syncthreads().
void block_barrier(Where where);
/// __syncwarp().
void warp_barrier(Where where);
struct alignas(16) LaneValue {
  std::byte bytes[64];
};
/// Replaces the inputs of a warp's 32 lanes by their results.
using Join = void (*)(LaneValue* of_lanes);
/// A collective of the whole warp. Each lane gives a value; once all have, `join` runs, and every lane sees all values
/// until its next collective. As in PTX, it does not order memory: other lanes' writes need a barrier.
const LaneValue* exchange(const char* collective, const void* value, std::size_t size, Where where,
                          Join join = nullptr);
/// The inputs or results of all lanes.
template <class T>
class Lanes {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(LaneValue) && alignof(T) <= alignof(LaneValue));

 public:
  Lanes(const char* collective, const T& own, Where where, Join join = nullptr)
      : values_(exchange(collective, &own, sizeof(T), where, join)) {}
  const T& operator[](int lane) const { return *reinterpret_cast<const T*>(values_[lane].bytes); }

 private:
  const LaneValue* values_;
};
/// Returns the caller's lane in its warp.
int lane();

/// Record of the accesses to an element of a shared array.
struct SharedUse {
  std::int16_t writer = -1, reader = -1;          // threads
  bool many_readers = false;                      // readers of several warps
  bool many_lanes = false;                        // several lanes of the last reader's warp
  bool under_way = false;                         // `writer` has not waited for its copy to the element
  std::int16_t products = 0, multiplier = -1;     // pending products that read it, and a thread that began one
  std::uint32_t fences = 0;                       // the writer's fence_for_products() calls before the write
  std::uint32_t written = 0, read = 0;            // the block's barriers before the access
  std::uint32_t warp_written = 0, warp_read = 0;  // the warp's __syncwarp() calls before the access
};
struct SharedArray {
  const char* name;
  std::byte* data;
  SharedUse* uses;
  std::int64_t count;
};
/// Returns the block's array declared at this place, created at the first call. Elements start poisoned: all bits set.
SharedArray& shared_array(const char* name, std::size_t element, std::int64_t count, Where where);
/// Returns the block's dynamic shared memory as elements of a type.
SharedArray& dynamic_shared_array(const char* name, std::size_t element, Where where);
/// The reader: the caller itself, or lanes of its warp that take its value.
enum class ReadFor : bool { itself, others };
void check_shared_read(const SharedArray& array, std::int64_t index, Where where, ReadFor who = ReadFor::itself);
void check_shared_write(const SharedArray& array, std::int64_t index, Where where);

/// cp.async: fills a 16-byte element with the first `bytes` bytes at `from` and zeros. The element stays poisoned until
/// the thread has waited for its group. Other threads may read it after a barrier.
void copy_async(const SharedArray& array, std::int64_t index, const void* from, std::size_t bytes, Where where);
/// Makes the thread's copies since its last group a group.
void commit_copies();
/// Waits for all of the thread's groups except the last `pending`.
void wait_for_copies(std::int64_t pending);

/// wgmma: a product is complete once the thread has waited for it. Until then the sums in registers are NaN, and its
/// shared memory must not be written. Before a product, the writer of its shared memory must call fence_for_products(),
/// and all threads must pass a barrier.
void fence_for_products();
/// Orders earlier register accesses before the products that use the registers.
void begin_products();
void read_for_product(const SharedArray& array, std::int64_t index, Where where);
/// Returns storage for a product's `count` sums until the wait, with the register values if `adds`. Meanwhile the
/// registers are NaN.
float* sums_of_product(float* registers, std::size_t count, bool adds, Where where);
/// Makes the thread's products since its last group a group.
void commit_products();
/// Waits for all of the thread's groups except the last `pending`.
void wait_for_products(std::int64_t pending);
/// Ends the kernel: no descriptor can describe the matrix of a product.
[[noreturn]] void refuse_product(const std::string& what, Where where);

/// Ends the kernel: the address of a global memory access is not a multiple of the required alignment.
[[noreturn]] void refuse_access(const char* verb, const void* address, std::size_t bytes, std::size_t multiple);

/// An element of a shared array with checked reads and writes.
template <class T>
class SharedElement {
 public:
  SharedElement(const SharedArray& array, std::int64_t index, Where where)
      : array_(array), index_(index), where_(where) {}
  operator T() const { return read(ReadFor::itself); }
  T read(ReadFor who) const {
    check_shared_read(array_, index_, where_, who);
    T value;
    std::memcpy(static_cast<void*>(&value), address(), sizeof(T));
    return value;
  }
  T operator=(T value) const {
    check_shared_write(array_, index_, where_);
    std::memcpy(address(), &value, sizeof(T));
    return value;
  }
  T operator=(const SharedElement& other) const { return *this = static_cast<T>(other); }
  SharedElement(const SharedElement&) = default;
  T operator+=(T value) const { return *this = static_cast<T>(*this) + value; }

 private:
  std::byte* address() const { return array_.data + index_ * static_cast<std::int64_t>(sizeof(T)); }
  const SharedArray& array_;
  std::int64_t index_;
  Where where_;
};

/// The counterpart of launcher.cuh's Shared under nvcc.
template <class T>
class Shared {
 public:
  explicit Shared(SharedArray& array) : array_(&array) {}
  struct Position {  // an index and its source location
    template <class I>
    Position(I value, Where at = Where::current()) : index(static_cast<std::int64_t>(value)), where(at) {}
    std::int64_t index;
    Where where;
  };
  SharedElement<T> operator[](Position position) const { return {*array_, position.index, position.where}; }
  const SharedArray& array() const { return *array_; }

 private:
  const SharedArray* array_;
};

}  // namespace poolgrad::emulation
