// Attention programs in GPU memory: the arrays of a WholeProgram in one block, copied once and cached for later calls.
// A simulated GPU makes the same allocations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "kernels/cpu/workspace.h"
#include "kernels/dtype.h"
#include "kernels/schedule/tiles.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// Tile sizes of GPU kernels that compute in f32 or f64: rows per tile, and result columns per block. Several blocks
/// share wider results, and each recomputes the scores.
constexpr std::int64_t gpu_tile_rows(DType compute) { return compute == DType::f64 ? 32 : 64; }
constexpr std::int64_t gpu_result_columns(DType compute) { return compute == DType::f64 ? 32 : 128; }

/// Partition of a forward call. It depends only on operands and program, so every GPU gives the same bits and makes the
/// same allocations.
struct GpuForwardPlan {
  std::int64_t stacked = 1;  // heads stacked as rows of a tile: a group with one query each
  std::int64_t chunks = 1;   // column blocks of results
  std::int64_t parts = 1;    // parts of the keys of a tile, joined afterwards: few tiles (decoding) share keys
  std::int64_t rows = 0;     // rows of results in all heads and batch entries

  /// `program` is the host's copy.
  static GpuForwardPlan make(const AttentionProgram& program, const View& q, const View& k, const View& v);
  /// Rows of the largest tile.
  std::int64_t rows_of_tile(const View& q) const { return stacked > 1 ? stacked : q.shape[1]; }
  /// Elements of scratch for partial results: for every row of a part the results, a maximum and a sum.
  std::int64_t partial_elements(const View& v) const { return parts > 1 ? parts * rows * (v.shape[3] + 2) : 0; }
};

/// Whether tensor-core attention is allowed (kernels/attention.h) and supports the operands. It needs one dtype (f16,
/// bf16 or f32), rows of 16 to 128 elements in multiples of 16, and alignment to 16 bytes.
bool mma_takes(std::initializer_list<const View*> operands);

/// Some batch entries and key heads of a call.
struct CallPart {
  std::int64_t batch, batches, kv_head, kv_heads;
};

/// Splits f32 operands into three parts of 16 bits for tensor cores. Scratch holds the split rows of some key heads of
/// some batch entries at once: at most 64 MiB, unless one head needs more. Tests set a lower limit.
inline constexpr std::int64_t split_planes = 3;
inline std::int64_t most_split_elements = std::int64_t{32} << 20;

struct GpuSplitPlan {
  std::int64_t batch = 0, kv_heads = 0;  // of the call
  std::int64_t batches_once = 1, heads_once = 1;
  std::int64_t elements = 0;  // 16-bit elements of scratch
  std::int64_t bytes() const { return 2 * elements; }

  /// Operands: k and v, or q and the gradient of the results. The second may have no data.
  static GpuSplitPlan make(const View& visited, const View& visited_out, std::int64_t kv_heads);
  /// Calls f(CallPart) for all parts of the call.
  template <class F>
  void for_each_part(const F& f) const {
    for (std::int64_t b = 0; b < batch; b += batches_once)
      for (std::int64_t h = 0; h < kv_heads; h += heads_once)
        f(CallPart{b, std::min(batches_once, batch - b), h, std::min(heads_once, kv_heads - h)});
  }
};

class DeviceProgram {
 public:
  /// Copies all arrays, lists and documents in stream order.
  DeviceProgram(Stream stream, std::shared_ptr<const WholeProgram> whole);

  /// Program with device pointers, for kernels of this stream.
  const AttentionProgram& program() const { return program_; }
  const std::shared_ptr<const WholeProgram>& whole() const { return whole_; }
  Stream stream() const { return stream_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Stream stream_;
  std::shared_ptr<const WholeProgram> whole_;
  std::size_t bytes_;
  Workspace<std::byte> memory_;
  AttentionProgram program_;
};

/// Returns the program of a schedule in tiles of `limit` rows. Each stream has its own copy, and per_thread_stream has
/// one per thread, so no stream waits for another. The cache holds 64 MiB per device. It is cleared if the pool is
/// trimmed or short of memory. Throws ValueError for a program of more than 1 GiB.
std::shared_ptr<const DeviceProgram> program_on_device(Stream stream, const AttentionSchedule& schedule,
                                                       std::int64_t limit);

}  // namespace poolgrad::kernels
