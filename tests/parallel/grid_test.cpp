// The division of work between ranks, and the values on which they must agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "parallel/collectives.h"
#include "parallel/training_ranks.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad::parallel {
namespace {

using attention::Communicator;
using attention::LocalGroup;
using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

TEST(Grid, ParsesItsOption) {
  EXPECT_EQ(to_string(Grid::parse("ring", 4)), "ring:4,data:1");
  EXPECT_EQ(to_string(Grid::parse("data", 4)), "ring:1,data:4");
  EXPECT_EQ(to_string(Grid::parse("ring:2,data:3", 6)), "ring:2,data:3");
  EXPECT_EQ(to_string(Grid::parse("data,ring:2", 8)), "ring:2,data:4");
  EXPECT_EQ(to_string(Grid::parse("data:1", 1)), "ring:1,data:1");
}

TEST(Grid, RefusesGridsOfTheWrongSize) {
  for (const char* text : {"", "rings", "ring:0", "ring:x", "ring:2,ring:2", "ring,data", "ring:2,", "ring:2 ,data:2"})
    EXPECT_THAT(error_of<ValueError>([&] { Grid::parse(text, 4); }), HasSubstr("share sequences (ring)")) << text;
  EXPECT_EQ(error_of<ValueError>([&] { Grid::parse("ring:2,data:3", 4); }),
            "[parallel] ranks share sequences (ring), batches (data) or both (ring:R,data:D): ring:2,data:3 does not "
            "make 4 ranks");
  EXPECT_THAT(error_of<ValueError>([&] { Grid::parse("ring:3,data", 4); }), HasSubstr("does not make 4 ranks"));
}

/// Runs body(ranks) on every rank of a grid.
void on_grid(const Grid& grid, const std::function<void(TrainingRanks&)>& body) {
  LocalGroup group(grid.size());
  group.run(1, [&](Communicator& one, int) {
    TrainingRanks ranks(group.communicator(one.rank()), grid);
    body(ranks);
  });
}

TEST(TrainingRanks, HaveDisjointSharesThatCoverTheBatch) {
  const Grid grid{2, 3};
  std::multiset<std::pair<std::int64_t, std::int64_t>> seen;
  std::mutex mutex;
  on_grid(grid, [&](TrainingRanks& ranks) {
    const nn::BatchShare share = ranks.share(7, 13);
    const std::lock_guard lock(mutex);
    for (std::int64_t row = 0; row < share.rows; ++row)
      for (std::int64_t t = 0; t < share.positions.count; ++t)
        seen.insert({share.first_row + row, share.positions.position(t)});
  });
  EXPECT_EQ(seen.size(), 7u * 13u);
  for (std::int64_t row = 0; row < 7; ++row)
    for (std::int64_t t = 0; t < 13; ++t) EXPECT_EQ(seen.count({row, t}), 1u);
}

TEST(TrainingRanks, RefuseTooSmallBatchesAndSequences) {
  on_grid({2, 2}, [&](TrainingRanks& ranks) {
    EXPECT_EQ(error_of<ValueError>([&] { ranks.share(1, 10); }),
              "[parallel] a batch of 1 is too small to be shared by 2 ranks (data)");
    EXPECT_EQ(error_of<ValueError>([&] { ranks.share(2, 1); }),
              "[parallel] sequences of 1 are too short to be shared by 2 ranks (ring)");
  });
}

TEST(TrainingRanks, SumInRankOrder) {
  const double parts[] = {1e16, 1.0, -1e16, 1.0};  // no other order of the sum gives 1
  on_grid({1, 4}, [&](TrainingRanks& ranks) {
    double values[] = {parts[ranks.rank()], 2.0};
    ranks.sum(values);
    EXPECT_EQ(values[0], ((parts[0] + parts[1]) + parts[2]) + parts[3]);
    EXPECT_EQ(values[1], 8.0);
  });
}

TEST(SumOverRanks, AddsTensorsInRankOrderOnEveryRank) {
  for (const std::int64_t count : {0, 1, 3, 4, 4099}) {
    LocalGroup group(4);
    std::vector<Tensor> sums(4);
    group.run(1, [&](Communicator& one, int) {
      Generator generator(static_cast<std::uint64_t>(one.rank()) + 1);
      Tensor mine = randn({count}, {.dtype = DType::f32}, generator);
      SumOverRanks sum(group.communicator(one.rank()), mine);
      sum.add();
      sum.finish();
      sums[static_cast<std::size_t>(one.rank())] = mine;
    });
    std::vector<float> want(static_cast<std::size_t>(count));
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      Generator generator(rank + 1);
      const auto part = randn({count}, {.dtype = DType::f32}, generator).to_vector<float>();
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = rank == 0 ? part[i] : want[i] + part[i];
    }
    for (const Tensor& sum : sums) EXPECT_EQ(sum.to_vector<float>(), want) << count;
  }
}

TEST(TrainingRanks, ReceiveTensorsFromTheirOwners) {
  on_grid({1, 3}, [&](TrainingRanks& ranks) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 5; ++i) tensors.push_back(full({2, 3}, 10.0 * ranks.rank() + i));
    tensors.push_back(full({3}, ranks.rank(), {.dtype = DType::f64}));
    const std::vector<int> owners{2, 0, 0, 1, 2, 1};
    ranks.share_out(tensors, owners);
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_EQ(tensors[i].to_vector<double>(), std::vector<double>(6, 10.0 * owners[i] + static_cast<double>(i)));
    EXPECT_EQ(tensors[5].to_vector<double>(), std::vector<double>(3, 1.0));
  });
}

TEST(TrainingRanks, NameTheFirstRankWithAnotherOption) {
  on_grid({1, 4}, [&](TrainingRanks& ranks) {
    const std::string rate = ranks.rank() >= 2 ? "0.1" : "0.003";
    EXPECT_EQ(error_of<ValueError>([&] {
                ranks.agree({{"--width", "64"}, {"--lr", rate}});
              }),
              "[parallel] ranks differ in --lr: it is 0.003 on rank 0, and 0.1 on rank 2");
    ranks.agree({{"--text", "a b: 3"}, {"", ""}});
  });
}

TEST(Owners, HaveAtMostTheirSharePlusTheLargestParameter) {
  std::vector<Tensor> parameters;
  for (const std::int64_t size : {40, 7, 7, 100, 3, 60, 1, 12}) parameters.push_back(zeros({size}));
  const std::vector<int> owners = nn::owners_of(parameters, 3);
  std::vector<std::int64_t> elements(3);
  for (std::size_t i = 0; i < owners.size(); ++i)
    elements.at(static_cast<std::size_t>(owners[i])) += parameters[i].numel();
  EXPECT_EQ(elements[0] + elements[1] + elements[2], 230);
  for (const std::int64_t own : elements) EXPECT_LE(own, 230 / 3 + 100);
  EXPECT_EQ(owners[3], 0) << "the largest goes first";
  EXPECT_NE(owners[5], owners[3]);
}

}  // namespace
}  // namespace poolgrad::parallel
