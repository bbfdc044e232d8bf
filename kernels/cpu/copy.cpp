#include <algorithm>
#include <array>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/strided.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {
namespace {

constexpr std::int64_t range_size = 16 * block_size;

/// out = x of one dtype: bytes are moved, never values.
void copy_bytes(View out, View x) {
  std::array views{out, x};
  sort_dimensions(views);
  merge_dimensions(views);
  const Strided to(views[0]), from(views[1]);
  parallel_ranges(out.count(), range_size, [&](std::int64_t begin, std::int64_t end) {
    if (void* place = to.direct(begin)) return from.read(begin, end - begin, place);
    if (const void* place = from.direct(begin)) return to.write(begin, end - begin, place);
    alignas(64) std::int64_t buffer[block_size];
    for (; begin < end; begin += block_size) {
      const std::int64_t count = std::min(block_size, end - begin);
      from.read(begin, count, buffer);
      to.write(begin, count, buffer);
    }
  });
}

template <class T>
void identity(const Block<T>& block) {
  std::copy_n(block.in[0], block.count, block.out[0]);
}

template <class T>
void set_all(const Block<T>& block) {
  std::fill_n(block.out[0], block.count, block.a);
}

}  // namespace

void copy(Stream stream, View out, View x) {
  if (!runs_on_cpu(stream, "copy", traffic(out, x)) || out.count() == 0) return;
  if (out.dtype == x.dtype) return copy_bytes(out, x);
  with_compute_type(x.dtype, [&]<class T>(T) { for_each_block<T>(std::array{out}, std::array{x}, &identity<T>); });
}

void fill(Stream stream, View out, double value) {
  if (!runs_on_cpu(stream, "fill", traffic(out))) return;
  with_compute_type(out.dtype, [&]<class T>(T) { for_each_block<T>(std::array{out}, {}, &set_all<T>, value); });
}

void arange(Stream stream, View out, double start, double step) {
  if (!runs_on_cpu(stream, "arange", traffic(out))) return;
  with_compute_type(out.dtype, [&]<class T>(T) {
    const Sink<T> sink(out);
    parallel_ranges(out.count(), range_size, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) T buffer[block_size];
      for (; begin < end; begin += block_size) {
        const std::int64_t count = std::min(block_size, end - begin);
        for (std::int64_t i = 0; i < count; ++i)
          buffer[i] = static_cast<T>(start + static_cast<double>(begin + i) * step);
        sink.finish(begin, count, buffer);
      }
    });
  });
}

}  // namespace poolgrad::kernels
