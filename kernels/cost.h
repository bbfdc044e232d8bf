// Bytes moved and operations computed by a kernel call, from its operands, for simulated devices and profiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/kernels.h"
#include "kernels/dispatch.h"
#include "kernels/gemm.h"
#include "kernels/optimizer.h"
#include "kernels/schedule/tiles.h"

namespace poolgrad::kernels {

/// Roofline model of simulated devices: a launch takes 4 us, then the slower of memory traffic and arithmetic decides.
/// `bytes` and `operations` are rates per nanosecond. Equal work takes equal time on every host.
struct Roofline {
  double launch = 4000, bytes = 3350, operations = 50000;

  constexpr double nanoseconds(const Cost& cost) const {
    return launch + std::max(cost.bytes / bytes, cost.operations / operations);
  }
};

inline Cost cost_of(const Gemm& g) {
  const auto m = static_cast<double>(g.m), n = static_cast<double>(g.n), k = static_cast<double>(g.k);
  const auto batch = static_cast<double>(g.batch), element = static_cast<double>(size_of(g.dtype));
  const double of_a = m * k * (g.stride_a ? batch : 1.0), of_b = k * n * (g.stride_b ? batch : 1.0);
  const double of_c = m * n * batch * (g.beta == 0.0 ? 1.0 : 2.0);
  return {element * (of_a + of_b) + static_cast<double>(size_of(g.out_dtype())) * of_c, 2.0 * m * n * k * batch};
}

/// Reads every operand and writes all but the gradient.
inline Cost cost_of(const UpdateOperands& x, std::size_t states) {
  Cost cost = traffic(x.parameter, x.parameter, x.gradient);
  for (std::size_t k = 0; k < states; ++k) cost.bytes += 2 * traffic(x.state[k]).bytes;
  return cost;
}

/// Operations of `products` products of queries, keys and values over the pairs that the schedule keeps.
inline double attention_operations(const AttentionSchedule& schedule, double products, const View& q, const View& v) {
  const double share = static_cast<double>(q.shape[0] * q.shape[2]) / static_cast<double>(schedule.heads);
  return products * static_cast<double>(q.shape[3] + v.shape[3]) * share * kept_pairs(schedule);
}

inline Cost cost_of(Stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
                    const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
                    const View& carry_lse) {
  Cost cost = traffic(q, k, v, out, lse, carry_out, carry_lse, scores.bias);
  cost.operations = attention_operations(schedule, 2.0, q, v);
  return cost;
}
inline Cost cost_of(Stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
                    const View& k, const View& v, const View& lse, const View& delta, const View& grad_out,
                    const AttentionGradients& g) {
  Cost cost = traffic(q, k, v, lse, delta, grad_out, g.dq, g.dk, g.dv, g.dbias, scores.bias);
  cost.operations = attention_operations(schedule, 5.0, q, v);
  return cost;
}

/// Products of every position with a state, with the keys and with the values of its chunk.
struct DeltaRuleProducts {
  double states, keys, values;
};
inline Cost delta_rule_cost(const DeltaRule& x, const DeltaRuleProducts& count, const auto&... others) {
  Cost cost = traffic(x.q, x.k, x.v, x.beta, x.gate, x.state, others...);
  const auto positions = static_cast<double>(x.q.shape[0] * x.q.shape[1] * x.q.shape[2]);
  const auto k = static_cast<double>(x.q.shape[3]), v = static_cast<double>(x.v.shape[3]);
  const auto chunk = static_cast<double>(std::min(x.chunk, x.q.shape[1]));
  cost.operations = 2.0 * positions * (count.states * k * v + chunk * (count.keys * k + count.values * v));
  return cost;
}
inline Cost cost_of(Stream, const DeltaRule& rule, const View& out, const View& last) {
  return delta_rule_cost(rule, rule.delta ? DeltaRuleProducts{3, 2, 2} : DeltaRuleProducts{2, 1, 1}, out, last);
}
inline Cost cost_of(Stream, const DeltaRule& rule, const View& grad_out, const View& grad_last,
                    const DeltaRuleGradients& g) {
  return delta_rule_cost(rule, rule.delta ? DeltaRuleProducts{8, 7, 5} : DeltaRuleProducts{5, 3, 2}, grad_out,
                         grad_last, g.dq, g.dk, g.dv, g.dbeta, g.dgate, g.dstate);
}

}  // namespace poolgrad::kernels
