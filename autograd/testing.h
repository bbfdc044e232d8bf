// Tests of a user's own operators and gradients. Every check returns a Verdict, a bool and a text, for any test
// framework; autograd/testing_gtest.h has GoogleTest's forms.
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

/// How a drawn tensor lies in memory: row-major; column-major; every second place of a wider memory, with NaN (whole
/// numbers: -1) between; one row repeated with stride 0.
enum class LayoutKind { contiguous, transposed, sliced, expanded };
/// Its numbers: anything in a range; 0, 1 and -1 many times over; 0 alone; +-10,000, 20,000 and 30,000.
enum class ValueKind { random, ties, zeros, large };

/// The choices of Draw::tensor(); counterexamples shrink to the first of each list.
struct TensorDraw {
  std::vector<DType> dtypes = {DType::f64};
  std::vector<ValueKind> values = {ValueKind::random, ValueKind::ties, ValueKind::zeros, ValueKind::large};
  std::vector<LayoutKind> layouts = {LayoutKind::contiguous, LayoutKind::transposed, LayoutKind::sliced,
                                     LayoutKind::expanded};
  double low = -2.0, high = 2.0;  // of random numbers: [low, high)
  bool requires_grad = true;      // floating dtypes
};

/// The inputs of one case. All that it hands out is made of a sequence of choices, each a small whole number, 0 the
/// simplest: a shorter sequence of smaller choices is a simpler case, whatever is drawn (MacIver & Donaldson 2020,
/// "Test-case reduction via test-case generation").
class Draw {
 public:
  /// Choices that are a function of the seed.
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  /// These choices, then 0 for ever.
  explicit Draw(std::vector<std::uint64_t> choices) : given_(std::move(choices)) {}

  /// A whole number in [low, high]. Throws ValueError where there is none.
  std::int64_t integer(std::int64_t low, std::int64_t high);
  /// The size of a dimension: 0 to 8, mostly 1 to 4.
  std::int64_t size();
  Shape shape(int low_rank = 0, int high_rank = 3);
  /// Throws ValueError for an empty list.
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(choose(values.size()))];
  }
  /// f64, f32, f16 or bf16.
  DType dtype();
  /// A leaf on the CPU.
  Tensor tensor(const Shape& shape, const TensorDraw& options = {}, CallSite = {});
  /// i64 in [0, limit), in any layout.
  Tensor indices(const Shape& shape, std::int64_t limit, CallSite = {});

  const std::vector<std::uint64_t>& choices() const { return choices_; }
  /// The results of integer(), tensor() and indices(), with all numbers.
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
  std::optional<std::uint64_t> seed = {};  // left out: POOLGRAD_TEST_SEED, and without that another one each time
  int shrinks = 500;                       // times that a failing case is tried smaller, at most
};

/// A check of a user's operator with inputs that it draws: gradcheck(), tensors_near(), or Verdict{ok, "why"}.
using Property = std::function<Verdict(Draw&)>;

/// Runs `property` on many cases. The first case that fails, or throws a std::exception, shrinks as long as it fails.
/// The text shows the smallest inputs, the property's own text, and the seed that repeats it. Throws ValueError without
/// cases.
Verdict check_property(const Property& property, const PropertyOptions& options = {});

}  // namespace poolgrad
