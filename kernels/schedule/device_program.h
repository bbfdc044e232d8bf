// Programs of attention in the memory of a GPU: the arrays of a WholeProgram in one piece, copied once and kept for the
// calls that follow. A simulated device, which stands for one, is asked for the same memory.
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

/// Of what attention kernels of a GPU compute in f32 or f64: rows of a tile, and columns of the results that a block
/// has at most; wider ones are the work of several, each with the scores anew.
constexpr std::int64_t gpu_tile_rows(DType compute) { return compute == DType::f64 ? 32 : 64; }
constexpr std::int64_t gpu_result_columns(DType compute) { return compute == DType::f64 ? 32 : 128; }

/// What a forward call is cut into, from its operands and its program alone: alike on every GPU, and with it the bits
/// of results and the requests for memory.
struct GpuForwardPlan {
  std::int64_t stacked = 1;  // heads that are the rows of a tile: those of a group that have one query each
  std::int64_t chunks = 1;   // of the columns of results
  std::int64_t parts = 1;    // of the keys that a tile visits, joined afterwards: few tiles, as in decoding, share them
  std::int64_t rows = 0;     // of results, in all heads and batch entries

  /// The program is that of the host.
  static GpuForwardPlan make(const AttentionProgram& program, const View& q, const View& k, const View& v);
  /// Rows of the largest tile.
  std::int64_t rows_of_tile(const View& q) const { return stacked > 1 ? stacked : q.shape[1]; }
  /// Elements of scratch for what the parts come to: of every row the results, a maximum and a sum.
  std::int64_t partial_elements(const View& v) const { return parts > 1 ? parts * rows * (v.shape[3] + 2) : 0; }
};

/// Whether attention kernels of tensor cores are allowed (kernels/attention.h) and take the operands: one dtype, f16,
/// bf16 or f32, rows of 16 to 128 elements, a multiple of 16, at multiples of 16 bytes.
bool mma_takes(std::initializer_list<const View*> operands);

/// Some batch entries and key heads of a call.
struct CallPart {
  std::int64_t batch, batches, kv_head, kv_heads;
};

/// Of f32 they multiply numbers in three parts, of 16 bits each, in which the rows that tiles visit are laid out
/// before: those of some key heads of some batch entries at once, in 64 MiB unless one head needs more. Tests take
/// less.
inline constexpr std::int64_t split_planes = 3;
inline std::int64_t most_split_elements = std::int64_t{32} << 20;

struct GpuSplitPlan {
  std::int64_t batch = 0, kv_heads = 0;  // of the call
  std::int64_t batches_once = 1, heads_once = 1;
  std::int64_t elements = 0;  // of 16 bits, of what is laid out at once
  std::int64_t bytes() const { return 2 * elements; }

  /// Of k and v, or of q and the gradient of the results, which may have no data.
  static GpuSplitPlan make(const View& visited, const View& visited_out, std::int64_t kv_heads);
  /// f(CallPart) for all parts of the call.
  template <class F>
  void for_each_part(const F& f) const {
    for (std::int64_t b = 0; b < batch; b += batches_once)
      for (std::int64_t h = 0; h < kv_heads; h += heads_once)
        f(CallPart{b, std::min(batches_once, batch - b), h, std::min(heads_once, kv_heads - h)});
  }
};

class DeviceProgram {
 public:
  /// Copies everything that kernels read of it, lists and documents too, in the order of the stream.
  DeviceProgram(Stream stream, std::shared_ptr<const WholeProgram> whole);

  /// With pointers of the device, for kernels of this stream.
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

/// The program of a schedule in tiles of `limit` rows. Each stream has a copy of its own, of per_thread_stream that of
/// each thread, so that none waits for another; copies are kept within 64 MiB a device, and given up when its pool is
/// trimmed or short of memory. Throws ValueError for a program of more than 1 GiB.
std::shared_ptr<const DeviceProgram> program_on_device(Stream stream, const AttentionSchedule& schedule,
                                                       std::int64_t limit);

}  // namespace poolgrad::kernels
