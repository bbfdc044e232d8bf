#include "attention/modules/heads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <string>

#include "allocator/error.h"
#include "autograd/engine/record.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "tensor/grad_mode.h"

namespace poolgrad::attention {

namespace {

constexpr int head_dimension = 2;

/// Returns whether `b` begins at the end of `a`.
bool side_by_side(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || a.dim() != 4 || b.dim() != 4 || !a.shares_storage_with(b)) return false;
  if (a.dtype() != b.dtype() || a.strides() != b.strides()) return false;
  Shape expected = a.shape();
  expected[head_dimension] = b.shape()[head_dimension];
  const Geometry &left = a.geometry(), &right = b.geometry();
  return expected == b.shape() &&
         right.offset == left.offset + left.shape[head_dimension] * left.strides[head_dimension];
}

Tensor head_range(const Tensor& x, std::int64_t begin, std::int64_t end) {
  return x.alias(sliced(x.geometry(), head_dimension, begin, end, 1));
}

}  // namespace

std::vector<Tensor> split_heads(const Tensor& packed, const std::vector<std::int64_t>& heads) {
  if (packed.dim() != 4 || packed.size(head_dimension) != std::accumulate(heads.begin(), heads.end(), std::int64_t{0}))
    fail<ShapeError>("split_heads", fmt::format("not (B, T, {}, D)", fmt::join(heads, " + ")), {{"packed", packed}});
  std::vector<Tensor> parts;
  std::vector<std::int64_t> starts;
  std::int64_t start = 0;
  for (const std::int64_t count : heads) {
    starts.push_back(start);
    parts.push_back(head_range(packed, start, start + count));
    start += count;
  }
  if (wants_gradient({packed}))
    record("split_heads", {packed}, parts, [shape = packed.shape(), starts](const BackwardCall& call) -> Gradients {
      std::vector<Tensor> gradients;
      for (std::size_t i = 0; i < starts.size(); ++i) gradients.push_back(call.gradient(static_cast<int>(i)));
      if (!grad_enabled())
        if (const Tensor whole = joined_heads(gradients); whole.defined()) return {whole};
      return {place(gradients, shape, head_dimension, starts)};
    });
  return parts;
}

Tensor joined_heads(const std::vector<Tensor>& parts) {
  if (parts.empty() || !parts[0].defined()) return {};
  Geometry whole = parts[0].geometry();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (!side_by_side(parts[i - 1], parts[i])) return {};
    whole.shape[head_dimension] += parts[i].size(head_dimension);
  }
  return parts[0].alias(whole);
}

std::vector<Tensor> empty_like_heads(const std::vector<Tensor>& likes) {
  std::vector<Tensor> result;
  for (std::size_t begin = 0, end = 1; begin < likes.size(); begin = end++) {
    Shape shape = likes[begin].shape();
    for (; end < likes.size() && side_by_side(likes[end - 1], likes[end]); ++end)
      shape[head_dimension] += likes[end].size(head_dimension);
    const Tensor buffer = Tensor::empty(shape, likes[begin].options());
    std::int64_t start = 0;
    for (std::size_t i = begin; i < end; ++i) {
      result.push_back(head_range(buffer, start, start + likes[i].size(head_dimension)));
      start += likes[i].size(head_dimension);
    }
  }
  return result;
}

}  // namespace poolgrad::attention
