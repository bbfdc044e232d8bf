// Output of the public test tools: each passes right results, and describes wrong ones.
#include "autograd/testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

#include "allocator/error.h"
#include "autograd/operators.h"
#include "autograd/testing_gtest.h"
#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

/// The messages of the assertions that fail in `body`.
template <class Body>
std::vector<std::string> failures_in(const Body& body) {
  testing::TestPartResultArray results;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    body();
  }
  std::vector<std::string> messages;
  for (int i = 0; i < results.size(); ++i) messages.emplace_back(results.GetTestPartResult(i).message());
  return messages;
}

Tensor product(const Tensor& a, const Tensor& b) { return a * b; }
/// a b, with half the gradient of a.
Tensor wrong_product(const Tensor& a, const Tensor& b) { return a * b * 0.5 + a.detach() * b * 0.5; }
Tensor a_leaf() { return local::leaf({1.0, 2.0}); }

TEST(TestingAssertions, ExpectTruePrintsTheFullReport) {
  const Tensor a = a_leaf(), b = a_leaf();
  EXPECT_TRUE(gradcheck(product, a, b));
  const auto failures = failures_in([&] { EXPECT_TRUE(gradcheck(wrong_product, a, b)) << "as it must"; });
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(failures[0],
              AllOf(HasSubstr("Value of: gradcheck(wrong_product, a, b)"),
                    HasSubstr("(gradcheck failed at element (0,) of input 0 (2,) f64 on cpu\n  analytic "),
                    HasSubstr("they agree, no kink is near\n  wrong elements  2 of 2 of input 0, 0 of 2 of input 1\n"),
                    HasSubstr("\n  ratio           1/2: a factor of 2 is missing\n"), EndsWith("as it must")));
}

TEST(TestingAssertions, AVerdictConvertsToBoolAndHoldsText) {
  const GradcheckReport report = gradcheck(wrong_product, a_leaf(), a_leaf());
  EXPECT_FALSE(static_cast<bool>(report));
  std::ostringstream printed;
  printed << report;
  EXPECT_EQ(printed.str(), report.text);
  EXPECT_EQ(testing::PrintToString(report), report.text);
}

TEST(TestingAssertions, FunctionsMayReturnSeveralTensors) {
  EXPECT_GRADCHECK([](const Tensor& a, const Tensor& b) { return std::vector{a * b, exp(a)}; }, a_leaf(), a_leaf());
  EXPECT_GRADCHECK(poolgrad::sin, a_leaf());
  EXPECT_GRADGRADCHECK(product, a_leaf(), a_leaf());
}

TEST(TestingAssertions, ExpectGradcheckShowsItsOperandsAndTheReport) {
  const Tensor x = a_leaf();
  EXPECT_THAT(failures_in([&] { EXPECT_GRADCHECK(wrong_product, x, x.detach()) << "of this size"; }),
              ElementsAre(AllOf(StartsWith("Failed\ngradcheck(wrong_product, x, x.detach())\n"
                                           "gradcheck failed at element (0,) of input 0 (2,) f64 on cpu\n"),
                                HasSubstr("  wrong elements  2 of 2 of input 0\n"), EndsWith("\nof this size"))));
  EXPECT_THAT(failures_in([&] { EXPECT_GRADGRADCHECK([](const Tensor& y) { return y.detach(); }, x); }),
              ElementsAre(HasSubstr("gradgradcheck failed: no output depends on input 0 (2,) f64 on cpu")));
}

TEST(TestingAssertions, ExpectGradcheckTakesOptions) {
  const TensorFunction function = [](const std::vector<Tensor>& x) { return std::vector{exp(x[0])}; };
  const Tensor x = a_leaf();
  EXPECT_GRADCHECK(function, {x}, {.epsilon = 1e-4});
  EXPECT_GRADCHECK(function, {x});
  EXPECT_THAT(failures_in([&] { EXPECT_GRADCHECK(function, {x}, {.relative = 0.0, .absolute = 0.0, .names = {"x"}}); }),
              ElementsAre(HasSubstr(" of x (2,) f64 on cpu")));
}

TEST(TestingAssertions, AssertionsEndTheTestAndExpectationsDoNot) {
  bool went_on = false;
  const auto expected = failures_in([&] {
    EXPECT_GRADCHECK(wrong_product, a_leaf(), a_leaf());
    EXPECT_TENSOR_NEAR(a_leaf(), zeros({2}));
    went_on = true;
  });
  EXPECT_EQ(expected.size(), 2u);
  EXPECT_TRUE(went_on);
  went_on = false;
  const auto asserted = failures_in([&] {
    ASSERT_TENSOR_NEAR(a_leaf(), zeros({2}));
    went_on = true;
  });
  EXPECT_EQ(asserted.size(), 1u);
  EXPECT_FALSE(went_on);
}

TEST(TestingAssertions, LeaveADanglingElseToTheCaller) {
  bool otherwise = false;
  if (a_leaf().numel() == 0)
    EXPECT_TENSOR_NEAR(a_leaf(), zeros({2}));
  else
    otherwise = true;
  EXPECT_TRUE(otherwise);
}

TEST(TestingAssertions, ExpectTensorNearShowsTheWorstElement) {
  const Tensor found = local::leaf({1.0, 2.5, 3.0}), expected = local::leaf({1.0, 2.0, 3.001});
  EXPECT_TENSOR_NEAR(found, found.copy());
  EXPECT_TENSOR_NEAR(found, expected, 0.5);
  EXPECT_TENSOR_NEAR(found, expected, {.absolute = 0.0, .relative = 0.25});
  EXPECT_THAT(failures_in([&] { EXPECT_TENSOR_NEAR(found, expected); }),
              ElementsAre(StartsWith("Failed\ntensors_near(found, expected)\n"
                                     "tensors differ in 2 of 3 elements, most at (1,)\n"
                                     "  lhs         2.5  of (3,) f64 on cpu\n"
                                     "  rhs         2  of (3,) f64 on cpu\n"
                                     "  difference  0.5  (allowed: 1e-07 + 1e-07 |rhs|)")));
}

TEST(Property, HoldsForACorrectOperator) {
  const Verdict verdict = check_property(
      [](Draw& draw) {
        const Shape shape = draw.shape(0, 2);
        return gradcheck(product, draw.tensor(shape), draw.tensor(shape));
      },
      {.cases = 30});
  EXPECT_TRUE(verdict);
  EXPECT_THAT(verdict.text, StartsWith("property held in 30 cases, seeds "));
}

TEST(Property, HoldsForCorrectOperatorsOnEveryKindOfNumber) {
  EXPECT_TRUE(check_property(
      [](Draw& draw) {
        const std::int64_t inner = draw.size();
        const Tensor a = draw.tensor({draw.size(), inner}), b = draw.tensor({inner, draw.size()});
        return gradcheck([](const Tensor& x, const Tensor& y) { return matmul(x, y); }, a, b);
      },
      {.seed = 1}));
  EXPECT_TRUE(check_property(
      [](Draw& draw) {
        const Shape shape = draw.shape();
        return gradcheck([](const Tensor& x) { return sin(x); }, draw.tensor(shape));
      },
      {.seed = 1}));
}

TEST(Property, ShrinksANumberToTheSmallestFailure) {
  const Property property = [](Draw& draw) {
    draw.integer(-5, 5);
    const std::int64_t n = draw.integer(0, 1000000);
    return Verdict{n < 4711, "too many"};
  };
  const Verdict verdict = check_property(property, {.seed = 1});
  EXPECT_FALSE(verdict);
  EXPECT_THAT(verdict.text, StartsWith("property failed in case 1 of 100; shrunk in "));
  EXPECT_THAT(verdict.text, HasSubstr(" choices to 2:\n  integer -5 of [-5, 5]\n  integer 4711 of [0, 1000000]\n"
                                      "too many\nrepeat with POOLGRAD_TEST_SEED=1 or .seed = 1: "));
}

/// Reads its input as if it were dense, a typical mistake in new kernels.
Tensor doubled_as_if_dense(const Tensor& x) {
  Tensor out = Tensor::empty(x.shape(), x.options());
  for (std::int64_t i = 0; i < x.numel(); ++i) out.data<double>()[i] = 2.0 * x.data<double>()[i];
  return out;
}

TEST(Property, FindsIgnoredStridesAndShowsTheSmallestInput) {
  const Verdict verdict = check_property(
      [](Draw& draw) {
        const Tensor x = draw.tensor(draw.shape(), {.layouts = {LayoutKind::contiguous, LayoutKind::transposed}});
        return tensors_near(doubled_as_if_dense(x), 2.0 * x);
      },
      {.seed = 1});
  EXPECT_FALSE(verdict);
  EXPECT_THAT(verdict.text, HasSubstr("\n  (2, 2) f64 on cpu, transposed, random\n"
                                      "    [[ 0. -2.]\n"
                                      "     [ 0.  0.]] f64\n"
                                      "tensors differ in 2 of 4 elements"));
}

TEST(Property, FindsAWrongGradientAtTies) {
  // The larger of two; on a tie, both get the whole gradient.
  const auto larger = [](const Tensor& a, const Tensor& b) {
    const Tensor of_a = to(greater_equal(a, b), DType::f64), of_b = to(greater_equal(b, a), DType::f64);
    return tensors_near(of_a + of_b, ones_like(a));
  };
  const Verdict verdict = check_property(
      [&](Draw& draw) {
        const Shape shape = draw.shape(1, 2);
        return larger(draw.tensor(shape), draw.tensor(shape));
      },
      {.seed = 2});
  EXPECT_FALSE(verdict);
  EXPECT_THAT(verdict.text, HasSubstr("\n  (1,) f64 on cpu, contiguous, random\n    [0.] f64\n"
                                      "  (1,) f64 on cpu, contiguous, random\n    [0.] f64\n"
                                      "tensors differ in 1 of 1 elements"));
}

TEST(Property, TreatsAnExceptionAsAFailure) {
  const Verdict verdict = check_property([](Draw& draw) {
    const Tensor x = draw.tensor(draw.shape(1, 3));
    return Verdict{sum(matmul(x, x)).item() < 1e300, "large"};
  });
  EXPECT_FALSE(verdict);
  EXPECT_THAT(verdict.text, HasSubstr("\nthe property threw [matmul] "));
}

TEST(Property, RepeatsWithThePrintedSeed) {
  const Property property = [](Draw& draw) {
    const Tensor x = draw.tensor({4}, {.values = {ValueKind::random}});
    return Verdict{sum(x).item() < 4.5, "too much"};
  };
  const std::string text = check_property(property, {.seed = 100}).text;
  EXPECT_EQ(check_property(property, {.seed = 100}).text, text);
  const std::string key = "POOLGRAD_TEST_SEED=";
  const std::size_t at = text.find(key);
  ASSERT_NE(at, std::string::npos) << text;
  const std::string seed = text.substr(at + key.size(), text.find(' ', at) - at - key.size());
  EXPECT_NE(seed, "100") << "this test wants a failure that is not the first case";

  const char* before = std::getenv("POOLGRAD_TEST_SEED");
  const std::string kept = before == nullptr ? "" : before;
  setenv("POOLGRAD_TEST_SEED", seed.c_str(), 1);
  const std::string again = check_property(property).text;
  setenv("POOLGRAD_TEST_SEED", "12x", 1);
  EXPECT_EQ(local::message_of<ValueError>([&] { check_property(property); }),
            "[check_property] POOLGRAD_TEST_SEED must be a whole number, but is 12x");
  before == nullptr ? unsetenv("POOLGRAD_TEST_SEED") : setenv("POOLGRAD_TEST_SEED", kept.c_str(), 1);
  EXPECT_THAT(again, StartsWith("property failed in case 1 of 100"));
  EXPECT_EQ(again.substr(again.find('\n')), text.substr(text.find('\n')));
}

TEST(Property, RejectsZeroCases) {
  EXPECT_EQ(local::message_of<ValueError>([] { check_property([](Draw&) { return Verdict{}; }, {.cases = 0}); }),
            "[check_property] cases must be at least 1: 0");
}

TEST(Draw, GivesTheSameTensorForTheSameChoices) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Draw draw(seed), again(seed);
    const auto one = [](Draw& from) { return from.tensor(from.shape(), {.dtypes = {from.dtype()}}); };
    const Tensor x = one(draw);
    EXPECT_TRUE(bit_equal(one(again), x));
    Draw repeated(draw.choices());
    const Tensor y = one(repeated);
    EXPECT_TRUE(bit_equal(y, x));
    EXPECT_EQ(y.strides(), x.strides());
  }
}

TEST(Draw, GivesEveryLayoutAndKindOfNumber) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Draw draw(seed);
    const Tensor x = draw.tensor({3, 4}, {.low = 1.0, .high = 1.5});
    EXPECT_TRUE(x.is_leaf() && x.requires_grad());
    const std::string text = draw.text(), about = text.substr(0, text.find('\n'));
    ++seen[about.substr(about.find(", ", 6) + 2)];
    if (text.find(", random") == std::string::npos) continue;
    for (const double value : x.to_vector<double>()) EXPECT_TRUE(value >= 1.0 && value < 1.5) << value;
  }
  EXPECT_EQ(seen.size(), 16u) << testing::PrintToString(seen);
}

TEST(Draw, GivesIndicesBelowTheLimit) {
  std::set<std::int64_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (const std::int64_t i : Draw(seed).indices({5, 5}, 7).to_vector<std::int64_t>()) seen.insert(i);
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST(Draw, PutsNanBetweenTheElementsOfASlice) {
  Draw draw(1);
  const Tensor x = draw.tensor({2}, {.layouts = {LayoutKind::sliced}}).detach();
  EXPECT_EQ(x.strides()[0], 2);
  EXPECT_TRUE(std::isnan(whole_storage(x).to_vector<double>()[0]));
  EXPECT_TRUE(std::isnan(whole_storage(x).to_vector<double>()[2]));
  EXPECT_EQ(draw.tensor({}, {.layouts = {LayoutKind::sliced}}).dim(), 0) << "what does not apply is left out";
}

TEST(Draw, RejectsEmptyRanges) {
  Draw draw(1);
  EXPECT_EQ(local::message_of<ValueError>([&] { draw.integer(2, 1); }), "[Draw] there is no whole number in [2, 1]");
  EXPECT_EQ(local::message_of<ValueError>([&] { draw.shape(2, 1); }), "[Draw] there is no rank in [2, 1]");
  EXPECT_EQ(local::message_of<ValueError>([&] { draw.indices({1}, 0); }), "[Draw] there is nothing to choose from");
  EXPECT_EQ(local::message_of<ValueError>([&] { draw.tensor({1}, {.low = 3.0}); }),
            "[Draw] there is no number in [3, 2)");
}

}  // namespace
}  // namespace poolgrad
