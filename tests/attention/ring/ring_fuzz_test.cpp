// Random rings: pattern, lengths, heads, layout, number of ranks and execution mode, compared with one device.
#include <gtest/gtest.h>

#include "tests/attention/ring/ring_support.h"
#include "tests/attention/unseen_rows.h"
#include "tests/test_seed.h"

namespace poolgrad::attention::testing_support {
namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool coin() { return between(0, 1) == 1; }

  Pattern band() {
    switch (between(0, 3)) {
      case 0: return Pattern::causal();
      case 1: return Pattern::window(between(0, 40), between(0, 40));
      case 2: return Pattern::documents({0, between(0, 20), between(20, 60), between(60, 120)});
      default: return Pattern::dense();
    }
  }
  Pattern term() {
    switch (between(0, 7)) {
      case 0: return Pattern::sink_tokens(between(1, 9));
      case 1: return Pattern::dilated_sparse(16);
      case 2: return Pattern::block_offsets(16, {{between(-4, 4)}, {0, 2}});
      case 3: return Pattern::strided(between(2, 30));
      case 4: return Pattern::random_blocks(16, 0.3, static_cast<std::uint64_t>(between(0, 99)));
      case 5: return Pattern::global_tokens(between(1, 9));
      default: {
        const std::int64_t r = between(1, 4), w = between(8, 24);
        return Pattern::dilated({w, w * between(1, 3)}, {r, r * between(1, 2)},
                                {.mode = coin() ? DilatedMode::grouped : DilatedMode::longnet, .unite = coin()});
      }
    }
  }
  Pattern pattern() {
    switch (between(0, 3)) {
      case 0: return band();
      case 1: return term();
      case 2: return term() & band();
      default: return term() + Pattern::window(between(0, 5), 0);
    }
  }

 private:
  std::mt19937_64 engine_;
};

TEST(RingFuzz, RandomRingsEqualOneDevice) {
  const std::uint64_t seed = test_seed();
  for (std::uint64_t round = 0; round < 60; ++round) {
    Draw draw(seed + round);
    const std::int64_t group = draw.between(1, 2), kv_heads = draw.between(3 - group, 2), keys = draw.between(0, 110);
    const RingSizes sizes{draw.between(1, 2),
                          draw.coin() ? keys : draw.between(0, 90),
                          keys,
                          group * kv_heads,
                          kv_heads,
                          draw.between(1, 9),
                          draw.between(1, 9)};
    const auto ranks = static_cast<int>(draw.between(1, 7));
    const auto layout = static_cast<Layout>(draw.between(0, 2));
    const auto exchange = draw.coin() ? Exchange::ring : Exchange::all_gather;
    const auto progress = draw.between(0, 3) == 0 ? LocalGroup::Progress::threads : LocalGroup::Progress::turns;
    const Alignment alignment = draw.coin() ? Alignment::bottom_right : Alignment::top_left;
    const double dropout = draw.coin() ? 0.0 : 0.3;
    const RingInputs in = ring_inputs(sizes, DType::f64, seed + round);
    const Tensor sinks = draw.coin() ? randn({sizes.heads}, {.dtype = DType::f64}) : Tensor();
    const Pattern pattern = draw.pattern();
    const auto run = [&](bool ring) {
      return outcome_of(in, sinks, [&](const auto& q, const auto& k, const auto& v, const auto& s) {
        Generator generator(round);
        const AttendOptions options{.alignment = alignment, .sinks = s, .dropout = dropout, .generator = &generator};
        if (!ring) return attend(q, k, v, pattern, options);
        return ring_attend_all(q, k, v, pattern, ranks, {.attend = options, .layout = layout, .exchange = exchange},
                               progress);
      });
    };
    EXPECT_EQ(differences(run(true), run(false), 1e-11), "")
        << "round " << round << ": " << pattern.to_string() << ", " << text_of(sizes) << ", " << ranks << " ranks, "
        << to_string(layout) << (exchange == Exchange::ring ? "" : ", all-gather")
        << (alignment == Alignment::top_left ? ", top left" : "");
  }
}

/// Rows that a row does not see have no effect on it, on their own rank or in a message.
TEST(RingUnseen, RowsHaveNoEffect) {
  std::mt19937_64 random(test_seed());
  for (const Case& one : cases_with("")) {
    Draw draw(random());
    const auto ranks = static_cast<int>(draw.between(2, 5));
    const auto layout = static_cast<Layout>(draw.between(0, 2));
    const auto exchange = draw.coin() ? Exchange::ring : Exchange::all_gather;
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + to_string(layout) +
                 (exchange == Exchange::ring ? "" : ", all-gather"));
    const UnseenRows::Run run = [&](const Call& call, const Pattern& pattern) {
      return outcome_of(call, [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
        return ring_attend_all(q, k, v, pattern, ranks, {.attend = options, .layout = layout, .exchange = exchange});
      });
    };
    const Sizes sizes = draw.coin() ? Sizes{1, 71, 71, 4, 2, 8, 8} : Sizes{1, 29, 71, 4, 4, 5, 3};
    const DType dtypes[] = {DType::f64, DType::f32, DType::bf16};
    UnseenRows(one, sizes, dtypes[draw.between(0, 2)], random, run, /*may_be_biased=*/false).expect_no_effect();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
