// The operator table: every differentiable operator once, with useful inputs. It generates the tests of gradients,
// dtypes, layouts and simulated devices. A test fails if the sources record an operator that the table lacks.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "autograd/gradcheck.h"
#include "tensor/creation.h"
#include "tensor/tensor.h"

namespace poolgrad::testing {

/// Inputs of one call: f64 on the CPU, row-major; integers and bools keep their dtypes.
struct OperatorCase {
  std::string label;
  std::vector<Tensor> inputs;
};

struct Operator {
  std::string name;               // unique
  std::set<std::string> records;  // the names that it records, in forward or backward
  TensorFunction run;
  std::vector<OperatorCase> cases;
  /// Multiplies the tolerance of f32, f16 and bf16: 1 for a single rounding of a well-conditioned result.
  double rounding = 1.0;
  GradcheckOptions gradcheck = {};
  /// If not empty: the reason why there are no numbers to compare.
  std::string no_numbers = {};
  /// If not empty: the error message of a second derivative.
  std::string no_second_derivative = {};
};

/// All operators of autograd/ and attention/.
const std::vector<Operator>& operator_table();
const Operator& find_operator(const std::string& name);

/// The names recorded by the sources of `folders` (record("name", ...), record_unary("name", ...)).
std::set<std::string> recorded_names(const std::vector<std::string>& folders);
/// Names that the sources record and no operator of the table claims.
std::set<std::string> missing_from(const std::vector<Operator>& table, const std::set<std::string>& recorded);
/// Names that the table claims and no source records.
std::set<std::string> unknown_in(const std::vector<Operator>& table, const std::set<std::string>& recorded);

/// Reproducible inputs.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : generator_(seed) {}
  Tensor normal(const Shape& shape) { return randn(shape, f64, generator_); }
  Tensor between(double low, double high, const Shape& shape) { return rand(shape, low, high, f64, generator_); }
  Tensor indices(std::int64_t limit, const Shape& shape) {
    return randint(0, limit, shape, {.dtype = DType::i64}, generator_);
  }
  Tensor mask(const Shape& shape) {
    return Tensor::empty(shape, {.dtype = DType::boolean}).copy_from(indices(2, shape));
  }
  static Tensor values(std::initializer_list<double> values) {
    return from_data<double>(values, {static_cast<std::int64_t>(values.size())});
  }
  static Tensor integers(std::initializer_list<std::int64_t> values) {
    return from_data<std::int64_t>(values, {static_cast<std::int64_t>(values.size())});
  }

 private:
  static constexpr TensorOptions f64{.dtype = DType::f64};
  Generator generator_;
};

using Tensors = std::vector<Tensor>;

/// An operator of one input, at normal numbers of each shape.
Operator one_input(std::string name, std::set<std::string> records, std::function<Tensor(const Tensor&)> function,
                   const std::vector<Shape>& shapes);

// Each family adds its operators.
void add_unary(std::vector<Operator>& table);
void add_binary(std::vector<Operator>& table);
void add_views(std::vector<Operator>& table);
void add_indexing(std::vector<Operator>& table);
void add_products(std::vector<Operator>& table);
void add_windows(std::vector<Operator>& table);
void add_reductions(std::vector<Operator>& table);
void add_rows(std::vector<Operator>& table);
void add_attention(std::vector<Operator>& table);

}  // namespace poolgrad::testing
