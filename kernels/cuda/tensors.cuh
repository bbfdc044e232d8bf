// Processes many tensors in one launch. A table of tensors is a kernel argument, and each block finds its piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/elements.cuh"
#include "kernels/view.h"

namespace poolgrad::kernels::cuda {

/// Tensors of one launch, cut into pieces; block b has piece b - first_block of its tensor. All operands of a tensor
/// have the same number of elements, without gaps.
template <std::size_t Operands>
struct TensorTable {
  static constexpr int capacity = Operands <= 4 ? 64 : 48;  // fits in 4 KiB of arguments
  struct Entry {
    std::byte* data[Operands];
    std::int64_t count, first_block;
    DType dtype;  // of the first operand
    bool packed;  // every operand is aligned for packs of its elements
  };
  Entry entry[static_cast<std::size_t>(capacity)];
  int size = 0;
  std::int64_t blocks = 0;

  bool is_full() const { return size == capacity; }
  /// Adds a tensor; ignores one without elements. `width` elements make a pack. Throws DeviceError, `[op] ...`, for an
  /// operand outside device memory.
  void add(const char* op, Stream stream, const View* const (&operands)[Operands], std::int64_t piece, int width) {
    const std::int64_t count = operands[0]->count();
    if (count == 0) return;
    Entry& made = entry[size++];
    made = {{}, count, blocks, operands[0]->dtype, true};
    for (std::size_t k = 0; k < Operands; ++k) {
      check_operand(op, stream, operands[k]->data);
      made.data[k] = operands[k]->template as<std::byte>();
      const std::size_t access =
          std::min<std::size_t>(16, size_of(operands[k]->dtype) * static_cast<std::size_t>(width));
      made.packed &= reinterpret_cast<std::uintptr_t>(made.data[k]) % access == 0;
    }
    blocks += (count + piece - 1) / piece;
  }
  POOLGRAD_HD const Entry& of_block(std::int64_t block) const {
    int own = 0, after = size;  // binary search for the last entry with first_block <= block
    while (after - own > 1) {
      const int middle = (own + after) / 2;
      if (entry[middle].first_block <= block)
        own = middle;
      else
        after = middle;
    }
    return entry[own];
  }
};

}  // namespace poolgrad::kernels::cuda
