// Shared by the tests of attention modules: operands, a run forward and backward, and comparisons of two modules or of
// a module with the definition (oracle.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "attention/modules/attention_core.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/attention/oracle.h"

namespace poolgrad::attention::testing_support {

struct ModuleSizes {
  std::int64_t batch = 2, queries = 13, keys = 13, heads = 4, kv_heads = 4, width = 5, value_width = 3;
};
inline ModuleSizes of_length(std::int64_t length) { return {.queries = length, .keys = length}; }

struct ModuleInputs {
  Tensor q, k, v, grad_out;
};
inline ModuleInputs make_inputs(const ModuleSizes& s, DType dtype = DType::f64, std::uint64_t seed = 5) {
  Generator generator(seed);
  const auto normal = [&](const Shape& shape) { return randn(shape, {.dtype = dtype}, generator); };
  return {normal({s.batch, s.queries, s.heads, s.width}), normal({s.batch, s.keys, s.kv_heads, s.width}),
          normal({s.batch, s.keys, s.kv_heads, s.value_width}), normal({s.batch, s.queries, s.heads, s.value_width})};
}

/// The result and the gradients of <grad_out, result>.
struct ModuleOutcome {
  Tensor out, dq, dk, dv;
};
inline ModuleOutcome run(AttentionCore& core, const ModuleInputs& inputs, const AttendOptions& call = {}) {
  const Tensor q = inputs.q.copy().set_requires_grad(), k = inputs.k.copy().set_requires_grad(),
               v = inputs.v.copy().set_requires_grad();
  const Tensor out = core(q, k, v, call);
  out.backward(inputs.grad_out);
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

/// "" if all parts agree within `tolerance` times the largest element of each (at least 1).
inline std::string difference(const ModuleOutcome& got, const ModuleOutcome& want, double tolerance = 1e-11) {
  std::ostringstream text;
  const auto compare = [&](const char* name, const Tensor& a, const Tensor& b) {
    if (!a.defined() || !b.defined() || a.shape() != b.shape()) {
      text << name << " is missing or of another shape; ";
      return;
    }
    double largest = 1;
    for (const double x : b.to_vector<double>()) largest = std::max(largest, std::abs(x));
    const double distance = max_difference(a, b);
    if (!(distance <= tolerance * largest)) text << name << " differs by " << distance << "; ";
  };
  compare("out", got.out, want.out);
  compare("dq", got.dq, want.dq);
  compare("dk", got.dk, want.dk);
  compare("dv", got.dv, want.dv);
  return text.str();
}

/// The definition for multiplicities m and scale 1 / sqrt(D).
inline ModuleOutcome defined(const ModuleInputs& inputs, const oracle::Multiplicity& m, bool causal = false,
                             const Tensor& bias = {}) {
  oracle::Problem problem;
  problem.q = oracle::Array(inputs.q);
  problem.k = oracle::Array(inputs.k);
  problem.v = oracle::Array(inputs.v);
  problem.m = causal ? oracle::both(m, oracle::causal()) : m;
  problem.scale = 1.0 / std::sqrt(static_cast<double>(inputs.q.size(3)));
  problem.q_offset = inputs.k.size(1) - inputs.q.size(1);
  if (bias.defined()) problem.bias = oracle::Array(bias);
  const oracle::Result result = oracle::attend(problem);
  const oracle::Gradients gradients = oracle::gradients(problem, oracle::Array(inputs.grad_out), {});
  return {result.out.tensor(inputs.grad_out.shape()), gradients.q.tensor(inputs.q.shape()),
          gradients.k.tensor(inputs.k.shape()), gradients.v.tensor(inputs.v.shape())};
}

/// "" if the module agrees with the definition, forward and backward.
inline std::string against_definition(AttentionCore& core, const ModuleSizes& sizes, const oracle::Multiplicity& m,
                                      bool causal = false) {
  const ModuleInputs inputs = make_inputs(sizes);
  return difference(run(core, inputs, {.causal = causal}), defined(inputs, m, causal));
}

/// "" if both modules agree, forward and backward.
inline std::string against_each_other(AttentionCore& a, AttentionCore& b, const ModuleSizes& sizes,
                                      const AttendOptions& call = {}) {
  const ModuleInputs inputs = make_inputs(sizes);
  return difference(run(a, inputs, call), run(b, inputs, call));
}

}  // namespace poolgrad::attention::testing_support
