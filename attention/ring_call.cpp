#include "attention/ring_call.h"

#include "allocator/error.h"
#include "autograd/check.h"

namespace poolgrad::attention {

bool check_ring(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
  const bool differentiable = check_attend(q, k, v, options);
  const auto refuse = [&](const char* reason) {
    fail<ValueError>("ring_attend", reason, {{"q", q}, {"k", k}, {"v", v}, {"bias", options.bias}});
  };
  if (options.bias.defined()) refuse("a bias of all pairs is not divided among ranks");
  if (options.out_over_q || options.dq_over_out) refuse("out_over_q and dq_over_out are not for rings");
  return differentiable;
}

RingCall prepare_ring(const AttendOperands& x, const Pattern& pattern, int ranks, const RingOptions& options,
                      std::int64_t queries, std::int64_t keys) {
  const AttendCall call = prepare_call(x.q.size(3), queries, keys, pattern, options.attend);
  return {std::make_shared<const RingPlan>(pattern, options.layout, ranks, x.heads(), queries, keys, call.q_offset),
          options.exchange, call};
}

}  // namespace poolgrad::attention
