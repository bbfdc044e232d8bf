// Gathers, one thread per read access, and detection of invalid indices. scatter.cu has the scatters.
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <new>

#include "allocator/error.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/functors/indexing.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using cuda::Elements;

// Out-of-range indices.

/// A fault that the host has not reported yet.
struct FaultRecord {
  int found = 0;
  IndexFault fault;
};

/// Returns the fault record of a device, in host memory with process lifetime. Returns nullptr if none exists and
/// `make` is false.
FaultRecord* fault_record(int device, bool make) {
  static std::mutex mutex;
  static auto* const records = new std::map<int, FaultRecord*>;  // never destroyed, nor are its records
  const std::lock_guard lock(mutex);
  FaultRecord*& record = (*records)[device];
  if (record == nullptr && make) record = new (cuda::shared_with_host(device, sizeof(FaultRecord))) FaultRecord;
  return record;
}

/// A thread that finds an invalid index reports it only if it is the first one; at most one thread reports. The kernel
/// drops later faults until the host has read the first.
__global__ void find_index_fault(const __grid_constant__ Elements<1> index, const __grid_constant__ IndexFault fault,
                                 FaultRecord* record) {
  for (std::int64_t i = cuda::grid_thread(); i < index.count; i += cuda::grid_threads()) {
    const std::int64_t value = cuda::index_at(index, i);
    if (value >= fault.lowest && value < fault.limit) continue;
    std::int64_t before = 0;
    for (; before < i; ++before) {
      const std::int64_t earlier = cuda::index_at(index, before);
      if (earlier < fault.lowest || earlier >= fault.limit) break;
    }
    if (before < i || cuda::is_set(&record->found)) return;
    IndexFault& told = record->fault;
    told.op = fault.op;
    told.what = fault.what;
    told.limit = fault.limit;
    told.lowest = fault.lowest;
    told.rank = fault.rank;
    for (int d = 0; d < fault.rank; ++d) told.shape[d] = fault.shape[d];
    told.value = value;
    told.position = i;
    cuda::set_flag(&record->found);
    return;
  }
}

// Gathers.

template <class Word>
__global__ void gather_elements(const __grid_constant__ Elements<3> all, std::int64_t stride, std::int64_t limit) {
  for (std::int64_t i = cuda::grid_thread(); i < all.count; i += cuda::grid_threads()) {
    std::int64_t offset[3];
    cuda::offsets_at(all, i, offset);
    const std::int64_t at = wrapped(reinterpret_cast<const std::int64_t*>(all.data[2])[offset[2]], limit);
    reinterpret_cast<Word*>(all.data[0])[offset[0]] =
        is_within(at, limit) ? reinterpret_cast<const Word*>(all.data[1])[offset[1] + at * stride] : Word{};
  }
}

/// A word of 16 raw bytes.
struct alignas(16) Word16 {
  std::uint64_t half[2];
};

/// Copies a slice from index * stride of the second operand to the offset of `lead`'s first operand. All offsets count
/// Words.
template <class Word, class Index>
__global__ void select_words(const __grid_constant__ Elements<2> slice, const __grid_constant__ Elements<2> lead,
                             std::int64_t stride, std::int64_t limit) {
  const std::int64_t n = slice.count * lead.count;
  for (std::int64_t t = cuda::grid_thread(); t < n; t += cuda::grid_threads()) {
    const Index i = static_cast<Index>(t) / static_cast<Index>(slice.count);
    std::int64_t place[2], within[2];
    cuda::offsets_of<Index>(lead, i, place);
    cuda::offsets_of<Index>(slice, static_cast<Index>(t) - i * static_cast<Index>(slice.count), within);
    const std::int64_t at = wrapped(reinterpret_cast<const std::int64_t*>(lead.data[1])[place[1]], limit);
    const Word* const from = reinterpret_cast<const Word*>(slice.data[1]) + within[1] + at * stride;
    cuda::store_whole(reinterpret_cast<Word*>(slice.data[0]) + place[0] + within[0],
                      is_within(at, limit) ? cuda::load_whole<Word>(from) : Word{});
  }
}

/// Contiguous slices are copied in words of 16 bytes, or the largest word that all addresses allow.
void select_slices(const char* op, Stream stream, const View& out_slice, const View& lead_out, const View& x_slice,
                   std::int64_t stride, std::int64_t limit, const View& index) {
  if (out_slice.count() == 0 || index.count() == 0) return;
  Elements<2> slice = cuda::elements_of<std::uint8_t>(std::array{out_slice, x_slice});
  Elements<2> lead = cuda::elements_of<std::uint8_t>(std::array{lead_out, index});
  for (const View& view : {out_slice, index}) cuda::check_operand(op, stream, view.data);
  if (limit > 0) cuda::check_operand(op, stream, x_slice.data);
  const auto size = static_cast<std::int64_t>(size_of(x_slice.dtype));
  std::int64_t word = size;
  const bool dense = slice.rank == 0 || (slice.rank == 1 && slice.strides[0][0] == 1 && slice.strides[1][0] == 1);
  const auto fits = [&](std::int64_t bytes) {
    bool whole = slice.count * size % bytes == 0 && stride * size % bytes == 0;
    for (const std::byte* data : slice.data)
      whole &= reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
    for (int d = 0; d < lead.rank; ++d) whole &= lead.strides[0][d] * size % bytes == 0;
    return whole;
  };
  if (dense)
    for (std::int64_t bytes = 16; bytes > word; bytes /= 2)
      if (fits(bytes)) word = bytes;
  if (const std::int64_t elements = word / size; elements > 1) {
    slice.count /= elements;
    slice.rank = 1;
    slice.shape[0] = slice.count;
    slice.strides[0][0] = slice.strides[1][0] = 1;
    for (int d = 0; d < lead.rank; ++d) lead.strides[0][d] /= elements;
    stride /= elements;
  }
  const std::int64_t n = slice.count * lead.count;
  const bool narrow = slice.narrow && lead.narrow && n <= std::numeric_limits<std::int32_t>::max();
  const auto run = [&]<class Word>(Word) {
    cuda::launch(op, narrow ? &select_words<Word, std::int32_t> : &select_words<Word, std::int64_t>,
                 grid_stride_shape(n), stream, slice, lead, stride, limit);
  };
  switch (word) {
    case 1: return run(std::uint8_t{});
    case 2: return run(std::uint16_t{});
    case 4: return run(std::uint32_t{});
    case 8: return run(std::uint64_t{});
    default: return run(Word16{});
  }
}

}  // namespace

void cuda::throw_index_fault(int device) {
  FaultRecord* const record = fault_record(device, /*make=*/false);
  if (record == nullptr) return;
  static auto& mutex = *new std::mutex;  // one thread reports the fault
  const std::lock_guard lock(mutex);
  const std::atomic_ref<int> found(record->found);
  if (found.load(std::memory_order_acquire) == 0) return;
  const std::string text = record->fault.describe();
  found.store(0, std::memory_order_release);
  throw IndexError(text);
}

void on_cuda::check_indices(Stream stream, const char* op, const char* what, const View& index, std::int64_t limit,
                            std::int64_t lowest) {
  const auto all = cuda::elements_of<std::uint64_t>(std::array{index}, /*row_major=*/true);
  if (all.count == 0) return;
  cuda::check_operand(op, stream, index.data);
  cuda::launch(op, &find_index_fault, grid_stride_shape(all.count), stream, all,
               IndexFault(op, what, index, limit, lowest), fault_record(stream.device.index, /*make=*/true));
}

void on_cuda::gather(Stream stream, const View& out, const View& x, int dim, const View& index) {
  View flat = x;  // x in the shape of the index, with stride 0 along `dim`
  std::copy_n(index.shape, index.rank, flat.shape);
  flat.strides[dim] = 0;
  const auto all = cuda::elements_of<std::uint64_t>(std::array{out, flat, index});
  if (all.count == 0) return;
  for (const View& view : {out, index}) cuda::check_operand("gather", stream, view.data);
  if (x.shape[dim] > 0) cuda::check_operand("gather", stream, x.data);
  with_word(x.dtype, [&]<class Word>(Word) {
    cuda::launch("gather", &gather_elements<Word>, grid_stride_shape(all.count), stream, all, x.strides[dim],
                 x.shape[dim]);
  });
}

void on_cuda::index_select(Stream stream, const View& out, const View& x, int dim, const View& index) {
  View lead = index;
  lead.strides[0] = out.strides[dim];
  select_slices("index_select", stream, without(out, dim), lead, without(x, dim), x.strides[dim], x.shape[dim], index);
}

void on_cuda::embedding(Stream stream, const View& out, const View& table, const View& index) {
  View lead = out;
  lead.rank = index.rank;
  select_slices("embedding", stream, last_dimension(out), lead, without(table, 0), table.strides[0], table.shape[0],
                index);
}

}  // namespace poolgrad::kernels
