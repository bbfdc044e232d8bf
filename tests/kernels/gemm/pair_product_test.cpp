// Every pair product that this CPU supports, compared with f64 sums and with the emulation.
#include "kernels/cpu/gemm/pair_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "kernels/cpu/instruction_sets.h"
#include "kernels/dtype.h"
#include "kernels/instruction_sets.h"
#include "tests/test_seed.h"

namespace poolgrad::kernels {
namespace {

struct Shape {
  std::int64_t rows, columns, pairs;
};
const Shape shapes[] = {{16, 16, 16}, {16, 32, 16}, {32, 16, 32}, {48, 48, 32}, {96, 64, 16}, {16, 80, 48}};

/// bf16 matrices a (rows x 2 pairs) and b (2 pairs x columns), packed with gaps between rows.
struct Operands {
  Shape shape;
  std::vector<BFloat16> a, b;
  std::vector<std::uint32_t> packed_a, packed_b;
  static constexpr std::int64_t gap = 3;

  template <class Draw>
  Operands(Shape s, const Draw& draw) : shape(s) {
    a.resize(static_cast<std::size_t>(s.rows * 2 * s.pairs));
    b.resize(static_cast<std::size_t>(2 * s.pairs * s.columns));
    for (BFloat16& x : a) x = BFloat16(draw());
    for (BFloat16& x : b) x = BFloat16(draw());
    pack();
  }
  void pack() {
    const auto word = [](BFloat16 low, BFloat16 high) {
      return static_cast<std::uint32_t>(low.bits) | static_cast<std::uint32_t>(high.bits) << 16;
    };
    packed_a.assign(static_cast<std::size_t>(shape.rows * a_stride()), 0x7fc07fc0u);  // NaN in the gaps
    packed_b.assign(static_cast<std::size_t>(shape.pairs * b_stride()), 0x7fc07fc0u);
    for (std::int64_t i = 0; i < shape.rows; ++i)
      for (std::int64_t p = 0; p < shape.pairs; ++p)
        packed_a[static_cast<std::size_t>(i * a_stride() + p)] = word(at_a(i, 2 * p), at_a(i, 2 * p + 1));
    for (std::int64_t p = 0; p < shape.pairs; ++p)
      for (std::int64_t j = 0; j < shape.columns; ++j)
        packed_b[static_cast<std::size_t>(p * b_stride() + j)] = word(at_b(2 * p, j), at_b(2 * p + 1, j));
  }
  std::int64_t a_stride() const { return shape.pairs + gap; }
  std::int64_t b_stride() const { return shape.columns + gap; }
  std::int64_t c_stride() const { return shape.columns + gap; }
  BFloat16& at_a(std::int64_t i, std::int64_t k) { return a[static_cast<std::size_t>(i * 2 * shape.pairs + k)]; }
  BFloat16& at_b(std::int64_t k, std::int64_t j) { return b[static_cast<std::size_t>(k * shape.columns + j)]; }

  /// c with gaps, which hold `fill`.
  std::vector<float> multiply(PairProduct product, bool accumulate, float fill) const {
    std::vector<float> c(static_cast<std::size_t>(shape.rows * c_stride()), fill);
    product({c.data(), c_stride(), packed_a.data(), a_stride(), packed_b.data(), b_stride(), shape.rows, shape.columns,
             shape.pairs, accumulate});
    return c;
  }
  /// The sums of a b and of |a b|.
  std::pair<double, double> expected(std::int64_t i, std::int64_t j) {
    double sum = 0, size = 0;
    for (std::int64_t k = 0; k < 2 * shape.pairs; ++k) {
      const double term = static_cast<double>(static_cast<float>(at_a(i, k))) * static_cast<float>(at_b(k, j));
      sum += term, size += std::abs(term);
    }
    return {sum, size};
  }
};

class PairProductTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::vector<std::string_view> here = instruction_sets();
    if (std::find(here.begin(), here.end(), GetParam()) == here.end())
      GTEST_SKIP() << "this CPU or this build has no " << GetParam();
    set_instruction_set(GetParam());
    product = instruction_set_in_use().products;
    set_instruction_set("auto");
    ASSERT_NE(product, nullptr);
  }
  PairProduct product = nullptr;
  std::mt19937_64 random{test_seed()};
};

TEST_P(PairProductTest, IsExactForSmallWholeNumbers) {
  std::uniform_int_distribution<int> whole(-16, 16);
  for (const Shape& shape : shapes) {
    Operands x(shape, [&] { return static_cast<float>(whole(random)); });
    for (const bool accumulate : {false, true}) {
      const std::vector<float> c = x.multiply(product, accumulate, 7.0f);
      for (std::int64_t i = 0; i < shape.rows; ++i)
        for (std::int64_t j = 0; j < shape.columns + Operands::gap; ++j) {
          const double expected = j < shape.columns ? x.expected(i, j).first + (accumulate ? 7.0 : 0.0) : 7.0;
          ASSERT_EQ(c[static_cast<std::size_t>(i * x.c_stride() + j)], expected) << i << ' ' << j << ' ' << accumulate;
        }
    }
  }
}

TEST_P(PairProductTest, RoundsLikeAChainOfF32Sums) {
  std::normal_distribution<float> normal;
  for (const Shape& shape : shapes) {
    Operands x(shape, [&] { return normal(random); });
    const std::vector<float> c = x.multiply(product, false, 0.0f);
    const double additions = 2.0 * static_cast<double>(shape.pairs);
    for (std::int64_t i = 0; i < shape.rows; ++i)
      for (std::int64_t j = 0; j < shape.columns; ++j) {
        const auto [sum, size] = x.expected(i, j);
        ASSERT_NEAR(c[static_cast<std::size_t>(i * x.c_stride() + j)], sum, additions * 0x1p-24 * size);
      }
  }
}

TEST_P(PairProductTest, GivesTheSameBitsOnEveryRun) {
  std::normal_distribution<float> normal;
  const Operands x({48, 48, 32}, [&] { return normal(random); });
  const std::vector<float> first = x.multiply(product, true, 0.1f), second = x.multiply(product, true, 0.1f);
  for (std::size_t i = 0; i < first.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(first[i]), std::bit_cast<std::uint32_t>(second[i]));
}

TEST_P(PairProductTest, TreatsSubnormalOperandsAsZero) {
  Operands x({16, 16, 16}, [] { return 1.0f; });
  BFloat16 subnormal;
  subnormal.bits = 1;
  for (BFloat16& value : x.a) value = subnormal;
  for (BFloat16& value : x.b) value = BFloat16(0x1p100f);
  x.pack();
  EXPECT_EQ(x.multiply(product, false, 1.0f)[0], 0.0f);
}

TEST_P(PairProductTest, KeepsInfinityAndNaNInTheirRowsAndColumns) {
  Operands x({16, 32, 16}, [] { return 1.0f; });
  x.at_a(3, 5) = BFloat16(std::numeric_limits<float>::infinity());
  x.at_b(8, 30) = BFloat16(std::numeric_limits<float>::quiet_NaN());
  x.pack();
  const std::vector<float> c = x.multiply(product, false, 0.0f);
  for (std::int64_t i = 0; i < 16; ++i)
    for (std::int64_t j = 0; j < 32; ++j) {
      const float value = c[static_cast<std::size_t>(i * x.c_stride() + j)];
      if (j == 30)
        EXPECT_TRUE(std::isnan(value)) << i;
      else
        EXPECT_EQ(value, i == 3 ? std::numeric_limits<float>::infinity() : 32.0f) << i << ' ' << j;
    }
}

// The manuals give the order of the sums. Both allowed orders are within a few ulps of the emulation.
TEST_P(PairProductTest, AgreesWithTheEmulation) {
  std::normal_distribution<float> normal;
  for (const Shape& shape : shapes) {
    Operands x(shape, [&] { return normal(random) * std::exp(4.0f * normal(random)); });
    const std::vector<float> c = x.multiply(product, true, 1.0f),
                             emulated = x.multiply(pair_product_emulated, true, 1.0f);
    for (std::int64_t i = 0; i < shape.rows; ++i)
      for (std::int64_t j = 0; j < shape.columns; ++j) {
        const auto at = static_cast<std::size_t>(i * x.c_stride() + j);
        ASSERT_NEAR(c[at], emulated[at],
                    2.0 * static_cast<double>(2 * shape.pairs + 1) * 0x1p-24 * (x.expected(i, j).second + 1.0));
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Implementations, PairProductTest, testing::Values("emulated_bf16", "avx512_bf16", "amx"),
                         [](const auto& test) { return test.param; });

class InstructionSetTest : public testing::Test {
 protected:
  void TearDown() override {
    force(before_ ? before_->c_str() : nullptr);
    set_instruction_set("auto");
  }
  static void force(const char* name) { name ? setenv("POOLGRAD_ISA", name, 1) : unsetenv("POOLGRAD_ISA"); }

 private:
  std::optional<std::string> before_ = [] {
    const char* name = std::getenv("POOLGRAD_ISA");
    return name ? std::optional<std::string>(name) : std::nullopt;
  }();
};

TEST(AutomaticInstructionSet, IsTheFastestMeasuredForTheCpuFamily) {
  using Sets = std::vector<std::string_view>;
  const auto name_of = [](const Sets& sets, const CpuFamily& cpu) { return automatic_instruction_set(sets, cpu).name; };
  const Sets pairs = {"avx2", "avx512", "avx512_bf16", "emulated_bf16"},
             tiles = {"avx512", "avx512_bf16", "amx", "emulated_bf16"};
  EXPECT_EQ(name_of(pairs, {"AMD", 25}), "avx512_bf16");
  EXPECT_EQ(name_of(pairs, {"Intel", 6}), "avx512");
  EXPECT_EQ(name_of(pairs, {"AMD", 26}), "avx512") << "nobody has measured it";
  EXPECT_EQ(name_of(pairs, {"", 25}), "avx512");
  EXPECT_EQ(name_of(tiles, {"Intel", 6}), "amx");
  EXPECT_EQ(name_of({"avx2", "emulated_bf16"}, {"AMD", 25}), "avx2");
  EXPECT_EQ(name_of({"baseline", "emulated_bf16"}, {}), "baseline");
}

TEST(AutomaticInstructionSet, GivesAReasonForItsChoice) {
  const auto reason = [](const std::vector<std::string_view>& sets, const CpuFamily& cpu) {
    return automatic_instruction_set(sets, cpu).reason;
  };
  EXPECT_EQ(reason({"avx512", "avx512_bf16"}, {"AMD", 25}), "bf16 in pairs is faster than f32 on AMD family 25");
  EXPECT_EQ(reason({"avx512", "avx512_bf16"}, {"Intel", 6}),
            "bf16 in f32: pairs are not known to be faster on Intel family 6");
  EXPECT_EQ(reason({"avx512", "avx512_bf16", "amx"}, {"Intel", 6}), "bf16 in tiles");
  EXPECT_EQ(reason({"avx2", "emulated_bf16"}, {"AMD", 25}), "");
}

TEST_F(InstructionSetTest, AutoFollowsTheRuleOnThisCpu) {
  force(nullptr);
  set_instruction_set("auto");
  const std::vector<std::string_view> all = instruction_sets();
  ASSERT_GE(all.size(), 2u);
  EXPECT_EQ(all.back(), "emulated_bf16");
  const AutomaticSet best = automatic_instruction_set(all, cpu_family());
  EXPECT_EQ(instruction_set(), best.name);
  EXPECT_EQ(instruction_set_reason(), best.reason);
  EXPECT_EQ(instruction_set_in_use().products != nullptr, best.name == "amx" || best.name == "avx512_bf16");
}

TEST_F(InstructionSetTest, IgnoresAnEmptyEnvironmentVariable) {
  force("");
  set_instruction_set("auto");
  const AutomaticSet best = automatic_instruction_set(instruction_sets(), cpu_family());
  EXPECT_EQ(instruction_set(), best.name);
  EXPECT_EQ(instruction_set_reason(), best.reason);
}

TEST_F(InstructionSetTest, ReportsTheSourceOfTheChoice) {
  set_instruction_set("emulated_bf16");
  EXPECT_EQ(instruction_set_reason(), "chosen by the program");
  force("emulated_bf16");
  set_instruction_set("auto");
  EXPECT_EQ(instruction_set_reason(), "chosen by POOLGRAD_ISA");
}

TEST_F(InstructionSetTest, TheEnvironmentForcesEveryAvailableSet) {
  for (const std::string_view name : instruction_sets()) {
    force(std::string(name).c_str());
    set_instruction_set("auto");
    EXPECT_EQ(instruction_set(), name);
  }
  force("avx1024");
  EXPECT_THROW(set_instruction_set("auto"), ValueError);
}

TEST_F(InstructionSetTest, RejectsAnUnavailableSet) {
  const std::string_view before = instruction_set();
  EXPECT_THROW(set_instruction_set("avx1024"), std::exception);
  EXPECT_EQ(instruction_set(), before);
}

}  // namespace
}  // namespace poolgrad::kernels
