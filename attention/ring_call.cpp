#include "attention/ring_call.h"

#include <algorithm>
#include <cmath>

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
  const AttendOptions& attend = options.attend;
  const std::int64_t offset = attend.alignment == Alignment::bottom_right ? keys - queries : 0, width = x.q.size(3);
  pattern.check_length(std::max(keys, offset + queries));
  RingCall ring{
      .plan = std::make_shared<const RingPlan>(pattern, options.layout, ranks, x.heads(), queries, keys, offset),
      .attend = {.pattern = pattern, .compiled = {}, .q_offset = offset, .dropout_key = {}}};
  ring.attend.scale = attend.scale.value_or(width > 0 ? 1.0 / std::sqrt(static_cast<double>(width)) : 1.0);
  ring.attend.softcap = attend.softcap.value_or(0.0);
  ring.attend.dropout = attend.dropout;
  if (attend.dropout > 0.0)
    ring.attend.dropout_key = (attend.generator ? *attend.generator : default_generator()).take(1);
  return ring;
}

}  // namespace poolgrad::attention
