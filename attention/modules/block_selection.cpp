#include "attention/modules/block_selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/attend_call.h"
#include "autograd/autocast.h"
#include "autograd/operators.h"
#include "autograd/operators/shared.h"
#include "tensor/creation.h"
#include "tensor/generator.h"
#include "tensor/grad_mode.h"

namespace poolgrad::attention {

namespace {

constexpr std::int64_t rows_at_a_time = 256;

/// (B, N, H, D) -> (B, blocks, block, H, D), with zeros after the end.
Tensor in_blocks(const Tensor& x, std::int64_t block) {
  const std::int64_t length = x.size(1), blocks = kernels::ceil_div(length, block);
  const Tensor whole = blocks * block == length ? x : pad(x, 1, 0, blocks * block - length);
  return reshape(whole, {x.size(0), blocks, block, x.size(2), x.size(3)});
}

/// (B, blocks): the number of positions of each block that are not padding.
Tensor kept_positions(const Tensor& padding, std::int64_t block, DType dtype) {
  const Tensor kept = masked_fill(ones(padding.shape(), {dtype, padding.device()}), padding, 0.0);
  return reshape(sum(in_blocks(reshape(kept, {padding.size(0), padding.size(1), 1, 1}), block), {2}),
                 {padding.size(0), kernels::ceil_div(padding.size(1), block)});
}

/// (B, blocks): true for blocks of padding only; undefined without padding.
Tensor empty_blocks(const Tensor& padding, std::int64_t block) {
  if (!padding.defined()) return {};
  const Tensor kept = kept_positions(padding, block, DType::f32);
  return equal(kept, zeros_like(kept));
}

}  // namespace

Tensor block_means(const Tensor& x, std::int64_t block, const Tensor& padding) {
  const DType exact = compute_dtype(x.dtype());
  if (padding.defined()) {
    const Tensor kept = masked_fill(x, reshape(padding, {x.size(0), x.size(1), 1, 1}), 0.0);
    const Tensor counts = kept_positions(padding, block, exact);
    const Tensor divisors = maximum(counts, ones_like(counts));
    const Tensor sums = sum(in_blocks(to(kept, exact), block), {2});
    return to(sums / reshape(divisors, {x.size(0), divisors.size(1), 1, 1}), x.dtype());
  }
  const std::int64_t length = x.size(1), blocks = kernels::ceil_div(length, block);
  std::vector<double> factors(static_cast<std::size_t>(blocks), 1.0 / static_cast<double>(block));
  if (length % block != 0) factors.back() = 1.0 / static_cast<double>(length % block);
  const Tensor weights = to(from_data(factors, {blocks, 1, 1}, x.device()), exact);
  return to(sum(in_blocks(to(x, exact), block), {2}) * weights, x.dtype());
}

void append_best(const double* scores, std::int32_t candidates, std::int32_t own, std::int64_t count,
                 std::vector<std::int32_t>& columns) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(candidates));
  std::iota(order.begin(), order.end(), 0);
  if (count < candidates) {
    const auto better = [&](std::int32_t a, std::int32_t b) {
      if (a == own || b == own) return a == own && b != own;
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + count, order.end(), better);
    order.resize(static_cast<std::size_t>(count));
    std::sort(order.begin(), order.end());
  }
  columns.insert(columns.end(), order.begin(), order.end());
}

Attended attend_to_blocks_before(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t block,
                                 std::int64_t position, const Tensor& empty) {
  const std::int64_t batch = q.size(0), length = q.size(1), heads = q.size(2), width = v.size(3);
  const std::int64_t first = position / block, last = std::max(first, (position + length - 1) / block);
  const std::int64_t blocks = last - first + 1;
  // The queries of a block see the same keys, so they become heads of one row, in the order of the key heads. The keys
  // end before the last query's block, so that the last row lies at the last key, and causal means "before its own".
  const std::int64_t rows = blocks == 1 ? length : block, before = blocks == 1 ? 0 : position - first * block;
  const Tensor padded = rows * blocks == length ? q : pad(q, 1, before, rows * blocks - length - before);
  const Tensor folded = reshape(permute(reshape(padded, {batch, blocks, rows, heads, q.size(3)}), {0, 1, 3, 2, 4}),
                                {batch, blocks, heads * rows, q.size(3)});
  const Attended attended = attend(folded, slice(k, 1, 0, last), slice(v, 1, 0, last), Pattern::causal(),
                                   {.key_padding = empty.defined() ? slice(empty, 1, 0, last) : empty});
  const Tensor out = permute(reshape(attended.out, {batch, blocks, heads, rows, width}), {0, 1, 3, 2, 4});
  const Tensor lse = permute(reshape(attended.lse, {batch, heads, rows, blocks}), {0, 3, 2, 1});
  return {slice(reshape(out, {batch, blocks * rows, heads, width}), 1, before, before + length),
          slice(reshape(lse, {batch, blocks * rows, heads}), 1, before, before + length)};
}

BlockSelection::BlockSelection(std::int64_t head_dim, const BlockSelectionOptions& options,
                               const nn::ParameterOptions& parameters, CallSite)
    : options_(options) {
  const auto refuse = [](const char* reason, auto value) {
    throw ValueError(fmt::format("[block_selection] {}: {}", reason, value));
  };
  if (options.block_size < 16 || options.block_size % 16 != 0)
    refuse("block_size must be a positive multiple of 16", options.block_size);
  if (head_dim < 1) refuse("head_dim must be at least 1", head_dim);
  if (options.selected < 1) refuse("selected must be at least 1", options.selected);
  if (options.projection < 1) refuse("projection must be at least 1", options.projection);
  if (options.sparsity_ratio && !(*options.sparsity_ratio > 0.0 && *options.sparsity_ratio <= 1.0))
    refuse("sparsity_ratio must be in (0, 1]", std::to_string(*options.sparsity_ratio));
  const double deviation = 1.0 / std::sqrt(static_cast<double>(head_dim));
  query_weight_ = normal_parameter("query_weight", {options.projection, head_dim}, deviation, parameters);
  key_weight_ = normal_parameter("key_weight", {options.projection, head_dim}, deviation, parameters);
}

BlockSelection::Projected BlockSelection::project(const Tensor& q, const Tensor& k, const Tensor& key_padding) const {
  const Operands operands{{"q", q}, {"k", k}};
  check_floating("block_selection", operands);
  if (q.dim() != 4 || k.dim() != 4 || q.size(3) != query_weight_.size(1) || k.size(3) != query_weight_.size(1))
    fail<ShapeError>("block_selection", fmt::format("q and k must be (B, N, H, {})", query_weight_.size(1)), operands);
  if (q.size(0) != k.size(0) || q.size(1) != k.size(1))
    fail<ShapeError>("block_selection", "q and k differ in batch or length", operands);
  if (k.size(2) == 0 || q.size(2) % k.size(2) != 0)
    fail<ShapeError>("block_selection", "the heads of q are not a multiple of those of k", operands);
  check_key_padding("block_selection", q, k.size(1), key_padding);
  return {linear(q, parameter_for("linear", query_weight_, q)),
          linear(block_means(k, options_.block_size, key_padding), parameter_for("linear", key_weight_, k))};
}

Tensor BlockSelection::summary_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                         const Tensor& key_padding, CallSite) {
  const MemoryScope scope("summaries", Category::temp);
  const Projected projected = project(q, k, key_padding);
  const Tensor values = block_means(v, options_.block_size, key_padding);
  const Tensor empty = empty_blocks(key_padding, options_.block_size);
  if (causal) return attend_to_blocks_before(projected.q, projected.k, values, options_.block_size, 0, empty).out;
  return attend(projected.q, projected.k, values, Pattern::dense(), {.key_padding = empty}).out;
}

std::vector<Pattern> BlockSelection::select(const Tensor& q, const Tensor& k, bool causal, const Tensor& key_padding,
                                            CallSite) {
  const NoGradGuard no_grad;
  const MemoryScope scope("selection", Category::temp);
  const Projected projected = project(q, k, key_padding);
  const Tensor empty = empty_blocks(key_padding, options_.block_size);
  const std::int64_t batch = q.size(0), kv_heads = k.size(2), group = q.size(2) / kv_heads;
  const std::int64_t blocks = projected.k.size(1), width = options_.projection;
  const Tensor of_rows = causal ? slice(projected.q, 1, 0, q.size(1), options_.block_size)
                                : block_means(projected.q, options_.block_size, key_padding);
  const Tensor rows = sum(reshape(of_rows, {batch, blocks, kv_heads, group, width}), {3});
  const Tensor columns = permute(projected.k, {0, 2, 3, 1});
  std::vector<Pattern::BlockList> lists(static_cast<std::size_t>(batch * kv_heads), {{0}, {}});
  for (std::int64_t first = 0; first < blocks; first += rows_at_a_time) {  // never blocks x blocks scores at once
    const std::int64_t count = std::min(rows_at_a_time, blocks - first);
    const Tensor some = permute(slice(rows, 1, first, first + count), {0, 2, 1, 3});
    Tensor products = matmul(some, columns);  // (B, Hkv, count, blocks)
    if (empty.defined())
      products = masked_fill(products, reshape(empty, {batch, 1, 1, blocks}), -std::numeric_limits<double>::infinity());
    const std::vector<double> scores = products.to_vector<double>();
    for (std::size_t n = 0; n < lists.size(); ++n)
      for (std::int64_t row = first; row < first + count; ++row) {
        const std::int64_t candidates = causal ? row + 1 : blocks;
        const std::int64_t wanted =
            options_.sparsity_ratio
                ? std::max<std::int64_t>(1, std::llround(*options_.sparsity_ratio * static_cast<double>(candidates)))
                : options_.selected;
        append_best(scores.data() + (static_cast<std::int64_t>(n) * count + row - first) * blocks,
                    static_cast<std::int32_t>(candidates), static_cast<std::int32_t>(row), wanted, lists[n].columns);
        lists[n].row_begin.push_back(static_cast<std::int32_t>(lists[n].columns.size()));
      }
  }

  std::vector<Pattern> patterns;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::vector<Pattern::BlockList> of_heads;  // heads that share keys share a list
    for (std::int64_t h = 0; h < kv_heads; ++h)
      of_heads.insert(of_heads.end(), static_cast<std::size_t>(group),
                      lists[static_cast<std::size_t>(b * kv_heads + h)]);
    patterns.push_back(Pattern::blocks(options_.block_size, std::move(of_heads)));
  }
  return patterns;
}

AdaptiveBlockSparseAttention::AdaptiveBlockSparseAttention(std::int64_t head_dim,
                                                           const BlockSelectionOptions& selection,
                                                           const CoreOptions& options,
                                                           const nn::ParameterOptions& parameters, CallSite)
    : AttentionCore(options),
      selection_(head_dim, selection, parameters),
      gate_weight_(constant_parameter("gate_weight", {1, head_dim}, 0.0, parameters)),
      gate_bias_(constant_parameter("gate_bias", {1}, 0.0, parameters)) {
  add_module("selection", selection_);
}

Tensor AdaptiveBlockSparseAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const AttendOptions& call) {
  if (call.bias.defined()) throw ValueError("[adaptive_block_sparse] a bias is not supported: " + describe(call.bias));
  if (!call.documents.empty())
    throw ValueError("[adaptive_block_sparse] documents by row need a pattern of dense, causal and window");
  const Tensor coarse = selection_.summary_attention(q, k, v, call.causal, call.key_padding);
  const std::vector<Pattern> patterns = selection_.select(q, k, call.causal, call.key_padding);
  std::vector<Tensor> entries;
  RandomLog numbers;  // one range for all entries, as in one call
  if (q.size(0) == 0) entries.push_back(attend(q, k, v, Pattern::dense(), attend_options(call)).out);
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const RandomLogGuard drawn(numbers, b == 0 ? RandomLogGuard::records : RandomLogGuard::replays);
    const auto entry = [&](const Tensor& x) { return slice(x, 0, b, b + 1); };
    AttendOptions own = call;
    own.first_batch += b;
    if (own.key_padding.defined()) own.key_padding = entry(call.key_padding);
    const Pattern& pattern = patterns[static_cast<std::size_t>(b)];
    entries.push_back(attend(entry(q), entry(k), entry(v), pattern, attend_options(own)).out);
  }
  const Tensor gate = sigmoid(
      linear(q, parameter_for("linear", gate_weight_, q), parameter_for("linear", gate_bias_, q)));  // (B, N, H, 1)
  return (entries.size() == 1 ? entries[0] : cat(entries, 0)) + gate * coarse;
}

}  // namespace poolgrad::attention
