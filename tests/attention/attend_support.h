// Shared by the tests of attend(): every kind of pattern with its definition, operands, and the comparison of attend()
// with the definition (oracle.h).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention/attend.h"
#include "tests/attention/oracle.h"
#include "tests/threads.h"

namespace poolgrad::attention::testing_support {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr Device sim{DeviceType::sim, 0};

/// A pattern and its definition from the table of docs/reference/attention.md.
struct Case {
  std::string name;
  Pattern pattern;
  oracle::Multiplicity m;
  bool depends_on_head = false;
  std::int64_t least_heads = 1;
};
/// Every factory function and combinations by &, | and +, without causal forms.
std::vector<Case> pattern_cases();
/// The same case & causal.
Case causal(const Case& one);
/// All cases and their causal forms whose name contains `part`.
std::vector<Case> cases_with(const std::string& part);

struct Sizes {
  std::int64_t batch, queries, keys, heads, kv_heads, width, value_width;
};
std::string to_string(const Sizes& sizes);

/// Operands of a call and the gradients of its results.
struct Call {
  Tensor q, k, v;
  AttendOptions options;
  Tensor grad_out, grad_lse;  // either may be undefined
};
/// Normal random operands with scores of a few units, and random grad_out and grad_lse.
Call make_call(const Sizes& sizes, DType dtype = DType::f64, std::uint64_t seed = 11);
/// Normal random numbers of a shape.
Tensor normal(const Shape& shape, std::uint64_t seed, DType dtype = DType::f64);
/// The call with all operands rounded to `dtype`, the extra ones to its compute dtype.
Call rounded(const Call& call, DType dtype);

/// All results of a call; gradients of absent operands are undefined.
struct Outcome {
  Tensor out, lse, dq, dk, dv, dbias, dsinks;
};
std::vector<std::pair<std::string, Tensor>> parts(const Outcome& outcome);
/// Runs attend() and its backward.
Outcome attended(const Call& call, const Pattern& pattern);
/// The same on a device, with operands and results on the CPU.
Outcome attended(const Call& call, const Pattern& pattern, Device device);
/// A function with the signature of attend(), and its outcome.
using Attend = std::function<Attended(const Tensor&, const Tensor&, const Tensor&, const AttendOptions&)>;
Outcome outcome_of(const Call& call, const Attend& function);
/// The definition, pair by pair.
Outcome defined(const Call& call, const oracle::Multiplicity& m);
/// Error bound of tensor cores of a half type, in units of its relative error (oracle_rounding.h).
Outcome rounding_of(const Call& call, const oracle::Multiplicity& m, DType dtype);

/// The backward takes other code paths with many threads than with one.
using ::poolgrad::Threads;
constexpr int one_or_many[] = {1, 5};

/// "" if all parts agree within `tolerance` times the largest element of the part (at least 1); otherwise a
/// description.
std::string difference(const Outcome& got, const Outcome& want, double tolerance);
/// The same, with an additional tolerance of `unit` times the element of `rounding`.
std::string difference(const Outcome& got, const Outcome& want, double tolerance, const Outcome& rounding, double unit);

}  // namespace poolgrad::attention::testing_support
