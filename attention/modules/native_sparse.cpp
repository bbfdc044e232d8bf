#include "attention/modules/native_sparse.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/modules/heads.h"
#include "attention/modules/past_keys.h"
#include "autograd/operators.h"
#include "autograd/operators/shared.h"
#include "kernels/parallel.h"
#include "tensor/grad_mode.h"

namespace poolgrad::attention {

namespace {

constexpr std::int64_t queries_at_a_time = 256;

NativeSparseOptions checked(const NativeSparseOptions& o, const MultiheadOptions& options) {
  if (o.block < 1 || o.count < 1 || o.window < 1)
    throw ValueError(fmt::format("[native_sparse] sizes must be at least 1: block {}, count {}, window {}", o.block,
                                 o.count, o.window));
  if (options.alibi || options.sinks || options.shared_keys)
    throw ValueError("[native_sparse] ALiBi, sinks and shared keys are not supported");
  return o;
}

/// (B, T, H, D) -> (B, T / block, H, D): means of whole blocks.
Tensor whole_means(const Tensor& x, std::int64_t block) {
  return block_means(slice(x, 1, 0, x.size(1) / block * block), block);
}

/// Sets the bits [begin, end).
void set_bits(std::span<std::uint64_t> words, std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t next = std::min(end, (at / 64 + 1) * 64), count = next - at;
    const std::uint64_t ones = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
    words[static_cast<std::size_t>(at / 64)] |= ones << (at % 64);
    at = next;
  }
}

}  // namespace

NativeSparseAttention::NativeSparseAttention(std::int64_t width, std::int64_t heads, const NativeSparseOptions& sparse,
                                             const MultiheadOptions& options, const nn::ParameterOptions& parameters,
                                             CallSite)
    : MultiheadShell(width, heads,
                     std::make_unique<PatternAttention>(Pattern::window(checked(sparse, options).window - 1, 0)),
                     options, parameters),
      sparse_(sparse),
      gates_(width, 3 * heads, {.bias = options.bias}, parameters) {
  add_module("gates", gates_);
}

std::vector<std::vector<std::int32_t>> NativeSparseAttention::select(const Tensor& q, const Tensor& k_means,
                                                                     const Tensor& lse, std::int64_t position) const {
  const NoGradGuard no_grad;
  const MemoryScope scope("selection", Category::temp);
  const std::int64_t batch = q.size(0), length = q.size(1), width = q.size(3), kv_heads = k_means.size(2);
  const std::int64_t group = q.size(2) / kv_heads, lists = batch * kv_heads, block = sparse_.block;
  std::vector<std::vector<std::int32_t>> result(static_cast<std::size_t>(lists * length));
  const DType exact = compute_dtype(q.dtype());
  for (std::int64_t begin = 0; begin < length; begin += queries_at_a_time) {  // never T x blocks weights at once
    const std::int64_t end = std::min(begin + queries_at_a_time, length), rows = end - begin;
    const std::int64_t before = (position + end - 1) / block;  // blocks
    std::vector<double> weights;
    if (before >= sparse_.count) {
      const auto by_kv_head = [&](const Tensor& x, std::int64_t columns) {  // (B, rows, H, columns)
        return reshape(permute(reshape(x, {batch, rows, kv_heads, group, columns}), {0, 2, 3, 1, 4}),
                       {batch, kv_heads, group * rows, columns});
      };
      const Tensor keys = permute(to(slice(k_means, 1, 0, before), exact), {0, 2, 3, 1});
      const Tensor scaled = to(slice(q, 1, begin, end), exact) * (1.0 / std::sqrt(static_cast<double>(width)));
      const Tensor scores = matmul(by_kv_head(scaled, width), keys);
      const Tensor each = exp(scores - by_kv_head(unsqueeze(slice(lse, 1, begin, end), 3), 1));
      weights = sum(reshape(each, {batch, kv_heads, group, rows, before}), {2}).to_vector<double>();
      for (double& weight : weights)
        if (std::isnan(weight)) weight = -1.0;  // NaN has no order
    }
    kernels::parallel_ranges(lists * rows, 64, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n) {
        const std::int64_t list = n / rows, row = n % rows;
        const auto own = static_cast<std::int32_t>((position + begin + row) / block);
        append_best(weights.data() + (weights.empty() ? 0 : n * before), own + 1, own, sparse_.count,
                    result[static_cast<std::size_t>(list * length + begin + row)]);
      }
    });
  }
  return result;
}

Tensor NativeSparseAttention::gated(const Tensor& x, const Projected& projected, const Tensor& k_means,
                                    const Tensor& v_means, std::int64_t position) {
  const auto& [q, k, v] = projected;
  const std::int64_t batch = q.size(0), length = q.size(1), heads = q.size(2), kv_heads = k.size(2);
  const std::int64_t group = heads / kv_heads, keys = k.size(1), block = sparse_.block;
  const std::vector<Tensor> gates =
      split(sigmoid(reshape(gates_(x), {batch, length, 3 * heads, 1})), 3, 2);  // (B, T, heads, 1)
  Tensor result = gates[2] * core().forward(q, k, v, {.causal = true});
  if (batch * length == 0) return result;
  const Attended compressed = attend_to_blocks_before(q, k_means, v_means, block, position);
  result = result + gates[0] * compressed.out;

  // Heads that share keys become rows of one head, so that a tile of rows has few queries, and the entries of a batch
  // become heads. Rows count from 0.
  const std::vector<std::vector<std::int32_t>> chosen = select(q, k_means, compressed.lse, position);
  const Pattern pattern = Pattern::where(
      length * group, keys, batch * kv_heads, [&](std::int64_t h, std::int64_t row, std::span<std::uint64_t> seen) {
        const std::int64_t at = position + row / group;
        for (const std::int32_t one : chosen[static_cast<std::size_t>(h * length + row / group)])
          set_bits(seen, one * block, std::min((one + 1) * block, at + 1));
      });
  const auto as_heads = [&](const Tensor& each) {  // (B, keys, Hkv, *)
    return reshape(permute(each, {1, 0, 2, 3}), {1, keys, batch * kv_heads, each.size(3)});
  };
  const Tensor rows = reshape(permute(reshape(q, {batch, length, kv_heads, group, q.size(3)}), {1, 3, 0, 2, 4}),
                              {1, length * group, batch * kv_heads, q.size(3)});
  const Tensor selected = attend(rows, as_heads(k), as_heads(v), pattern, {.alignment = Alignment::top_left}).out;
  const Tensor back = permute(reshape(selected, {length, group, batch, kv_heads, v.size(3)}), {2, 0, 3, 1, 4});
  return result + gates[1] * reshape(back, {batch, length, heads, v.size(3)});
}

Tensor NativeSparseAttention::attend_heads(const Tensor& x, const Projected& projected, AttendOptions call) {
  if (call.bias.defined() || call.key_padding.defined() || call.alibi.defined() || call.sinks.defined() || call.scale ||
      call.softcap || call.dropout != 0 || !call.documents.empty())
    throw ValueError(
        "[native_sparse] a bias, padding, ALiBi, sinks, scale, softcap, dropout and documents by row are not "
        "supported");
  if (projected.q.size(1) != projected.k.size(1))
    fail<ShapeError>("native_sparse", "q and k differ in length", {{"q", projected.q}, {"k", projected.k}});
  return gated(x, projected, whole_means(projected.k, sparse_.block), whole_means(projected.v, sparse_.block), 0);
}

Tensor NativeSparseAttention::forward(const Tensor& x, nn::SequenceState* state, const LayerOperands& operands) {
  if (!state) return MultiheadShell::forward(x, state, operands);
  const std::int64_t position = state->length, block = sparse_.block;
  const kernels::PositionMap positions = kernels::PositionMap::contiguous(steps_of(x), position);
  Projected projected = project(x, state, positions, operands);
  const std::int64_t length = x.size(1);
  nn::SequenceState seen;  // the state after a chunk, set once the chunk is done
  std::vector<Tensor> means;
  if (state->whole > 0) {
    seen = *state;
    const KeysInReach keys = take_chunk(seen, projected.k, projected.v, Pattern::causal());
    projected.k = keys.k;
    projected.v = keys.v;
    means = {whole_means(keys.k, block), whole_means(keys.v, block)};
  } else {
    state->tensors.resize(4);
    const std::span<Tensor> buffers(state->tensors);
    Pattern::Past all;
    const std::vector<Tensor> kv = append_positions(buffers.first(2), all, position, {projected.k, projected.v});
    projected.k = kv[0];
    projected.v = kv[1];
    const std::int64_t known = position / block;
    const auto later_means = [&](const Tensor& all_rows) {
      return whole_means(slice(all_rows, 1, known * block, all_rows.size(1)), block);
    };
    means = append_positions(buffers.last(2), all, known, {later_means(kv[0]), later_means(kv[1])});
  }
  if (operands.shared) *operands.shared = {projected.k, projected.v};
  const Tensor out = merge_heads(gated(x, projected, means[0], means[1], position));
  if (state->whole > 0)
    *state = std::move(seen);
  else
    state->length += length;
  return out;
}

}  // namespace poolgrad::attention
