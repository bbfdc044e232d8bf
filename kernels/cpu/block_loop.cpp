#include "kernels/cpu/block_loop.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/strided.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {

template <class T>
void for_each_block(std::span<const View> outputs, std::span<const View> inputs, BlockFunction<T> function, double a,
                    double b) {
  constexpr std::int64_t blocks_per_range = 8;
  std::array<View, 5> storage;
  const std::span views(storage.data(), outputs.size() + inputs.size());
  std::copy(outputs.begin(), outputs.end(), views.begin());
  std::copy(inputs.begin(), inputs.end(), views.begin() + static_cast<std::ptrdiff_t>(outputs.size()));
  const std::int64_t n = views[0].count();
  if (n == 0) return;
  sort_dimensions(views);
  merge_dimensions(views);
  std::array<Sink<T>, 2> sinks;
  std::array<Source<T>, 3> sources;
  for (std::size_t i = 0; i < outputs.size(); ++i) sinks[i] = Sink<T>(views[i]);
  for (std::size_t i = 0; i < inputs.size(); ++i) sources[i] = Source<T>(views[outputs.size() + i]);
  parallel_ranges(n, blocks_per_range * block_size, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) T buffers[5][block_size];
    Block<T> block{};
    block.a = static_cast<T>(a);
    block.b = static_cast<T>(b);
    for (; begin < end; begin += block.count) {
      block.count = std::min(block_size, end - begin);
      for (std::size_t i = 0; i < inputs.size(); ++i) block.in[i] = sources[i].read(begin, block.count, buffers[i]);
      for (std::size_t i = 0; i < outputs.size(); ++i) block.out[i] = sinks[i].target(begin, buffers[3 + i]);
      function(block);
      for (std::size_t i = 0; i < outputs.size(); ++i) sinks[i].finish(begin, block.count, block.out[i]);
    }
  });
}

template void for_each_block(std::span<const View>, std::span<const View>, BlockFunction<float>, double, double);
template void for_each_block(std::span<const View>, std::span<const View>, BlockFunction<double>, double, double);
template void for_each_block(std::span<const View>, std::span<const View>, BlockFunction<std::int64_t>, double, double);

}  // namespace poolgrad::kernels
