// The pool's memory for attention, ahead of time and by kind. There is no second pool: both look at the allocator.
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

/// Beyond the shape of the queries.
struct BufferOptions {
  std::int64_t kv_heads = 0;     // 0: as many as heads
  std::int64_t key_length = 0;   // 0: as many as queries
  std::int64_t value_width = 0;  // 0: as wide as queries
  bool training = false;         // also what the backward needs
};

/// Makes the device's pool hold what one call of attend() with these sizes needs, its q, k and v and scratch included
/// (and with `training` the gradients of all), so that the first real call makes no device allocation. Scratch is
/// reckoned generously; a bias, a ring's messages and patterns of several passes are not. Returns the bytes of the
/// buffers without scratch: 4 tensors and lse; in training 4 more and delta. Where the pool keeps nothing
/// (AllocatorMode::none) does nothing and returns 0. Throws ValueError for sizes below 0 and heads that are not a
/// multiple of kv_heads, DTypeError for integers, ShapeError for sizes that overflow, OutOfMemoryError.
std::size_t preallocate_buffers(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t dim,
                                DType dtype = DType::f32, Device device = cpu, const BufferOptions& options = {},
                                CallSite = {});

/// The ten kinds of attention buffers, in the order of Category.
inline constexpr std::array<Category, 10> buffer_kinds{
    Category::query,   Category::key,  Category::value, Category::output, Category::scores,
    Category::weights, Category::temp, Category::comm,  Category::mask,   Category::cache};

/// Of one kind, since the pool was made. A hit is a request that was served without a device call.
struct BufferKindStatistics {
  Category kind = Category::unknown;
  std::uint64_t requests = 0, hits = 0;
  std::uint64_t bytes = 0, peak_bytes = 0, total_bytes = 0;  // now; at most; over all requests
  /// 1 where nothing was requested.
  double hit_rate() const { return requests ? static_cast<double>(hits) / static_cast<double>(requests) : 1.0; }
};

struct BufferStatistics {
  std::array<BufferKindStatistics, buffer_kinds.size()> kinds;
  /// Throws ValueError for a category that is no attention buffer.
  const BufferKindStatistics& operator[](Category kind) const;
  /// Over all kinds.
  std::uint64_t requests() const { return total().requests; }
  std::uint64_t hits() const { return total().hits; }
  double hit_rate() const { return total().hit_rate(); }

 private:
  BufferKindStatistics total() const;  // requests and hits
};

/// What the pool of a device has counted by kind; tags are MemoryScopes. All 0 in modes without statistics by category.
BufferStatistics buffer_stats(Device device = cpu);

/// A line for each kind: requests, hit rate, bytes now and at most.
std::string to_string(const BufferStatistics& statistics);

}  // namespace poolgrad::attention
