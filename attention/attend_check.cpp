// What attend() refuses, before anything is allocated.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "allocator/error.h"
#include "attention/attend_call.h"
#include "autograd/engine/record.h"
#include "autograd/operators/check.h"

namespace poolgrad::attention {

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
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) misshapen("q, k and v must be (B, N, H, D)");
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

  if (options.scale && !std::isfinite(*options.scale)) refuse("the scale is not finite");
  if (options.softcap && !(std::isfinite(*options.softcap) && *options.softcap > 0))
    refuse("the softcap " + std::to_string(*options.softcap) + " is not a positive number");
  if (!(options.dropout >= 0.0 && options.dropout < 1.0))
    refuse("the dropout " + std::to_string(options.dropout) + " is outside [0, 1)");
  // kernels/definition/attention_dropout.h counts batches and heads in 16 bits each.
  constexpr std::int64_t countable = std::int64_t{1} << 16;
  if (options.dropout > 0.0 && (q.size(0) > countable || q.size(2) > countable))
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
  if (wants_gradient) refuse("cannot serve where a gradient is wanted");
  if (passes > 1)
    refuse("needs a pattern of one pass, and " + call.pattern.to_string() + " takes " + std::to_string(passes));
  if (repeats_elements(x.q.geometry())) refuse("needs queries of which each has a place of its own");
  for (const Tensor* other : {&x.k, &x.v})
    if (other->shares_storage_with(x.q) && !separate_heads(x.q, *other))
      refuse("needs queries apart from keys and values");
  for (const Tensor* other : {&x.bias, &x.alibi, &x.sinks})
    if (other->defined() && other->shares_storage_with(x.q)) refuse("needs queries apart from bias and sinks");
}

}  // namespace poolgrad::attention
