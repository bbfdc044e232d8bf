// Rings of any size and layout give the values and gradients of one device, and always the same bits.
#include "attention/ring/ring.h"

#include <gtest/gtest.h>

#include "kernels/parallel.h"
#include "tests/attention/ring/ring_support.h"

namespace poolgrad::attention::testing_support {
namespace {

using Progress = LocalGroup::Progress;
constexpr int ring_sizes[] = {1, 2, 3, 4, 8};

/// Compares ring_attend_all() with attend(), for rings of every size and layout.
void expect_like_attend(const RingSizes& sizes, const Pattern& pattern, const RingOptions& options, const Tensor& sinks,
                        DType dtype, double tolerance) {
  const RingInputs in = ring_inputs(sizes, dtype);
  const auto with = [&](const Tensor& its_sinks) {
    RingOptions its = options;
    its.attend.sinks = its_sinks;
    return its;
  };
  // A call with dropout takes a key from the generator, so every call starts from the same state.
  Generator generator(3);
  const RingOutcome want = outcome_of(in, sinks, [&](const auto& q, const auto& k, const auto& v, const auto& s) {
    AttendOptions its = with(s).attend;
    its.generator = &(generator = Generator(3));
    return attend(q, k, v, pattern, its);
  });
  for (const int ranks : ring_sizes)
    for (const Layout layout : layouts) {
      const RingOutcome got = outcome_of(in, sinks, [&](const auto& q, const auto& k, const auto& v, const auto& s) {
        RingOptions its = with(s);
        its.layout = layout;
        its.attend.generator = &(generator = Generator(3));
        return ring_attend_all(q, k, v, pattern, ranks, its, Progress::turns);
      });
      EXPECT_EQ(differences(got, want, tolerance), "")
          << pattern.to_string() << ", " << text_of(sizes) << ", " << ranks << " ranks, " << to_string(layout);
    }
}

const std::vector<RingSizes> all_sizes{{1, 1, 1, 1, 1, 1, 1},   {2, 64, 64, 4, 2, 8, 8}, {1, 3, 3, 2, 1, 4, 4},
                                       {1, 29, 67, 2, 1, 4, 6}, {1, 13, 5, 2, 2, 4, 3},  {1, 3, 0, 2, 1, 4, 4},
                                       {0, 9, 9, 2, 1, 4, 4}};

TEST(Ring, DenseCausalAndWindowsEqualOneDevice) {
  for (const Pattern& pattern : {Pattern::dense(), Pattern::causal(), Pattern::window(5, 2), Pattern::window(0, 0),
                                 Pattern::causal() & Pattern::window(20, 20)})
    for (const RingSizes& sizes : all_sizes) expect_like_attend(sizes, pattern, {}, {}, DType::f64, 1e-12);
}

TEST(Ring, AlignsQueriesAtTheTopLeftOnRequest) {
  const RingOptions options{.attend = {.alignment = Alignment::top_left}};
  for (const RingSizes& sizes : {RingSizes{1, 29, 67, 2, 1, 4, 6}, RingSizes{1, 67, 29, 2, 1, 4, 6}})
    expect_like_attend(sizes, Pattern::causal(), options, {}, DType::f64, 1e-12);
}

TEST(Ring, DilatedBranchesEqualOneDevice) {
  for (const Pattern& pattern :
       {Pattern::dilated({8, 16, 64}, {1, 2, 4}), Pattern::dilated({8, 16, 64}, {1, 2, 4}) & Pattern::causal(),
        Pattern::dilated({16, 32}, {2, 3}, {.mode = DilatedMode::grouped}),
        Pattern::dilated({12, 30}, {2, 6}, {.offset = DilatedOffset::contiguous, .unite = true})})
    for (const RingSizes& sizes : {RingSizes{1, 96, 96, 4, 2, 4, 4}, RingSizes{1, 61, 61, 3, 3, 4, 4}})
      expect_like_attend(sizes, pattern, {}, {}, DType::f64, 1e-12);
}

TEST(Ring, BlocksDocumentsAndSumsEqualOneDevice) {
  for (const Pattern& pattern :
       {Pattern::dilated_sparse(16), Pattern::block_offsets(16, {0, -3}) & Pattern::causal(),
        Pattern::documents({0, 7, 7, 40, 90}) & Pattern::causal(), Pattern::random_blocks(16, 0.4, 9),
        Pattern::global_tokens(5) | Pattern::window(4, 4), Pattern::strided(7) & Pattern::causal(),
        Pattern::blocks(16, {0, 1, 3, 4, 5, 6, 7}, {0, 0, 1, 5, 3, 0, 2}),
        Pattern::window(6, 0) + Pattern::block_offsets(16, {0, -1})})
    for (const RingSizes& sizes : {RingSizes{1, 96, 96, 2, 1, 4, 4}, RingSizes{2, 61, 61, 2, 2, 4, 4}})
      expect_like_attend(sizes, pattern, {}, {}, DType::f64, 1e-12);
}

TEST(Ring, SinksSoftcapsAndSlopesEqualOneDevice) {
  const RingOptions options{.attend = {.scale = 0.7, .softcap = 2.5, .alibi = alibi_slopes(4, {.dtype = DType::f64})}};
  Generator generator(8);
  const Tensor sinks = randn({4}, {.dtype = DType::f64}, generator);
  for (const Pattern& pattern : {Pattern::dense(), Pattern::causal() & Pattern::window(9, 0)})
    for (const RingSizes& sizes : {RingSizes{2, 41, 41, 4, 2, 4, 4}, RingSizes{1, 13, 5, 4, 1, 4, 4}})
      expect_like_attend(sizes, pattern, options, sinks, DType::f64, 1e-12);
}

TEST(Ring, DropsTheSameWeightsAsOneDevice) {
  const RingOptions options{.attend = {.dropout = 0.4}};
  for (const Pattern& pattern : {Pattern::dense(), Pattern::dilated({8, 32}, {1, 2}) & Pattern::causal()})
    expect_like_attend({2, 53, 53, 4, 2, 4, 4}, pattern, options, {}, DType::f64, 1e-12);
}

TEST(Ring, WorksInEveryFloatingDtype) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-5}, {DType::f16, 2e-3}, {DType::bf16, 1.6e-2}})
    expect_like_attend({1, 65, 65, 4, 2, 16, 16}, Pattern::causal(), {}, {}, dtype, tolerance);
}

TEST(Ring, AllGatherEqualsTheRing) {
  const RingOptions options{.exchange = Exchange::all_gather};
  for (const Pattern& pattern : {Pattern::dense(), Pattern::causal(), Pattern::window(5, 2),
                                 Pattern::dilated({8, 16, 64}, {1, 2, 4}), Pattern::block_offsets(16, {0, -3})})
    for (const RingSizes& sizes : {RingSizes{1, 96, 96, 4, 2, 4, 4}, RingSizes{1, 5, 13, 2, 1, 4, 4}})
      expect_like_attend(sizes, pattern, options, {}, DType::f64, 1e-12);
}

TEST(Ring, GivesTheSameBitsOnThreadsAndInTurns) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int ranks : {2, 5})
      for (const Layout layout : layouts) {
        const Exchange exchange = dtype == DType::f32 ? Exchange::ring : Exchange::all_gather;
        const RingInputs in = ring_inputs({1, 75, 75, 4, 2, 8, 8}, dtype);
        const auto run = [&](Progress progress) {
          return outcome_of(in, {}, [&](const auto& q, const auto& k, const auto& v, const auto&) {
            return ring_attend_all(q, k, v, Pattern::causal(), ranks, {.layout = layout, .exchange = exchange},
                                   progress);
          });
        };
        const RingOutcome first = run(Progress::turns);
        EXPECT_TRUE(same_bits(run(Progress::turns), first)) << ranks << " ranks, " << to_string(layout);
        for (int round = 0; round < 2; ++round)
          EXPECT_TRUE(same_bits(run(Progress::threads), first)) << ranks << " ranks, " << to_string(layout);
      }
}

TEST(Ring, OneRankGivesTheBitsOfAttend) {
  const RingInputs in = ring_inputs({1, 50, 50, 4, 2, 8, 8}, DType::f32);
  const RingOutcome want = outcome_of(in, {}, [](const auto& q, const auto& k, const auto& v, const auto&) {
    return attend(q, k, v, Pattern::causal());
  });
  const RingOutcome got = outcome_of(in, {}, [](const auto& q, const auto& k, const auto& v, const auto&) {
    return ring_attend_all(q, k, v, Pattern::causal(), 1, {.layout = Layout::striped});
  });
  EXPECT_TRUE(same_bits(got, want));
}

TEST(Ring, GivesTheSameBitsForAnyNumberOfThreads) {
  const RingInputs in = ring_inputs({1, 130, 130, 4, 2, 16, 16}, DType::f32);
  const int before = kernels::num_threads();
  std::vector<RingOutcome> outcomes;
  for (const int threads : {1, 3}) {
    kernels::set_num_threads(threads);
    outcomes.push_back(outcome_of(in, {}, [](const auto& q, const auto& k, const auto& v, const auto&) {
      return ring_attend_all(q, k, v, Pattern::causal(), 3, {.layout = Layout::zigzag});
    }));
  }
  kernels::set_num_threads(before);
  EXPECT_TRUE(same_bits(outcomes[0], outcomes[1]));
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
