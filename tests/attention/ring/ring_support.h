// Shared by the tests of rings: inputs, and a call with its gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention/ring/plan.h"
#include "attention/ring/ring.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"

namespace poolgrad::attention::testing_support {

inline constexpr Layout layouts[] = {Layout::contiguous, Layout::zigzag, Layout::striped};

struct RingSizes {
  std::int64_t batch, queries, keys, heads, kv_heads, width, value_width;
};

struct RingInputs {
  Tensor q, k, v;
};

inline RingInputs ring_inputs(const RingSizes& s, DType dtype = DType::f64, std::uint64_t seed = 5) {
  Generator generator(seed);
  const TensorOptions options{.dtype = dtype};
  return {randn({s.batch, s.queries, s.heads, s.width}, options, generator),
          randn({s.batch, s.keys, s.kv_heads, s.width}, options, generator),
          randn({s.batch, s.keys, s.kv_heads, s.value_width}, options, generator)};
}

/// The messages of keys and values, and those of their gradients, that a rank sends by docs/guides/parallel.md.
struct RingMessages {
  std::int64_t keys, gradients;
};
inline RingMessages ring_messages(const RingPlan& plan, int rank, Exchange exchange) {
  const std::vector<int>& visited = plan.visited();
  const std::int64_t steps = std::ssize(visited);
  if (exchange == Exchange::ring) return {2 * (steps - 1), steps > 1 ? steps : 0};  // forward and backward
  RingMessages messages{0, 0};
  for (const int step : visited) {
    if (step == 0) continue;
    messages.keys += 2 * plan.computes((rank + step) % plan.ranks(), step);
    messages.gradients += plan.computes(rank, step);
  }
  return messages;
}

struct RingOutcome {
  Tensor out, lse, dq, dk, dv, dsinks;
  std::vector<Tensor> all() const { return {out, lse, dq, dk, dv, dsinks}; }
};

/// Results of `attend` on fresh leaves, and the gradients for random gradients of both results.
using AttendLike = std::function<Attended(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks)>;
inline RingOutcome outcome_of(const RingInputs& in, const Tensor& sinks, const AttendLike& attend) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : {in.q, in.k, in.v, sinks}) {
    leaves.push_back(x.defined() ? x.copy() : Tensor());
    if (x.defined()) leaves.back().set_requires_grad();
  }
  const Attended got = attend(leaves[0], leaves[1], leaves[2], leaves[3]);
  Generator generator(77);
  const Tensor along = randn(got.out.shape(), got.out.options(), generator);
  const Tensor along_lse = randn(got.lse.shape(), got.lse.options(), generator);
  (to(sum(got.out * along), got.lse.dtype()) + sum(got.lse * along_lse)).backward();
  return {got.out.detach(), got.lse.detach(), leaves[0].grad(),
          leaves[1].grad(), leaves[2].grad(), sinks.defined() ? leaves[3].grad() : Tensor()};
}

inline std::string differences(const RingOutcome& got, const RingOutcome& want, double tolerance) {
  const char* names[] = {"out", "lse", "dq", "dk", "dv", "dsinks"};
  std::string text;
  for (std::size_t i = 0; i < 6; ++i) {
    const Tensor a = got.all()[i], b = want.all()[i];
    if (a.defined() != b.defined() || (a.defined() && !allclose(a, b, tolerance, tolerance)))
      text += (text.empty() ? "" : ", ") + std::string(names[i]);
  }
  return text;
}
inline bool same_bits(const RingOutcome& a, const RingOutcome& b) {
  for (std::size_t i = 0; i < 6; ++i)
    if (a.all()[i].defined() && !bit_equal(a.all()[i], b.all()[i])) return false;
  return true;
}

inline std::string text_of(const RingSizes& s) {
  return std::to_string(s.queries) + " x " + std::to_string(s.keys) + ", heads " + std::to_string(s.heads) + ":" +
         std::to_string(s.kv_heads);
}

}  // namespace poolgrad::attention::testing_support
