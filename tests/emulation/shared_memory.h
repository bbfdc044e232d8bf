// Shared memory of a block of an emulated GPU: its arrays, a record of their uses, and pending copies (cp.async) and
// products (wgmma). A use that is undefined on a GPU ends the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tests/emulation/block.h"

namespace poolgrad::emulation {

/// Returns the place as "forward.cu:17".
std::string place_of(const Where& where);
bool same_place(const Where& a, const Where& b);

/// A thread, with the barrier counts of its block and of its warp (__syncwarp).
struct Moment {
  std::int16_t thread;
  std::uint32_t barriers, of_warp;
};

class SharedMemory {
 public:
  /// `fail` must end the kernel and not return.
  explicit SharedMemory(std::function<void(const std::string&)> fail) : fail_(std::move(fail)) {}

  /// Starts a block of `threads` threads with `dynamic` bytes of dynamic memory and at most `most` bytes in total.
  void begin_block(std::size_t threads, std::int64_t dynamic, std::int64_t most);
  SharedArray& declared(const char* name, std::size_t element, std::int64_t count, Where where, bool fixed = true);
  SharedArray& dynamic(const char* name, std::size_t element, Where where);

  void read(const Moment& now, const SharedArray& array, std::int64_t index, Where where, ReadFor who);
  void write(const Moment& now, const SharedArray& array, std::int64_t index, Where where);

  void copy(const Moment& now, const SharedArray& array, std::int64_t index, const void* from, std::size_t bytes,
            Where where);
  void commit_copies(const Moment& now);
  void wait_for_copies(const Moment& now, std::int64_t pending);

  void fence_for_products(const Moment& now);
  void begin_products(const Moment& now);
  void read_for_product(const Moment& now, const SharedArray& array, std::int64_t index, Where where);
  float* sums_of_product(const Moment& now, float* registers, std::size_t count, bool adds, Where where);
  void commit_products(const Moment& now);
  void wait_for_products(const Moment& now, std::int64_t pending);

  /// Returns whether the four warps of each warpgroup have begun the same number of products.
  bool warpgroups_agree() const;
  /// Ends the kernel for a thread.
  void end_thread(const Moment& now);

 private:
  struct DeclaredArray {
    SharedArray array;
    Where where;
    std::vector<std::byte> bytes;
    std::vector<SharedUse> uses;
  };
  struct Copy {
    const SharedArray* array;
    std::int64_t index;
    const void* from;
    std::size_t bytes;
    std::int64_t group;
  };
  struct Sums {
    float* registers;
    std::vector<float> values;
    std::int64_t group;
  };
  struct Multiplied {
    SharedUse* use;
    std::int64_t group;
  };
  /// A thread's pending copies and products, and the groups that it has committed.
  struct UnderWay {
    std::vector<Copy> copies;
    std::int64_t copy_groups = 0;
    std::vector<std::uint32_t> fences;  // the block's barriers before each fence_for_products()
    bool may_multiply = false;
    std::vector<Sums> sums;
    std::vector<Multiplied> multiplied;
    std::int64_t product_groups = 0, products = 0;
  };

  UnderWay& of(const Moment& now) { return threads_[static_cast<std::size_t>(now.thread)]; }
  SharedUse& checked(const Moment& now, const SharedArray& array, std::int64_t index, const Where& where) const {
    if (index < 0 || index >= array.count) refuse_index(now, array, index, where);
    return array.uses[index];
  }
  void refuse_index(const Moment& now, const SharedArray& array, std::int64_t index, const Where& where) const;
  void written_now(const Moment& now, SharedUse& use) const;
  void refuse_under_way(const char* verb, const SharedUse& use, const Moment& now, const SharedArray& array,
                        std::int64_t index, const Where& where) const;

  std::function<void(const std::string&)> fail_;
  std::vector<UnderWay> threads_;
  std::deque<DeclaredArray> arrays_;
  std::int64_t dynamic_bytes_ = 0, bytes_ = 0, most_ = 0;
};

}  // namespace poolgrad::emulation
