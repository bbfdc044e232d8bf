// Preallocates the pool's memory for attention, and counts it by kind. There is no second pool: both use the allocator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "allocator/memory_scope.h"
#include "allocator/report/statistics.h"
#include "kernels/dtype.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// Sizes besides the shape of the queries.
struct BufferOptions {
  std::int64_t kv_heads = 0;     // 0: as many as heads
  std::int64_t key_length = 0;   // 0: as many as queries
  std::int64_t value_width = 0;  // 0: as wide as queries
  bool training = false;         // also for the backward pass
};

/// Makes the device's pool hold the memory of one call of attend() with these sizes, so that the first real call makes
/// no device allocation. That includes q, k, v and scratch, and with `training` all gradients. Scratch is
/// overestimated. A bias, messages of a ring and patterns of several passes are not included.
///
/// Returns the bytes of the buffers without scratch: 4 tensors and lse; in training 4 more and delta. Does nothing and
/// returns 0 if the pool caches nothing (AllocatorMode::none). Throws ValueError for sizes below 0 and heads that are
/// not a multiple of kv_heads, DTypeError for integers, ShapeError for sizes that overflow, OutOfMemoryError.
std::size_t preallocate_buffers(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t dim,
                                DType dtype = DType::f32, Device device = cpu, const BufferOptions& options = {},
                                CallSite = {});

/// The ten kinds of attention buffers, in the order of Category.
inline constexpr std::array<Category, 10> buffer_kinds{
    Category::query,   Category::key,  Category::value, Category::output, Category::scores,
    Category::weights, Category::temp, Category::comm,  Category::mask,   Category::cache};

/// Statistics of one kind since the pool was made. A hit is a request without a device call.
struct BufferKindStatistics {
  Category kind = Category::unknown;
  std::uint64_t requests = 0, hits = 0;
  std::uint64_t bytes = 0, peak_bytes = 0, total_bytes = 0;  // now; peak; sum over all requests
  /// Returns 1 without requests.
  double hit_rate() const { return requests ? static_cast<double>(hits) / static_cast<double>(requests) : 1.0; }
};

struct BufferStatistics {
  std::array<BufferKindStatistics, buffer_kinds.size()> kinds;
  /// Throws ValueError for a category that is not an attention buffer.
  const BufferKindStatistics& operator[](Category kind) const;
  /// Returns the number of requests of all kinds.
  std::uint64_t requests() const { return total().requests; }
  std::uint64_t hits() const { return total().hits; }
  double hit_rate() const { return total().hit_rate(); }

 private:
  BufferKindStatistics total() const;  // requests and hits
};

/// Returns the pool's statistics by kind, which MemoryScopes tag. All 0 in modes without statistics by category.
BufferStatistics buffer_stats(Device device = cpu);

/// Returns a line for each kind: requests, hit rate, bytes now and at the peak.
std::string to_string(const BufferStatistics& statistics);

}  // namespace poolgrad::attention
