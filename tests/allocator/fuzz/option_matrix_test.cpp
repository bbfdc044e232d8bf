// Options do not interfere: a random program runs for every pair of values of two options.
#include "tests/allocator/fuzz/episode.h"
#include "tests/allocator/fuzz/pairwise.h"

namespace poolgrad::testing {
namespace {

const std::vector<AllocatorMode> modes = {AllocatorMode::standard, AllocatorMode::lightweight, AllocatorMode::none,
                                          AllocatorMode::planned};
const std::vector<std::string> kinds = {"host", "sim", "handles"};
const std::vector<std::size_t> budgets = {0, 3 * page, 24 * page};
const std::vector<std::size_t> alignments = {64, 512};

// The numbers of values of the options that setup_of() reads, in its order.
const std::vector<std::size_t> option_counts = {
    modes.size(), 2, 2, 2, 2, 2, 2, budgets.size(), 2, 2, kinds.size(), 2, 2, alignments.size(), 2};

PoolSetup setup_of(const OptionRow& row) {
  PoolSetup setup;
  std::size_t option = 0;
  const auto next = [&] { return row[option++]; };
  setup.config.mode = modes[next()];
  setup.config.magazines = next() == 0;
  setup.config.stitch = next() == 0;
  setup.config.stitch_idle = next() == 0;
  setup.config.deterministic = next() == 0;
  setup.config.poison = next() == 0;
  setup.config.budget = budgets[next()];
  setup.config.decay = next() == 0 ? 0 : 50;
  setup.config.trace = next() == 0 ? 0 : 100;
  setup.device = kinds[next()];
  setup.granularity = next() == 0 ? page : 64 * KiB;
  setup.delayed = next() == 0;
  setup.config.alignment = alignments[next()];
  setup.capacity = next() == 0 ? 64 * page : 6 * page;
  return setup;
}

TEST(Pairwise, CoversEveryPair) {
  const std::vector<std::size_t> counts = {3, 2, 4, 2};
  const auto rows = pairwise(counts, test_seed());
  std::set<OptionPair> covered;
  for (const OptionRow& row : rows) {
    for (std::size_t i = 0; i < counts.size(); ++i) ASSERT_LT(row[i], counts[i]);
    for (const OptionPair& pair : pairs_of(row)) covered.insert(pair);
  }
  EXPECT_EQ(covered.size(), 3u * 2 + 3 * 4 + 3 * 2 + 2 * 4 + 2 * 2 + 4 * 2);
  EXPECT_LT(rows.size(), 3u * 2 * 4 * 2);
}

TEST(OptionMatrix, HoldsForEveryPairOfOptions) {
  const auto rows = pairwise(option_counts, test_seed());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Random random(test_seed() + i);
    const PoolSetup setup = setup_of(rows[i]);
    Shape shape = random_shape(random, setup);
    shape.fail_calls &= !setup.config.poison;
    shape.threads = 1 + random.below(3) / 2;
    const auto failure = run_episode(setup, random_script(random, setup, shape, 1500));
    ASSERT_FALSE(failure) << "row " << i << " of seed " << test_seed() << ": " << failure->text();
  }
}

}  // namespace
}  // namespace poolgrad::testing
