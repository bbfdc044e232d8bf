#include "attention/attend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/attend_call.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "kernels/attention.h"
#include "kernels/schedule/tiles.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

namespace {

/// Runs all passes. Passes before the last leave their result in the compute dtype.
Attended run_forward(const AttendCall& call, const AttendOperands& x, bool out_over_q = false) {
  const MemoryScope output("attend", Category::output);
  const Tensor out =
      out_over_q ? x.q.detach() : Tensor::empty({x.batch(), x.queries(), x.heads(), x.v.size(3)}, x.q.options());
  const Tensor lse = Tensor::empty({x.batch(), x.heads(), x.queries()}, {compute_dtype(x.q.dtype()), x.q.device()});
  const auto& passes = call.compiled.passes;
  Tensor carry = out;
  if (passes.size() > 1 && out.dtype() != lse.dtype()) {
    const MemoryScope scope(Category::temp);
    carry = Tensor::empty(out.shape(), lse.options());
  }
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const bool first = i == 0, last = i + 1 == passes.size();
    kernels::attention_forward(current_stream(out.device()), passes[i], call.scores_of(x), x.q.view(), x.k.view(),
                               x.v.view(), (last ? out : carry).view(), lse.view(), first ? View{} : carry.view(),
                               first ? View{} : lse.view());
  }
  if (out_over_q) Tensor(out).bump_version();
  return {out, lse};
}

}  // namespace

Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern, const AttendOptions& options,
                CallSite) {
  if (const auto cast = autocast("attend", {q, k, v}); !cast.empty())
    return attend(cast[0], cast[1], cast[2], pattern, options);
  const bool differentiable = check_attend(q, k, v, options);
  if (!options.documents.empty())
    return attend_documents(q, k, v, pattern, options, [](const auto&... packed) { return attend(packed...); });
  const AttendOperands x = prepare_operands(q, k, v, options);
  AttendCall call = prepare_call(x.q.size(3), x.queries(), x.keys(), pattern, options);
  call.compiled =
      call.pattern.compile(x.heads(), kernels::PositionMap::contiguous(x.queries(), call.q_offset), call.keys);
  if (options.out_over_q) check_out_over_q(call, x, differentiable);

  const auto [out, lse] = run_forward(call, x, options.out_over_q);
  if (!differentiable) return {out, lse};

  const std::vector<Tensor> inputs{x.q, x.k, x.v, x.bias, x.sinks};
  std::vector<SavedTensor> saved(inputs.begin(), inputs.end());
  const SavedTensor alibi(x.alibi);
  const auto shared = std::make_shared<const AttendCall>(std::move(call));
  const Recipe again = recipe(
      [shared, alibi](const std::vector<Tensor>& in) -> std::vector<Tensor> {
        const Attended result = run_forward(*shared, {in[0], in[1], in[2], in[3], alibi.unpack(), in[4]});
        return {result.out, result.lse};
      },
      [shared, each = x.batch() * (x.q.size(3) + x.v.size(3))] {
        double pairs = 0;
        for (const kernels::AttentionSchedule& pass : shared->compiled.passes) pairs += kernels::kept_pairs(pass);
        return 2.0 * pairs * static_cast<double>(each);
      });
  record("attend", inputs, {out, lse}, again,
         [call = shared, saved = std::move(saved), alibi, saved_out = SavedTensor::output(out, 0),
          saved_lse = SavedTensor::output(lse, 1)](const BackwardCall& backward) -> Gradients {
           std::vector<Tensor> back;
           for (const SavedTensor& one : saved) back.push_back(one.unpack());
           const auto operands = [slopes = alibi.unpack()](const std::vector<Tensor>& y) {
             return AttendOperands{y[0], y[1], y[2], y[3], slopes, y[4]};
           };
           if (grad_enabled()) {
             const auto definition = [&](const std::vector<Tensor>& y) -> std::vector<Tensor> {
               auto [o, l] = attend_by_definition(operands(y), *call);
               return {o, l};
             };
             return differentiable_gradients(definition, back, {backward.gradient(0), backward.gradient(1)});
           }
           const MemoryScope gradients("attend", Category::gradient);
           return attend_gradients(*call, operands(back), saved_out.unpack(), saved_lse.unpack(), backward);
         });
  return {out, lse};
}

namespace {

/// Throws ValueError unless `pattern` is a band, which is the same at every offset.
void check_band(const Pattern& pattern, std::int64_t heads, const Operands& operands) {
  const kernels::PositionMap none = kernels::PositionMap::contiguous(0);
  const Pattern::Compiled compiled = pattern.compile(heads, none, none);
  const kernels::AttentionSchedule& pass = compiled.passes.front();
  if (compiled.passes.size() > 1 || pass.document_count > 0 || pass.term_count != 1 ||
      pass.term[0].kind != kernels::AttentionTerm::Kind::all)
    fail<ValueError>(
        "attend", "documents by row need a pattern of dense, causal and window, not " + pattern.to_string(), operands);
}

Tensor in_dtype(const Tensor& x, DType dtype) { return x.defined() ? to(x, dtype) : x; }

}  // namespace

RowDocuments documents_of(const Tensor& tokens, std::int64_t separator) {
  check_dtype("documents_of", tokens, DType::i64, "tokens must be i64", {{"tokens", tokens}});
  if (tokens.dim() != 2) fail<ShapeError>("documents_of", "tokens must be (B, T)", {{"tokens", tokens}});
  const std::vector<std::int64_t> values = tokens.to_vector<std::int64_t>();
  const std::int64_t length = tokens.size(1);
  RowDocuments rows(static_cast<std::size_t>(tokens.size(0)), {0});
  for (std::int64_t i = 0; i < std::ssize(values); ++i)
    if (const std::int64_t end = i % length + 1; values[static_cast<std::size_t>(i)] == separator || end == length)
      rows[static_cast<std::size_t>(i / length)].push_back(end);
  return rows;
}

Attended attend_documents(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern,
                          AttendOptions options, const AttendFunction& attend_packed) {
  const RowDocuments rows = std::exchange(options.documents, {});
  const Operands operands{{"q", q}, {"k", k}, {"v", v}, {"bias", options.bias}};
  const std::int64_t batch = q.size(0), length = q.size(1);
  const auto refuse = [&](const std::string& reason) {
    fail<ValueError>("attend", "documents by row " + reason, operands);
  };
  if (k.size(1) != length) refuse("need as many keys as queries");
  if (options.bias.defined() || options.dropout > 0.0 || options.out_over_q || options.key_positions.gap > 0)
    refuse("take no bias, dropout, out_over_q and chunks");
  if (std::ssize(rows) != batch) refuse(fmt::format("need a list for each row, but there are {}", rows.size()));
  check_band(pattern, q.size(2), operands);
  std::vector<std::int64_t> begins{0};  // of the rows one after another
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const std::vector<std::int64_t>& own = rows[row];
    if (own.empty() || own.front() != 0 || own.back() != length || !std::ranges::is_sorted(own))
      refuse(fmt::format("must ascend from 0 to {}, but not so in row {}", length, row));
    for (const std::int64_t end : own)
      if (end > 0) begins.push_back(static_cast<std::int64_t>(row) * length + end);
  }
  const auto packed = [&](const Tensor& x) { return reshape(x, {1, batch * length, x.size(2), x.size(3)}); };
  if (options.key_padding.defined()) options.key_padding = reshape(options.key_padding, {1, batch * length});
  options.key_positions = {};
  const Attended whole =
      attend_packed(packed(q), packed(k), packed(v), pattern & Pattern::documents(std::move(begins)), options);
  const std::int64_t heads = q.size(2);
  return {reshape(whole.out, {batch, length, heads, v.size(3)}),
          permute(reshape(whole.lse, {heads, batch, length}), {1, 0, 2})};
}

AttendOperands prepare_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
  const MemoryScope scope("attend", Category::temp);
  const DType compute = compute_dtype(q.dtype());
  Tensor bias = in_dtype(options.bias, compute);
  if (options.key_padding.defined()) {
    const Tensor padding = padding_bias(options.key_padding, compute);
    bias = bias.defined() ? bias + padding : padding;
  }
  return {with_unit_rows(q),
          with_unit_rows(k),
          with_unit_rows(v),
          bias,
          in_dtype(options.alibi, compute),
          in_dtype(options.sinks, compute)};
}

Tensor padding_bias(const Tensor& padding, DType dtype) {
  if (!padding.defined()) return {};
  const MemoryScope scope("attend", Category::mask);
  const Tensor none = zeros({padding.size(0), 1, 1, padding.size(1)}, {dtype, padding.device()});
  return masked_fill(none, reshape(padding, none.shape()), -std::numeric_limits<double>::infinity());
}

AttendCall prepare_call(std::int64_t width, std::int64_t queries, std::int64_t keys, const Pattern& pattern,
                        const AttendOptions& options) {
  const std::int64_t gap_begin = options.key_positions.gap_begin, gap = options.key_positions.gap;
  AttendCall call{.pattern = pattern.causally(options.causal),
                  .compiled = {},
                  .keys = {keys, gap_begin, 0, gap_begin + gap, 1},
                  .scores = {}};
  if (gap == 0 || gap_begin == 0) call.keys = kernels::PositionMap::contiguous(keys, gap);
  if (options.alignment == Alignment::bottom_right) call.q_offset = keys + gap - queries;
  pattern.check_length(std::max(options.key_positions.length(keys), call.q_offset + queries));
  call.scores.scale = options.scale.value_or(width > 0 ? 1.0 / std::sqrt(static_cast<double>(width)) : 1.0);
  call.scores.softcap = options.softcap.value_or(0.0);
  call.scores.dropout = options.dropout;
  call.scores.first_batch = options.first_batch;
  if (options.dropout > 0.0)
    call.scores.dropout_key = (options.generator ? *options.generator : default_generator()).take(1);
  call.dq_over_out = options.dq_over_out;
  return call;
}

Tensor with_unit_rows(const Tensor& x) { return x.size(3) <= 1 || x.strides().back() == 1 ? x : contiguous(x); }

kernels::AttentionScores AttendCall::scores_of(const AttendOperands& x) const {
  kernels::AttentionScores result = scores;
  if (x.bias.defined())
    result.bias = x.bias.alias(expanded(x.bias.geometry(), {x.batch(), x.heads(), x.queries(), x.keys()})).view();
  result.alibi = view_or_none(x.alibi);
  result.sinks = view_or_none(x.sinks);
  return result;
}

// The checks of attend(), before it allocates.

namespace {

/// True if the heads of a and b are different parts of the rows of one packed tensor.
bool separate_heads(const Tensor& a, const Tensor& b) {
  const Geometry &x = a.geometry(), &y = b.geometry();
  if (x.strides != y.strides || x.shape[0] != y.shape[0] || x.shape[1] != y.shape[1]) return false;
  const std::int64_t row = std::abs(x.strides[1]), head = x.strides[2];
  const std::int64_t begin = std::min(x.offset, y.offset);
  const std::int64_t x_end = x.offset + x.shape[2] * head, y_end = y.offset + y.shape[2] * head;
  const bool apart = x_end <= y.offset || y_end <= x.offset;
  return apart && std::max(x_end, y_end) - begin <= row && std::abs(x.strides[0]) >= x.shape[1] * row;
}

}  // namespace

bool check_attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
  constexpr const char* op = "attend";
  const Operands all{{"q", q},
                     {"k", k},
                     {"v", v},
                     {"bias", options.bias},
                     {"key_padding", options.key_padding},
                     {"alibi", options.alibi},
                     {"sinks", options.sinks}};
  check_floating(op, {{"q", q}, {"k", k}, {"v", v}});
  const auto misshapen = [&](const std::string& reason) { fail<ShapeError>(op, reason, all); };
  const auto refuse = [&](const std::string& reason) { fail<ValueError>(op, reason, all); };
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4) misshapen("q, k and v must be (B, N, H, D)");
  if (q.size(0) != k.size(0) || q.size(0) != v.size(0)) misshapen("batch sizes differ");
  if (k.size(1) != v.size(1)) misshapen("k and v differ in length");
  if (k.size(2) != v.size(2)) misshapen("k and v differ in heads");
  if (q.size(3) != k.size(3)) misshapen("q and k differ in width per head");
  if (k.size(2) == 0 || q.size(2) % k.size(2) != 0) misshapen("the heads of q are not a multiple of those of k");

  const auto check_extra = [&](const char* name, const Tensor& x) {
    if (!x.defined()) return false;
    if (x.device() != q.device()) fail<DeviceError>(op, "operands live on different devices", all);
    if (!is_floating(x.dtype())) fail<DTypeError>(op, std::string(name) + " needs a floating dtype", all);
    return true;
  };
  if (check_extra("bias", options.bias)) {
    const Shape wanted{q.size(0), q.size(2), q.size(1), k.size(1)}, &own = options.bias.shape();
    bool fits = own.rank() == 4;
    for (int d = 0; d < 4 && fits; ++d) fits = own[d] == 1 || own[d] == wanted[d];
    if (!fits) misshapen("the bias must be (B or 1, Hq or 1, Nq or 1, Nk or 1)");
  }
  check_key_padding(op, q, k.size(1), options.key_padding);
  if (check_extra("alibi", options.alibi)) {
    if (options.alibi.shape() != Shape{q.size(2)}) misshapen("the ALiBi slopes must be (Hq)");
    if (options.alibi.requires_grad()) refuse("the ALiBi slopes take no gradient");
  }
  if (check_extra("sinks", options.sinks) && options.sinks.shape() != Shape{q.size(2)})
    misshapen("the sinks must be (Hq)");

  const auto as_computed = [&](double number) {  // below f64, scores and their modifiers are f32
    return compute_dtype(q.dtype()) == DType::f64 ? number : static_cast<double>(static_cast<float>(number));
  };
  if (options.scale && !std::isfinite(as_computed(*options.scale))) refuse("the scale is not finite");
  if (options.softcap && !(std::isfinite(as_computed(*options.softcap)) && as_computed(*options.softcap) > 0))
    refuse("the softcap " + std::to_string(*options.softcap) + " is not a positive number");
  if (!(options.dropout >= 0.0 && options.dropout < 1.0))
    refuse("the dropout " + std::to_string(options.dropout) + " is outside [0, 1)");
  if (const auto& at = options.key_positions; at.gap_begin < 0 || at.gap_begin > k.size(1) || at.gap < 0)
    refuse("a gap of " + std::to_string(at.gap) + " positions before key " + std::to_string(at.gap_begin) +
           " is negative or lies outside the keys");
  // Bounds positions, since sums and differences of them are compared.
  if (constexpr std::int64_t farthest = std::int64_t{1} << 60;
      options.key_positions.gap > farthest || options.key_positions.whole > farthest)
    refuse("positions of keys must be below 2^60, but reach " +
           std::to_string(std::max(options.key_positions.gap, options.key_positions.whole)));
  if (options.whole != 0) refuse("whole is only for modules that divide sequences among ranks");
  if (options.first_batch < 0) refuse("first_batch must be at least 0, but is " + std::to_string(options.first_batch));
  // kernels/functors/attention_dropout.h counts batches and heads in 16 bits each.
  constexpr std::int64_t countable = std::int64_t{1} << 16;
  if (options.dropout > 0.0 && (options.first_batch + q.size(0) > countable || q.size(2) > countable))
    refuse("dropout takes at most 65536 batches and 65536 heads");
  if (options.dq_over_out && v.size(3) != q.size(3)) refuse("dq_over_out needs values as wide as queries");
  return wants_gradient({q, k, v, options.bias, options.sinks});
}

void check_key_padding(const char* op, const Tensor& q, std::int64_t keys, const Tensor& padding) {
  if (!padding.defined()) return;
  const Operands both{{"q", q}, {"key_padding", padding}};
  if (padding.device() != q.device()) fail<DeviceError>(op, "operands live on different devices", both);
  if (padding.dtype() != DType::boolean) fail<DTypeError>(op, "the key padding must be bool", both);
  if (padding.shape() != Shape{q.size(0), keys})
    fail<ShapeError>(op, "the key padding must be (B, Nk) with Nk " + std::to_string(keys), both);
}

void check_out_over_q(const AttendCall& call, const AttendOperands& x, bool wants_gradient) {
  const auto refuse = [&](const std::string& reason) {
    fail<ValueError>("attend", "out_over_q " + reason,
                     {{"q", x.q}, {"k", x.k}, {"v", x.v}, {"bias", x.bias}, {"sinks", x.sinks}});
  };
  const std::size_t passes = call.compiled.passes.size();
  if (x.v.size(3) != x.q.size(3)) refuse("needs values as wide as queries");
  if (wants_gradient) refuse("needs operands without gradients");
  if (passes > 1)
    refuse("needs a pattern of one pass, and " + call.pattern.to_string() + " takes " + std::to_string(passes));
  if (repeats_elements(x.q.geometry())) refuse("needs queries without repeated elements");
  for (const Tensor* other : {&x.k, &x.v})
    if (other->shares_storage_with(x.q) && !separate_heads(x.q, *other))
      refuse("needs queries that share no memory with keys and values");
  for (const Tensor* other : {&x.bias, &x.alibi, &x.sinks})
    if (other->defined() && other->shares_storage_with(x.q))
      refuse("needs queries that share no memory with bias, alibi and sinks");
}

Tensor alibi_slopes(std::int64_t heads, const TensorOptions& options, CallSite) {
  if (heads < 1) throw ValueError("[alibi_slopes] heads must be at least 1, but are " + std::to_string(heads));
  std::int64_t power = 1;  // the largest power of two that is at most `heads`
  while (2 * power <= heads) power *= 2;
  const auto slope = [](std::int64_t h, std::int64_t of) {
    return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(of));
  };
  // Heads after the power of two take every other slope of the next power.
  std::vector<double> slopes;
  for (std::int64_t h = 0; h < heads; ++h)
    slopes.push_back(h < power ? slope(h, power) : slope(2 * (h - power), 2 * power));
  return to(to(from_data(slopes, {heads}), options.dtype), options.device);
}

}  // namespace poolgrad::attention
