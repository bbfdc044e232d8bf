#include "attention/modules/named.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "autograd/gradcheck.h"
#include "tests/attention/modules/gathered_dilated.h"
#include "tests/attention/modules/module_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using namespace testing_support;
using poolgrad::testing_support::error_of;
using ::testing::StartsWith;

using Lengths = std::vector<std::int64_t>;

struct Branches {
  Lengths w, r;
};
/// Nested, with rates that do not divide segments, not nested, and one longer than every length here.
const std::vector<Branches>& branch_sets() {
  static const std::vector<Branches> sets{
      {{4, 8, 16}, {1, 2, 4}}, {{5, 7}, {3, 2}}, {{8, 12}, {4, 6}}, {{6}, {2}}, {{3, 1000}, {1, 8}}};
  return sets;
}

struct Variant {
  const char* name;
  DilatedOptions options;
  oracle::Multiplicity (*definition)(const Branches&);
};
const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{
      {"longnet", {}, [](const Branches& b) { return oracle::longnet(b.w, b.r); }},
      {"contiguous",
       {.offset = DilatedOffset::contiguous},
       [](const Branches& b) { return oracle::longnet(b.w, b.r, true); }},
      {"united", {.unite = true}, [](const Branches& b) { return oracle::united(oracle::longnet(b.w, b.r)); }},
      {"grouped", {.mode = DilatedMode::grouped}, [](const Branches& b) { return oracle::grouped(b.w, b.r); }},
  };
  return all;
}

/// Calls f(branches, variant, causal, text) for every combination.
template <class F>
void for_all(F&& f) {
  for (const Branches& branches : branch_sets())
    for (const Variant& variant : variants())
      for (const bool causal : {false, true})
        f(branches, variant, causal,
          std::string(variant.name) + (causal ? " causal " : " ") +
              Pattern::dilated(branches.w, branches.r, variant.options).to_string());
}

TEST(DilatedAttention, ComputesTheDefinitionForAnyLength) {
  for_all([](const Branches& branches, const Variant& variant, bool causal, const std::string& text) {
    DilatedAttention module(branches.w, branches.r, variant.options);
    for (const std::int64_t length : {1, 2, 13, 16, 33}) {
      SCOPED_TRACE(text + " n " + std::to_string(length));
      EXPECT_EQ(against_definition(module, of_length(length), variant.definition(branches), causal), "");
    }
  });
}

TEST(DilatedAttention, EqualsTheMixOfSeparateBranches) {
  for_all([](const Branches& branches, const Variant& variant, bool causal, const std::string& text) {
    DilatedAttention module(branches.w, branches.r, variant.options);
    GatheredDilatedAttention gathered(branches.w, branches.r, variant.options);
    for (const std::int64_t length : {1, 40}) {
      SCOPED_TRACE(text + " n " + std::to_string(length));
      EXPECT_EQ(against_each_other(module, gathered, of_length(length), {.causal = causal}), "");
    }
  });
}

TEST(DilatedAttention, TakesMemoryLinearInTheLengthAndNoScores) {
  const auto peaks = [](AttentionCore& core, std::int64_t length) {
    const ModuleInputs inputs = make_inputs({.batch = 1, .queries = length, .keys = length}, DType::f32);
    run(core, inputs, {.causal = true});  // allocates the lasting kernel scratch
    CachingAllocator& pool = allocator_for(cpu);
    const auto before = pool.statistics().requested_bytes.current;
    pool.reset_peaks();
    run(core, inputs, {.causal = true});
    const Statistics after = pool.statistics();
    EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::scores)].peak, 0u);
    EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::weights)].peak, 0u);
    return after.requested_bytes.peak - before;
  };
  const Lengths w{64, 128, 256}, r{1, 2, 4};
  DilatedAttention module(w, r);
  EXPECT_LE(peaks(module, 1400), 2 * peaks(module, 700));
}

TEST(DilatedAttention, IsDenseWithinSegmentsForOneUndilatedBranch) {
  for (const DilatedMode mode : {DilatedMode::longnet, DilatedMode::grouped})
    for (const bool causal : {false, true}) {
      DilatedAttention segments({8}, {1}, {.mode = mode}), whole({1000}, {1}, {.mode = mode});
      const auto same_segment = [](auto, auto, std::int64_t i, std::int64_t j) { return std::int64_t{i / 8 == j / 8}; };
      EXPECT_EQ(against_definition(segments, of_length(29), same_segment, causal), "");
      EXPECT_EQ(against_definition(whole, of_length(29), oracle::dense(), causal), "");
    }
}

TEST(DilatedAttention, AlignsTheLastQueryWithTheLastKey) {
  for_all([](const Branches& branches, const Variant& variant, bool causal, const std::string& text) {
    DilatedAttention module(branches.w, branches.r, variant.options);
    for (const auto& [queries, keys] : {std::pair{1, 19}, {5, 19}, {19, 5}}) {
      SCOPED_TRACE(text + " " + std::to_string(queries) + " queries, " + std::to_string(keys) + " keys");
      const ModuleSizes sizes{.queries = queries, .keys = keys};
      EXPECT_EQ(against_definition(module, sizes, variant.definition(branches), causal), "");
    }
  });
}

TEST(DilatedAttention, SharesKeysAmongGroupsOfHeads) {
  for (const std::int64_t kv_heads : {1, 2, 3}) {
    const ModuleSizes sizes{.queries = 21, .keys = 21, .heads = 6, .kv_heads = kv_heads};
    const Branches branches{{4, 8}, {1, 2}};
    DilatedAttention module(branches.w, branches.r);
    EXPECT_EQ(against_definition(module, sizes, oracle::longnet(branches.w, branches.r)), "");
  }
}

TEST(DilatedAttention, AddsABiasToTheScores) {
  const ModuleInputs inputs = make_inputs(of_length(14));
  const Branches branches{{4, 8}, {1, 2}};
  DilatedAttention module(branches.w, branches.r);
  Generator generator(3);
  for (const Shape& shape : {Shape{2, 4, 14, 14}, Shape{1, 4, 1, 14}, Shape{2, 1, 14, 1}, Shape{1, 1, 1, 1}}) {
    const Tensor bias = randn(shape, {.dtype = DType::f64}, generator);
    const ModuleOutcome want = defined(inputs, oracle::longnet(branches.w, branches.r), true, bias);
    EXPECT_EQ(difference(run(module, inputs, {.causal = true, .bias = bias}), want), "") << describe(bias);
  }
}

TEST(DilatedAttention, DropsTheSameWeightsInEveryForm) {
  const ModuleInputs inputs = make_inputs(of_length(23));
  Generator generators[] = {Generator(7), Generator(7)};
  const auto options = [&](std::size_t n) { return CoreOptions{.dropout = 0.4, .generator = &generators[n]}; };
  GatheredDilatedAttention gathered({4, 8}, {1, 2}, {}, options(0));
  DilatedAttention module({4, 8}, {1, 2}, {}, options(1));
  for (int call = 0; call < 3; ++call) EXPECT_EQ(difference(run(module, inputs), run(gathered, inputs)), "") << call;
  DilatedAttention plain({4, 8}, {1, 2});
  EXPECT_NE(difference(run(module, inputs), run(plain, inputs)), "");
  module.eval();
  EXPECT_EQ(difference(run(module, inputs), run(plain, inputs)), "");
}

TEST(DilatedAttention, CountsAPairOncePerBranchUnlessUnited) {
  const ModuleInputs inputs = make_inputs(of_length(16));
  DilatedAttention multiset({4, 8}, {1, 2}), united({4, 8}, {1, 2}, {.unite = true});
  EXPECT_NE(difference(run(multiset, inputs), run(united, inputs)), "");
  DilatedAttention one({8}, {2}), one_united({8}, {2}, {.unite = true});
  EXPECT_EQ(difference(run(one, inputs), run(one_united, inputs)), "");
}

TEST(DilatedAttention, GivesZeroForQueriesOutsideEveryBranch) {
  DilatedAttention module({8}, {2});
  const ModuleInputs inputs = make_inputs(of_length(11));
  const Tensor out = run(module, inputs).out;
  for (std::int64_t h = 0; h < 4; ++h)
    for (std::int64_t i = 0; i < 11; ++i) {
      const bool covered = i % 8 % 2 == h % 2;
      EXPECT_EQ(norm(select(select(out, 2, h), 1, i)).item() > 0, covered) << "head " << h << " query " << i;
    }
}

TEST(DilatedAttention, HasTheGradientsOfCentralDifferences) {
  DilatedAttention module({4, 8}, {1, 2});
  ModuleInputs inputs = make_inputs({.batch = 1, .queries = 7, .keys = 7, .heads = 2, .kv_heads = 2, .width = 2});
  const auto function = [&](const std::vector<Tensor>& x) {
    return std::vector{module(x[0], x[1], x[2], {.causal = true})};
  };
  const std::vector<Tensor> x{inputs.q.set_requires_grad(), inputs.k.set_requires_grad(), inputs.v.set_requires_grad()};
  const GradcheckReport report = gradcheck(function, x);
  EXPECT_TRUE(report);
}

TEST(DilatedAttention, WorksInHalfPrecision) {
  DilatedAttention module({4, 8}, {1, 2});
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const ModuleInputs inputs = make_inputs(of_length(21), dtype);
    const ModuleInputs exact{to(inputs.q, DType::f64), to(inputs.k, DType::f64), to(inputs.v, DType::f64),
                             to(inputs.grad_out, DType::f64)};
    const ModuleOutcome want = run(module, exact);
    const double tolerance = dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 2e-3 : 1.6e-2;  // 2 units of rounding
    EXPECT_EQ(run(module, inputs).out.dtype(), dtype);
    EXPECT_EQ(difference(run(module, inputs), want, tolerance), "") << describe(inputs.q);
  }
}

TEST(DilatedAttention, RefusesInvalidOptions) {
  const auto refusal = [](const Lengths& w, const Lengths& r) {
    return error_of<ValueError>([&] { DilatedAttention(w, r); });
  };
  EXPECT_THAT(refusal({}, {}), StartsWith("["));
  EXPECT_THAT(refusal({4, 8}, {1}), StartsWith("["));
  EXPECT_THAT(refusal({4, 0}, {1, 1}), StartsWith("["));
  EXPECT_THAT(refusal({4}, {5}), StartsWith("["));
  EXPECT_THAT(error_of<ValueError>([] { DilatedAttention({4}, {1}, {}, {.dropout = 1.0}); }), StartsWith("["));

  DilatedAttention grouped({4, 8}, {1, 2}, {.mode = DilatedMode::grouped});
  const ModuleInputs one_head = make_inputs({.heads = 1, .kv_heads = 1});
  EXPECT_EQ(error_of<ValueError>([&] { grouped(one_head.q, one_head.k, one_head.v); }),
            "[dilated] in grouped mode every branch needs a head: 1 heads, 2 branches");
  DilatedAttention strict({4, 8}, {1, 2}, {.require_divisible = true});
  const ModuleInputs odd = make_inputs(of_length(13)), even = make_inputs(of_length(16));
  EXPECT_THAT(error_of<ValueError>([&] { strict(odd.q, odd.k, odd.v); }), StartsWith("["));
  EXPECT_NO_THROW(strict(even.q, even.k, even.v));
}

TEST(DilatedAttention, RefusesMismatchedOperands) {
  DilatedAttention module({4}, {1});
  const ModuleInputs inputs = make_inputs({}), shorter = make_inputs(of_length(3)),
                     single = make_inputs({}, DType::f32);
  const ModuleInputs heads = make_inputs({.heads = 3, .kv_heads = 3});
  EXPECT_THAT(error_of<ShapeError>([&] { module(inputs.q, inputs.k, shorter.v); }), StartsWith("["));
  EXPECT_THAT(error_of<ShapeError>([&] { module(inputs.q, heads.k, heads.v); }), StartsWith("["));
  EXPECT_THAT(error_of<ShapeError>([&] { module(select(inputs.q, 0, 0), inputs.k, inputs.v); }), StartsWith("["));
  EXPECT_THAT(error_of<DTypeError>([&] { module(inputs.q, single.k, inputs.v); }), StartsWith("["));
  EXPECT_THAT(error_of<ValueError>([&] { module(inputs.q, {}, inputs.v); }), StartsWith("["));
}

}  // namespace
}  // namespace poolgrad::attention
