#include "attention/ring/call.h"

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/check.h"

namespace poolgrad::attention {

namespace {

AttendOptions without_padding(AttendOptions options) {
  options.key_padding = {};
  return options;
}

}  // namespace

bool check_ring(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t keys, const AttendOptions& options) {
  const bool differentiable = check_attend(q, k, v, without_padding(options));
  check_key_padding("ring_attend", q, keys, options.key_padding);
  const auto refuse = [&](const char* reason) {
    fail<ValueError>("ring_attend", reason, {{"q", q}, {"k", k}, {"v", v}, {"bias", options.bias}});
  };
  if (options.bias.defined()) refuse("a bias of all pairs is not divided among ranks");
  if (options.out_over_q || options.dq_over_out) refuse("out_over_q and dq_over_out are not for rings");
  return differentiable;
}

AttendOperands ring_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
  return prepare_operands(q, k, v, without_padding(options));
}

RingCall prepare_ring(const AttendOperands& x, const Pattern& pattern, int ranks, const RingOptions& options,
                      std::int64_t queries, std::int64_t keys) {
  const AttendCall call = prepare_call(x.q.size(3), queries, keys, pattern, options.attend);
  return {RingPlan::of(pattern, options.layout, ranks, x.heads(), queries, keys, call.q_offset), options.exchange, call,
          padding_bias(options.attend.key_padding, compute_dtype(x.q.dtype()))};
}

AttendOperands RingCall::operands(const AttendOperands& own, int rank, int step, const Tensor& k,
                                  const Tensor& v) const {
  AttendOperands met = own;
  met.k = k, met.v = v;
  if (padding.defined()) {
    const MemoryScope scope("ring_attend", Category::mask);
    met.bias = plan->keys_part(padding, rank, step, 3);
  }
  return met;
}

}  // namespace poolgrad::attention
