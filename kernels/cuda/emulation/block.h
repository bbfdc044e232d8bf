// What a kernel sees of an emulated GPU: its coordinates, barriers, the collectives of a warp and shared memory. Every
// thread of a block is a fiber (ucontext); blocks run one after another, blocks and threads in an order drawn from a
// seed.
//
// A kernel that would be undefined on a GPU ends with CudaError `[operator] what, which threads, where`: threads of a
// block that wait at different barriers or for one that has returned; lanes of a warp that do not all come to a
// collective; an index outside of a shared array; an element of one that is read before it is written, or used by two
// threads, one of which writes, with no barrier in between, or used while a copy to it is under way; several elements
// of global memory in one access (load_whole() and store_whole() of elements.cuh) that is not aligned to its size.
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

/// Of the thread that runs.
struct Coordinates {
  Index3 thread, block, block_size, grid_size;
};
extern thread_local Coordinates here;

using Where = std::source_location;

/// Runs the kernel once for every thread of the grid. Its dynamic shared memory is poisoned, as all shared memory is;
/// with the static arrays a block has `most_shared` bytes of it at most (shared_limit.h).
void run_grid(std::string_view op, const kernels::LaunchShape& shape, std::uint64_t seed,
              const std::function<void()>& kernel, std::int64_t most_shared = kernels::max_shared_bytes);

/// __syncthreads().
void block_barrier(Where where);
/// __syncwarp().
void warp_barrier(Where where);
struct alignas(16) LaneValue {
  std::byte bytes[64];
};
/// What the 32 lanes of a warp have given becomes what each of them gets.
using Join = void (*)(LaneValue* of_lanes);
/// A collective of the whole warp: every lane gives a value, and when all have, and it has been joined, sees them all
/// until its next collective. It orders no memory, as in PTX: what other lanes have written is theirs until a barrier.
const LaneValue* exchange(const char* collective, const void* value, std::size_t size, Where where,
                          Join join = nullptr);
/// What each lane has given, or gets.
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
/// The caller's lane in its warp.
int lane();

/// Who has used an element of a shared array.
struct SharedUse {
  std::int16_t writer = -1, reader = -1;          // threads
  bool many_readers = false;                      // of several warps
  bool many_lanes = false;                        // of the last reader's warp
  bool under_way = false;                         // a copy to it, by `writer`, which has not waited for it
  std::int16_t products = 0, multiplier = -1;     // that read it and are under way, and a thread that has begun one
  std::uint32_t fences = 0;                       // the writer's fence_for_products() before that
  std::uint32_t written = 0, read = 0;            // the block's barriers before that
  std::uint32_t warp_written = 0, warp_read = 0;  // the warp's, __syncwarp
};
struct SharedArray {
  const char* name;
  std::byte* data;
  SharedUse* uses;
  std::int64_t count;
};
/// The block's array that is declared at this place, made at the first call. Elements are poisoned: all bits set.
SharedArray& shared_array(const char* name, std::size_t element, std::int64_t count, Where where);
/// The block's dynamic shared memory as elements of a type.
SharedArray& dynamic_shared_array(const char* name, std::size_t element, Where where);
/// For the caller itself, or for lanes of its warp that take from it what it reads.
enum class ReadFor : bool { itself, others };
void check_shared_read(const SharedArray& array, std::int64_t index, Where where, ReadFor who = ReadFor::itself);
void check_shared_write(const SharedArray& array, std::int64_t index, Where where);

/// cp.async: an element of 16 bytes becomes the first `bytes` of those at `from`, and zeros, when the thread has waited
/// for its group; until then it is poisoned. Other threads may read it after a barrier.
void copy_async(const SharedArray& array, std::int64_t index, const void* from, std::size_t bytes, Where where);
/// The thread's copies since its last group are a group.
void commit_copies();
/// Waits for the thread's groups but the last `pending` ones.
void wait_for_copies(std::int64_t pending);

/// wgmma: a product reads shared memory, and its sums are in registers, when the thread has waited for it; until then
/// the registers are NaN, and nobody may write what it reads. Before, whoever has written that must have fenced it off
/// for products, and all must have met at a barrier.
void fence_for_products();
/// Between uses of registers and products with them.
void begin_products();
void read_for_product(const SharedArray& array, std::int64_t index, Where where);
/// The sums that are in `count` registers for everybody else: what is in them, if the product adds to it.
float* sums_of_product(float* registers, std::size_t count, bool adds, Where where);
/// The thread's products since its last group are a group.
void commit_products();
/// Waits for the thread's groups but the last `pending` ones.
void wait_for_products(std::int64_t pending);
/// Ends the kernel: a matrix of a product that no descriptor can describe.
[[noreturn]] void refuse_product(const std::string& what, Where where);

/// Ends the kernel: an access of global memory at an address that is no multiple of what a GPU takes at once.
[[noreturn]] void refuse_access(const char* verb, const void* address, std::size_t bytes, std::size_t multiple);

/// An element of a shared array: reading and writing it are checked.
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

/// The twin of what launcher.cuh calls Shared under nvcc.
template <class T>
class Shared {
 public:
  explicit Shared(SharedArray& array) : array_(&array) {}
  struct Position {  // an index, and where it is written
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
