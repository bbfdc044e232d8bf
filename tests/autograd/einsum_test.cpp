// einsum compared with its definition: a sum over all values of all letters, term by term.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

using testing_support::error_of;
constexpr TensorOptions precise{.dtype = DType::f64};

/// An equation without "...", and its result in plain loops.
struct Story {
  std::vector<std::string> terms;
  std::string output;
  std::map<char, std::int64_t> sizes;

  std::string text() const {
    std::string joined;
    for (std::size_t i = 0; i < terms.size(); ++i) joined += (i ? "," : "") + terms[i];
    return joined + "->" + output;
  }
  Shape shape_of(const std::string& term) const {
    Shape shape;
    for (const char letter : term) shape.append(sizes.at(letter));
    return shape;
  }
  Tensor told(const std::vector<Tensor>& operands) const {
    std::vector<std::vector<double>> numbers;
    for (const Tensor& operand : operands) numbers.push_back(operand.to_vector<double>());
    std::vector<double> result(static_cast<std::size_t>(count(shape_of(output))), 0.0);
    std::map<char, std::int64_t> at;
    const auto place = [&](const std::string& term) {
      std::int64_t linear = 0;
      for (const char letter : term) linear = linear * sizes.at(letter) + at[letter];
      return static_cast<std::size_t>(linear);
    };
    std::int64_t all = 1;
    for (const auto& [letter, size] : sizes) all *= size;
    for (std::int64_t number = 0; number < all; ++number) {
      std::int64_t rest = number;
      for (const auto& [letter, size] : sizes) at[letter] = rest % size, rest /= size;
      double product = 1.0;
      for (std::size_t i = 0; i < terms.size(); ++i) product *= numbers[i][place(terms[i])];
      result[place(output)] += product;
    }
    return from_data(result, shape_of(output));
  }
};

TEST(Einsum, AgreesWithNestedLoopsOverAllLetters) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  Generator generator(seed);
  for (int round = 0; round < 300; ++round) {
    Story story;
    std::string present;
    for (std::size_t i = 0, n = 1 + below(3); i < n; ++i) {
      std::string term;
      for (std::size_t d = 0, rank = below(4); d < rank; ++d) {
        term += "abcDe"[below(5)];
        story.sizes.try_emplace(term.back(), static_cast<std::int64_t>(below(8) == 0 ? 0 : 1 + below(3)));
        if (present.find(term.back()) == std::string::npos) present += term.back();
      }
      story.terms.push_back(term);
    }
    std::shuffle(present.begin(), present.end(), random);
    story.output = present.substr(0, below(present.size() + 1));
    std::vector<Tensor> operands;
    for (const std::string& term : story.terms) operands.push_back(randn(story.shape_of(term), precise, generator));
    EXPECT_TRUE(allclose(einsum(story.text(), operands), story.told(operands), 1e-12, 1e-12))
        << story.text() << ", seed " << seed << ", round " << round;
  }
}

TEST(Einsum, InfersTheImplicitResult) {
  Generator generator(1);
  const Tensor a = randn({2, 3}, precise, generator), b = randn({3, 4}, precise, generator),
               s = randn({3, 3}, precise, generator);
  EXPECT_TRUE(allclose(einsum("ij,jk", {a, b}), matmul(a, b)));
  EXPECT_TRUE(allclose(einsum("ji, kj", {transpose(a, 0, 1), s}), matmul(a, transpose(s, 0, 1))));
  EXPECT_TRUE(bit_equal(einsum("ba", {a}), transpose(a, 0, 1)));
  EXPECT_TRUE(bit_equal(einsum("aB", {a}), transpose(a, 0, 1))) << "upper case comes first";
  EXPECT_NEAR(einsum("ii", {s}).item(), sum(diag(s)).item(), 1e-14);
  EXPECT_EQ(einsum(",", {scalar(3.0, precise), scalar(4.0, precise)}).item(), 12.0);
}

TEST(Einsum, BroadcastsTheEllipsisDimensions) {
  Generator generator(2);
  const Tensor a = randn({5, 1, 2, 3}, precise, generator), b = randn({4, 3, 2}, precise, generator);
  EXPECT_TRUE(allclose(einsum("...ij,...jk->...ik", {a, b}), matmul(a, b)));
  EXPECT_TRUE(allclose(einsum("...ij,...jk", {a, b}), matmul(a, b)));
  EXPECT_TRUE(allclose(einsum("i...j,jk->...ik", {a, b[0]}), matmul(permute(a, {1, 2, 0, 3}), b[0])));
  const Tensor batches = b[{slice(), 0, 0, new_axis, new_axis}], row = b[{0, slice(), 0}];
  EXPECT_TRUE(allclose(einsum("...,...->...", {a, batches}), a * batches));
  EXPECT_TRUE(allclose(einsum("...i->...", {a}), sum(a, -1)));
  EXPECT_TRUE(allclose(einsum("ij,...j->...i", {a[{0, 0}], row}), matmul(a[{0, 0}], row)));
}

TEST(Einsum, AcceptsSevenBatchDimensions) {
  Generator generator(3);
  const Tensor a = randn({1, 2, 1, 2, 1, 2, 1, 3}, precise, generator);
  const Tensor b = randn({1, 2, 3, 2, 1, 1, 1, 3}, precise, generator), c = randn(a.shape(), precise, generator);
  EXPECT_TRUE(allclose(einsum("...d,...d->...", {a, b}), sum(a * b, -1)));
  EXPECT_TRUE(allclose(einsum("abcdefgh,abcdefgh->abcdefg", {a, c}), sum(a * c, -1)));
}

TEST(Einsum, MultipliesAndSumsIntegers) {
  const Tensor a = from_data<std::int64_t>({1, 2, 3}, 3), b = from_data<std::int64_t>({10, 100}, 2);
  EXPECT_EQ(einsum("i,j->ji", {a, b}).to_vector<double>(), (std::vector<double>{10, 20, 30, 100, 200, 300}));
  EXPECT_EQ(einsum("i,j->j", {a, b}).to_vector<double>(), (std::vector<double>{60, 600}));
}

TEST(Einsum, NamesTheErrorInAnEquation) {
  const Tensor a = ones({2, 3}), b = ones({4, 5});
  const std::string operands = ": operand 0 (2, 3) f32 on cpu, operand 1 (4, 5) f32 on cpu";
  const auto bad = [&](std::string_view equation) { return error_of<ValueError>([&] { einsum(equation, {a, b}); }); };
  EXPECT_EQ(error_of<ShapeError>([&] {
              einsum("ij,jk->ik", {a, b});
            }),
            "[einsum] 'j' is 3 of operand 0 and 4 of operand 1 in \"ij,jk->ik\"" + operands);
  EXPECT_EQ(error_of<ShapeError>([&] {
              einsum("ijk,lm->i", {a, b});
            }),
            "[einsum] operand 0 has 2 dimensions, and its term \"ijk\" names 3 in \"ijk,lm->i\"" + operands);
  EXPECT_EQ(error_of<ShapeError>([&] {
              einsum("...,...", {a, b});
            }),
            "[einsum] \"...\" is 2 of operand 0 and 4 of operand 1 in \"...,...\"" + operands);
  EXPECT_EQ(bad("ij"), "[einsum] 2 operands for 1 terms in \"ij\"" + operands);
  EXPECT_EQ(bad("ij,kl->im"), "[einsum] no operand names 'm' in \"ij,kl->im\"" + operands);
  EXPECT_EQ(bad("ij,kl->ii"), "[einsum] the result names 'i' twice in \"ij,kl->ii\"" + operands);
  EXPECT_EQ(bad("i?,kl"), "[einsum] unexpected '?' in \"i?,kl\"" + operands);
  EXPECT_EQ(bad("..i,kl"), "[einsum] unexpected '.' in \"..i,kl\"" + operands);
  EXPECT_EQ(bad("......,kl"), "[einsum] unexpected '.' in \"......,kl\"" + operands);
  EXPECT_EQ(bad("i...,kl->i"), "[einsum] the result lacks the \"...\" in \"i...,kl->i\"" + operands);
  EXPECT_EQ(error_of<ValueError>([&] { einsum("i", {}); }), "[einsum] no operands for \"i\"");
  EXPECT_EQ(error_of<ValueError>([&] { einsum("i", {Tensor()}); }), "[einsum] operand 0 is undefined");
}

}  // namespace
}  // namespace poolgrad
