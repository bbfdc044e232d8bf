// Tests of a user's own operators and gradients. Every check returns a Verdict, a bool and a text, for any test
// framework. autograd/testing_gtest.h has macros for GoogleTest.
//
//   EXPECT_TRUE(check_property([](Draw& draw) {
//     const std::int64_t inner = draw.size();
//     const Tensor a = draw.tensor({draw.size(), inner}), b = draw.tensor({inner, draw.size()});
//     return gradcheck(my_product, a, b);
//   }));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/gradcheck.h"
#include "tensor/compare.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Layouts of drawn tensors: row-major; column-major; every second element of a wider memory, with NaN between (-1 for
/// integers); one row repeated with stride 0.
enum class LayoutKind { contiguous, transposed, sliced, expanded };
/// Values of drawn tensors: random numbers in a range; many of 0, 1 and -1; zeros; +-10,000, 20,000 and 30,000.
enum class ValueKind { random, ties, zeros, large };

/// The options of Draw::tensor(). Counterexamples shrink to the first entry of each list.
struct TensorDraw {
  std::vector<DType> dtypes = {DType::f64};
  std::vector<ValueKind> values = {ValueKind::random, ValueKind::ties, ValueKind::zeros, ValueKind::large};
  std::vector<LayoutKind> layouts = {LayoutKind::contiguous, LayoutKind::transposed, LayoutKind::sliced,
                                     LayoutKind::expanded};
  double low = -2.0, high = 2.0;  // range of random numbers: [low, high)
  bool requires_grad = true;      // for floating dtypes
};

/// The inputs of one case. Each input is made from a sequence of choices, small whole numbers with 0 the simplest. So a
/// shorter sequence of smaller choices is a simpler case (MacIver & Donaldson 2020, "Test-case reduction via test-case
/// generation").
class Draw {
 public:
  /// Makes choices from the seed.
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  /// Makes the given choices, then 0.
  explicit Draw(std::vector<std::uint64_t> choices) : given_(std::move(choices)) {}

  /// Returns a whole number in [low, high]. Throws ValueError for an empty range.
  std::int64_t integer(std::int64_t low, std::int64_t high);
  /// Returns the size of a dimension: 0 to 8, mostly 1 to 4.
  std::int64_t size();
  Shape shape(int low_rank = 0, int high_rank = 3);
  /// Throws ValueError for an empty list.
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(choose(values.size()))];
  }
  /// Returns f64, f32, f16 or bf16.
  DType dtype();
  /// Returns a leaf on the CPU.
  Tensor tensor(const Shape& shape, const TensorDraw& options = {}, CallSite = {});
  /// Returns i64 indices in [0, limit), in any layout.
  Tensor indices(const Shape& shape, std::int64_t limit, CallSite = {});

  const std::vector<std::uint64_t>& choices() const { return choices_; }
  /// Returns the results of integer(), tensor() and indices() as text, with all numbers.
  std::string text() const;

 private:
  std::uint64_t choose(std::uint64_t count);
  Tensor lay_out(const Shape& shape, DType dtype, const std::vector<LayoutKind>& layouts, std::string about,
                 const std::function<double()>& element);

  std::uint64_t seed_ = 0;
  std::optional<std::vector<std::uint64_t>> given_;
  std::vector<std::uint64_t> choices_;
  std::vector<std::pair<std::string, Tensor>> drawn_;
};

struct PropertyOptions {
  int cases = 100;
  std::optional<std::uint64_t> seed = {};  // default: POOLGRAD_TEST_SEED, else a new one each time
  int shrinks = 500;                       // limit of attempts to shrink a failing case
};

/// A check with drawn inputs: gradcheck(), tensors_near(), or Verdict{ok, "why"}.
using Property = std::function<Verdict(Draw&)>;

/// Runs `property` on many cases. The first case that fails, or throws a std::exception, is shrunk as long as it fails.
/// The text shows the smallest inputs, the property's own text, and the seed that repeats it. Throws ValueError without
/// cases.
Verdict check_property(const Property& property, const PropertyOptions& options = {});

}  // namespace poolgrad
