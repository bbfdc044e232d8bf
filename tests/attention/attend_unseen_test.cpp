// A row that does not see another does not depend on what lies there, NaN and infinity included: patterns of every
// kind, padding and biases of -infinity with rows of k, v, q and the gradient of out poisoned at random.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "autograd/operators/views.h"
#include "kernels/instruction_sets.h"
#include "tests/attention/attend_support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::cases_with;
using testing_support::make_call;
using testing_support::Outcome;
using testing_support::rounded;
using testing_support::Sizes;
using testing_support::Threads;

/// Rows of one batch entry of length n, by head.
class Rows {
 public:
  Rows(std::int64_t n, std::int64_t heads) : n_(n), marked_(static_cast<std::size_t>(n * heads)) {}
  bool operator()(std::int64_t i, std::int64_t h) const { return marked_[static_cast<std::size_t>(h * n_ + i)]; }
  void mark(std::int64_t i, std::int64_t h) { marked_[static_cast<std::size_t>(h * n_ + i)] = true; }

 private:
  std::int64_t n_;
  std::vector<bool> marked_;
};

/// A NaN or an infinity in some element of the row, in head h of (1, N, H, D).
void poison(Tensor& x, std::int64_t i, std::int64_t h, std::mt19937_64& random) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double evil[] = {std::nan(""), infinity, -infinity};
  std::vector<double> values = x.to_vector<double>();
  const std::int64_t width = x.size(3), at = (i * x.size(2) + h) * width;
  values[static_cast<std::size_t>(at) + random() % static_cast<std::size_t>(width)] = evil[random() % 3];
  x = to(from_data(values, x.shape()), x.dtype());
}

/// Rows that are not `touched` are the same in both, but for rounding: which way a group of queries takes may depend on
/// what some of them see.
void expect_untouched(const Tensor& got, const Tensor& clean, const Rows& touched, const std::string& what) {
  const std::vector<double> a = got.to_vector<double>(), b = clean.to_vector<double>();
  const std::int64_t heads = got.size(2), width = got.size(3);
  const double tolerance = got.dtype() == DType::f64 ? 1e-11 : got.dtype() == DType::f32 ? 1e-4 : 0.03;
  for (std::int64_t row = 0; row < std::ssize(a) / width; ++row) {
    if (touched(row / heads, row % heads)) continue;
    for (std::int64_t d = 0; d < width; ++d) {
      const auto at = static_cast<std::size_t>(row * width + d);
      if (a[at] == b[at]) continue;  // be it -infinity, the lse of a query that sees nothing
      ASSERT_LE(std::abs(a[at] - b[at]), tolerance * (1 + std::abs(b[at])))
          << a[at] << " instead of " << b[at] << ": " << what << " row " << row / heads << " head " << row % heads
          << "; seed " << test_seed();
    }
  }
}
/// Rows that are `reached` hold something that is not finite.
void expect_reached(const Tensor& got, const Rows& reached, const std::string& what) {
  const std::vector<double> a = got.to_vector<double>();
  const std::int64_t heads = got.size(2), width = got.size(3);
  for (std::int64_t row = 0; row < std::ssize(a) / width; ++row) {
    if (!reached(row / heads, row % heads)) continue;
    const auto first = a.begin() + row * width;
    ASSERT_FALSE(std::all_of(first, first + width, [](double x) { return std::isfinite(x); }))
        << what << " row " << row / heads << " head " << row % heads << "; seed " << test_seed();
  }
}

class UnseenRows {
 public:
  UnseenRows(const Case& one, const Sizes& sizes, DType dtype, std::mt19937_64& random)
      : one_(one), sizes_(sizes), random_(random), clean_(rounded(make_call(sizes, DType::f64), dtype)) {
    what_ = one.name + " " + to_string(sizes) + " " + std::string(poolgrad::to_string(dtype));
    if (random() % 4 == 0) clean_.options.softcap = 3.0;
    if (random() % 3 == 0) pad();
    if (random() % 3 == 0) hide_pairs();
  }

  void expect_no_effect() {
    const Outcome clean = attended(clean_, one_.pattern);
    {
      Call call = clean_;
      Rows bad_keys(sizes_.keys, sizes_.kv_heads), bad_values = bad_keys, touched(sizes_.queries, sizes_.heads),
                                                   of_values = touched;
      for (int n = 0; n < 3; ++n) {
        poison_row(call.k, bad_keys);
        poison_row(call.v, bad_values);
      }
      for_each_pair([&](std::int64_t h, std::int64_t i, std::int64_t j) {
        const std::int64_t g = h / group();
        if (bad_keys(j, g) || bad_values(j, g)) touched.mark(i, h);
        if (bad_values(j, g)) of_values.mark(i, h);
      });
      Rows of_touched(sizes_.keys, sizes_.kv_heads);
      for_each_pair([&](std::int64_t h, std::int64_t i, std::int64_t j) {
        if (touched(i, h)) of_touched.mark(j, h / group());
      });
      const Outcome got = attended(call, one_.pattern);
      expect_untouched(got.out, clean.out, touched, what_ + " out");
      expect_untouched(by_query(got.lse), by_query(clean.lse), touched, what_ + " lse");
      expect_untouched(got.dq, clean.dq, touched, what_ + " dq");
      expect_untouched(got.dk, clean.dk, of_touched, what_ + " dk");
      expect_untouched(got.dv, clean.dv, of_touched, what_ + " dv");
      expect_reached(got.out, of_values, what_ + " out");  // a key of score -infinity weighs nothing
      expect_reached(got.dq, touched, what_ + " dq");
    }
    Call call = clean_;
    Rows bad_queries(sizes_.queries, sizes_.heads), bad_gradients = bad_queries, bad = bad_queries,
                                                    touched(sizes_.keys, sizes_.kv_heads), of_gradients = touched;
    for (int n = 0; n < 2; ++n) {
      poison_row(call.q, bad_queries);
      poison_row(call.grad_out, bad_gradients);
    }
    for_each_pair([&](std::int64_t h, std::int64_t i, std::int64_t j) {
      const std::int64_t g = h / group();
      if (bad_queries(i, h) || bad_gradients(i, h)) touched.mark(j, g);
      if (bad_gradients(i, h) && !bad_queries(i, h)) of_gradients.mark(j, g);
    });
    for (std::int64_t h = 0; h < sizes_.heads; ++h)
      for (std::int64_t i = 0; i < sizes_.queries; ++i)
        if (bad_queries(i, h) || bad_gradients(i, h)) bad.mark(i, h);
    const Outcome got = attended(call, one_.pattern);
    expect_untouched(got.out, clean.out, bad, what_ + " out");
    expect_untouched(by_query(got.lse), by_query(clean.lse), bad, what_ + " lse");
    expect_untouched(got.dq, clean.dq, bad, what_ + " dq");
    expect_untouched(got.dk, clean.dk, touched, what_ + " dk");
    expect_untouched(got.dv, clean.dv, touched, what_ + " dv");
    expect_reached(got.dk, touched, what_ + " dk");
    expect_reached(got.dv, of_gradients, what_ + " dv");  // a query of scores of -infinity alone has none
  }

 private:
  /// (1, H, N) as (1, N, H, 1).
  static Tensor by_query(const Tensor& lse) { return unsqueeze(transpose(lse, 1, 2), -1); }
  std::int64_t group() const { return sizes_.heads / sizes_.kv_heads; }
  /// A third of the keys, and all from some key on.
  void pad() {
    const std::int64_t end = sizes_.keys - static_cast<std::int64_t>(random_() % 3) * sizes_.keys / 4;
    std::vector<double> padding;
    for (std::int64_t j = 0; j < sizes_.keys; ++j) padding.push_back(j >= end || random_() % 3 == 0);
    padded_ = padding;
    clean_.options.key_padding = to(from_data(padding, {1, sizes_.keys}), DType::boolean);
    what_ += " padded";
  }
  /// By a bias of -infinity: an eighth of the pairs, in all heads or in each its own.
  void hide_pairs() {
    bias_heads_ = random_() % 2 ? 1 : sizes_.heads;
    std::normal_distribution<double> normal;
    for (std::int64_t n = 0; n < bias_heads_ * sizes_.queries * sizes_.keys; ++n)
      bias_.push_back(random_() % 8 == 0 ? -std::numeric_limits<double>::infinity() : normal(random_));
    clean_.options.bias = to(from_data(bias_, {1, bias_heads_, sizes_.queries, sizes_.keys}), clean_.grad_lse.dtype());
    what_ += " biased";
  }
  bool hidden(std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (!padded_.empty() && padded_[static_cast<std::size_t>(j)] != 0) return true;
    if (bias_.empty()) return false;
    return std::isinf(bias_[static_cast<std::size_t>((h % bias_heads_ * sizes_.queries + i) * sizes_.keys + j)]);
  }
  void poison_row(Tensor& x, Rows& rows) {
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
    };
    // Half of the time a row at an end, where tiles are partly seen.
    const std::int64_t i = random_() % 2 ? below(x.size(1)) : random_() % 2 ? x.size(1) - 1 : 0, h = below(x.size(2));
    poison(x, i, h, random_);
    rows.mark(i, h);
  }
  template <class F>
  void for_each_pair(const F& f) const {
    for (std::int64_t h = 0; h < sizes_.heads; ++h)
      for (std::int64_t i = 0; i < sizes_.queries; ++i)
        for (std::int64_t j = 0; j < sizes_.keys; ++j)
          if (!hidden(h, i, j) && one_.m(h, sizes_.heads, i + sizes_.keys - sizes_.queries, j) > 0) f(h, i, j);
  }

  const Case& one_;
  const Sizes sizes_;
  std::mt19937_64& random_;
  Call clean_;
  std::string what_;
  std::vector<double> padded_, bias_;
  std::int64_t bias_heads_ = 1;
};

class AttendUnseen : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::vector<std::string_view> here = kernels::instruction_sets();
    if (std::find(here.begin(), here.end(), GetParam()) == here.end())
      GTEST_SKIP() << "this CPU or this build has no " << GetParam();
    kernels::set_instruction_set(GetParam());
  }
  void TearDown() override { kernels::set_instruction_set("auto"); }
};

TEST_P(AttendUnseen, RowsHaveNoEffect) {
  std::mt19937_64 random(test_seed());
  const bool pairs = GetParam() != "avx2" && GetParam() != "avx512";
  const std::vector<DType> dtypes =
      pairs ? std::vector<DType>{DType::bf16} : std::vector<DType>{DType::f64, DType::f32, DType::f16, DType::bf16};
  // One query; few, which go straight to memory; odd widths; several tiles; keys that are shared out.
  const Sizes all_sizes[] = {{1, 1, 150, 4, 2, 8, 8},
                             {1, 6, 140, 4, 4, 8, 24},
                             {1, 9, 77, 4, 2, 5, 3},
                             {1, 270, 300, 4, 2, 16, 16},
                             {1, 1, 4200, 4, 2, 5, 5}};
  for (const Case& one : cases_with(""))
    for (const Sizes& sizes : all_sizes) {
      // Some patterns in each run, and always those that hide single pairs from the middle of a tile.
      const bool hides_pairs = one.name.find("function") != std::string::npos;
      if (sizes.queries * sizes.keys > 4000 && random() % 4 != 0 && !hides_pairs) continue;
      const Threads threads(random() % 2 ? 1 : 5);
      UnseenRows(one, sizes, dtypes[random() % dtypes.size()], random).expect_no_effect();
      if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, AttendUnseen,
                         ::testing::Values("avx2", "avx512", "avx512_bf16", "amx", "emulated_bf16"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace poolgrad::attention
