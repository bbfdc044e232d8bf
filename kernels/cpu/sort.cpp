#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/workspace.h"
#include "kernels/functors/order.h"

namespace poolgrad::kernels {

std::int64_t on_cpu::argsort_scratch(const View& x) { return x.count() * static_cast<std::int64_t>(sizeof(Placed)); }

void on_cpu::argsort(Stream stream, const View& out, const View& x, bool descending) {
  const Rows shape(x);
  const std::int64_t n = shape.columns, kept = Rows(out).columns;
  const Workspace<Placed> workspace(stream, "argsort", x.count());
  with_compute_type(x.dtype, [&]<class T>(T) {
    const Source<T> source(x);
    const Sink<std::int64_t> sink(out);
    parallel_rows(shape, [&](std::int64_t row) {
      alignas(64) T buffer[block_size];
      alignas(64) std::int64_t places[block_size];
      Placed* const first = workspace.data() + row * n;
      for (std::int64_t begin = 0; begin < n; begin += block_size) {
        const std::int64_t count = std::min(block_size, n - begin);
        const T* block = source.read(row * n + begin, count, buffer);
        for (std::int64_t i = 0; i < count; ++i) first[begin + i] = {order_key(block[i], descending), begin + i};
      }
      if (kept < n) std::nth_element(first, first + kept, first + n);
      std::sort(first, first + kept);
      for (std::int64_t begin = 0; begin < kept; begin += block_size) {
        const std::int64_t count = std::min(block_size, kept - begin);
        for (std::int64_t i = 0; i < count; ++i) places[i] = first[begin + i].place;
        sink.finish(row * kept + begin, count, places);
      }
    });
  });
}

}  // namespace poolgrad::kernels
