#include "attention/definition.h"

#include <limits>

#include "autograd/operators.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

namespace {

/// (B, N, Hkv, D) -> (B, Hkv * group, N, D): every key head once per query head that uses it.
Tensor per_query_head(const Tensor& x, std::int64_t group) {
  const std::int64_t batch = x.size(0), length = x.size(1), heads = x.size(2), width = x.size(3);
  const Tensor repeated = expand(unsqueeze(permute(x, {0, 2, 1, 3}), 2), {batch, heads, group, length, width});
  return reshape(repeated, {batch, heads * group, length, width});
}

/// True where the pattern does not admit the pair; (queries, keys).
Tensor excluded(const kernels::BandSchedule& schedule, std::int64_t queries, std::int64_t keys, Device device) {
  const TensorOptions options{.dtype = DType::i64, .device = device};
  const auto limit = [&](std::int64_t value) { return full({}, static_cast<double>(value), options); };
  const Tensor i = unsqueeze(arange(0, static_cast<double>(queries), 1, options), 1) + limit(schedule.q_offset);
  const Tensor distance = unsqueeze(arange(0, static_cast<double>(keys), 1, options), 0) - i;
  Tensor result = full({queries, keys}, 0.0, {.dtype = DType::boolean, .device = device});
  if (schedule.right != schedule.unbounded) result = logical_or(result, greater(distance, limit(schedule.right)));
  if (schedule.left != schedule.unbounded) result = logical_or(result, less(distance, limit(-schedule.left)));
  return result;
}

}  // namespace

Attended attend_by_definition(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern, double scale,
                              Alignment alignment) {
  const DType dtype = q.dtype(), compute = compute_dtype(dtype);
  const std::int64_t group = q.size(2) / k.size(2);
  const Tensor queries = permute(to(q, compute), {0, 2, 1, 3});
  const Tensor keys = per_query_head(to(k, compute), group), values = per_query_head(to(v, compute), group);
  const Tensor mask = excluded(pattern.schedule(q.size(1), k.size(1), alignment), q.size(1), k.size(1), q.device());
  const Tensor scores =
      masked_fill(matmul(queries, transpose(keys, 2, 3)) * scale, mask, -std::numeric_limits<double>::infinity());
  const Tensor out = permute(matmul(softmax(scores, -1), values), {0, 2, 1, 3});
  return {to(out, dtype), log_sum_exp(scores, -1)};
}

}  // namespace poolgrad::attention
