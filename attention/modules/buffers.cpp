#include "attention/modules/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "kernels/attention.h"
#include "kernels/schedule/device_program.h"

namespace poolgrad::attention {

namespace {

/// Returns a view with a shape and no memory; it claims to be aligned.
View shaped(const Shape& shape, DType dtype) {
  alignas(64) static char nothing[64];
  View view{nothing, dtype, 4};
  for (int d = 0; d < 4; ++d) view.shape[d] = shape[d];
  return view;
}

}  // namespace

std::size_t preallocate_buffers(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t dim,
                                DType dtype, Device device, const BufferOptions& wanted, CallSite) {
  for (const std::int64_t size : {batch, length, heads, dim, wanted.kv_heads, wanted.key_length, wanted.value_width})
    if (size < 0) throw ValueError(fmt::format("[preallocate_buffers] sizes must not be negative: {}", size));
  if (!is_floating(dtype))
    throw DTypeError(fmt::format("[preallocate_buffers] not a floating dtype: {}", poolgrad::to_string(dtype)));
  if (wanted.kv_heads != 0 && heads % wanted.kv_heads != 0)
    throw ValueError(fmt::format("[preallocate_buffers] heads are not a multiple of kv_heads: heads {}, kv_heads {}",
                                 heads, wanted.kv_heads));
  if (allocator_for(device).config().mode == AllocatorMode::none) return 0;
  const std::int64_t kv_heads = wanted.kv_heads ? wanted.kv_heads : heads;
  const std::int64_t keys = wanted.key_length ? wanted.key_length : length;
  const std::int64_t value_width = wanted.value_width ? wanted.value_width : dim;
  const TensorOptions options{dtype, device}, compute{compute_dtype(dtype), device};
  const Shape q{batch, length, heads, dim}, k{batch, keys, kv_heads, dim}, v{batch, keys, kv_heads, value_width};
  const Shape out{batch, length, heads, value_width}, rows{batch, heads, length};
  const View views[] = {shaped(q, dtype), shaped(k, dtype), shaped(v, dtype), shaped(out, dtype)};

  std::vector<Tensor> held;
  const auto hold = [&](Category category, const Shape& shape, const TensorOptions& of) {
    const MemoryScope scope("preallocate", category);
    held.push_back(Tensor::empty(shape, of));
    return bytes_of(held.back());
  };
  const auto scratch = [&](std::int64_t size) { hold(Category::workspace, {size}, {DType::u8, device}); };
  const bool splits = !device.is_cpu() && dtype == DType::f32 && batch > 0 && length > 0 && kv_heads > 0 &&
                      kernels::mma_takes({&views[0], &views[1], &views[2]});
  const auto split_scratch = [&](const View& visited, const View& visited_out) {
    if (splits) scratch(kernels::GpuSplitPlan::make(visited, visited_out, kv_heads).bytes());
  };
  // Makes the requests of a call and returns their bytes. Scratch is freed after each pass unless `keep` is set.
  enum class Order { queries_first, values_first };  // compilers evaluate arguments in either order
  const auto rehearse = [&](Order order, bool keep) {
    std::vector<std::pair<Category, Shape>> operands{{Category::query, q}, {Category::key, k}, {Category::value, v}};
    if (order == Order::values_first) std::ranges::reverse(operands);
    std::size_t bytes = 0;
    for (const auto& [category, shape] : operands) bytes += hold(category, shape, options);
    bytes += hold(Category::output, out, options) + hold(Category::output, rows, compute);  // lse
    const std::size_t kept = held.size();
    if (bytes > 0) scratch(kernels::attention_forward_scratch(views[0], views[1], views[2]));
    split_scratch(views[1], views[2]);
    if (!keep) held.resize(kept);
    if (wanted.training) {
      bytes += hold(Category::gradient, out, options) + hold(Category::temp, rows, compute);  // delta
      for (const Shape& shape : {q, k, v}) bytes += hold(Category::gradient, shape, options);
      if (bytes > 0)
        for (const std::int64_t size : kernels::attention_backward_scratch(views[0], views[1], views[2])) scratch(size);
      split_scratch(views[0], views[3]);
    }
    held.clear();
    return bytes;
  };
  // Magazines keep blocks of earlier calls. In a phase they do not affect the addresses of a call's blocks.
  allocator_for(device).begin_phase();
  // All buffers at once suffice for most calls. Live blocks may lie between them, so a call is rehearsed until it needs
  // no new memory. The number of tries is bounded, because other threads may take the memory.
  constexpr int most_tries = 8;
  const std::size_t bytes = rehearse(Order::queries_first, true);
  const auto made = [&] { return allocator_for(device).statistics().num_device_alloc; };
  for (int tries = 0; tries < most_tries; ++tries) {
    const std::uint64_t before = made();
    rehearse(Order::queries_first, false);
    rehearse(Order::values_first, false);
    if (made() == before) break;
  }
  return bytes;
}

const BufferKindStatistics& BufferStatistics::operator[](Category kind) const {
  for (const BufferKindStatistics& entry : kinds)
    if (entry.kind == kind) return entry;
  throw ValueError("[buffer_stats] not an attention buffer: " + std::string(to_string(kind)));
}

BufferKindStatistics BufferStatistics::total() const {
  BufferKindStatistics all;
  for (const BufferKindStatistics& entry : kinds) all.requests += entry.requests, all.hits += entry.hits;
  return all;
}

BufferStatistics buffer_stats(Device device) {
  const Statistics counted = allocator_for(device).statistics();
  BufferStatistics result;
  for (std::size_t n = 0; n < buffer_kinds.size(); ++n) {
    const auto index = static_cast<std::size_t>(buffer_kinds[n]);
    const Gauge& bytes = counted.category_bytes[index];
    const std::uint64_t hits = counted.category_hits[index];
    result.kinds[n] = {.kind = buffer_kinds[n],
                       .requests = hits + counted.category_misses[index],
                       .hits = hits,
                       .bytes = bytes.current,
                       .peak_bytes = bytes.peak,
                       .total_bytes = bytes.allocated};
  }
  return result;
}

std::string to_string(const BufferStatistics& statistics) {
  std::string text;
  for (const BufferKindStatistics& entry : statistics.kinds)
    text += fmt::format("{:<8} {:10} requests {:6.1f} % hits  now {:<12} at most {}\n", poolgrad::to_string(entry.kind),
                        entry.requests, 100.0 * entry.hit_rate(), format_bytes(entry.bytes),
                        format_bytes(entry.peak_bytes));
  return text;
}

}  // namespace poolgrad::attention
