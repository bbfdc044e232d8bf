// Tiles give the results of the whole, in the memory of one tile.
#include "autograd/memory/checkpoint_tiled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using local::message_of;

Tensor made(const Shape& shape, std::uint64_t seed, DType dtype = DType::f64) {
  Generator generator(seed);
  return randn(shape, {.dtype = dtype}, generator).set_requires_grad();
}

class Tiled : public testing::Test {
 protected:
  void TearDown() override {
    x_ = up_ = down_ = {};
    EXPECT_EQ(live_node_count(), nodes_);
    EXPECT_EQ(allocator_for(cpu).statistics().requested_bytes.current, bytes_);
  }
  Tensor feed_forward(const Tensor& x) {
    ++calls_;
    return matmul(gelu(matmul(rms_norm(x), up_)), down_);
  }
  Tensor tiled(std::int64_t tile) {
    return checkpoint_tiled([this](const Tensor& x) { return feed_forward(x); }, x_, 1, tile);
  }
  std::vector<Tensor> gradients(const Tensor& y) { return grad({sum(y * y)}, {x_, up_, down_}); }

  const std::int64_t nodes_ = live_node_count();
  const std::uint64_t bytes_ = allocator_for(cpu).statistics().requested_bytes.current;
  int calls_ = 0;
  Tensor x_ = made({2, 10, 4}, 1), up_ = made({4, 16}, 2), down_ = made({16, 4}, 3);
};

TEST_F(Tiled, EqualsTheWholeForAnyTileSize) {
  const Tensor whole = feed_forward(x_);
  const std::vector<Tensor> expected = gradients(whole);
  for (const std::int64_t tile : {1, 3, 5, 10, 11}) {
    calls_ = 0;
    const Tensor y = tiled(tile);
    EXPECT_LT(relative_error(y, whole), 1e-14) << "tiles of " << tile;
    const std::vector<Tensor> found = gradients(y);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_LT(relative_error(found[i], expected[i]), 1e-14) << "tiles of " << tile << ", tensor " << i;
    EXPECT_EQ(calls_, 2 * ((10 + tile - 1) / tile));
    const std::vector<Tensor> again = gradients(tiled(tile));
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(bit_equal(found[i], again[i]));
  }
}

TEST_F(Tiled, CutsSeveralInputsAndAnyDimension) {
  const Tensor mask = from_data<double>({1, 0, 1, 1}, {4});
  const Tensor other = made({4}, 5);
  const auto function = [](const std::vector<Tensor>& in) {
    EXPECT_FALSE(in[2].defined());
    return exp(in[0]) * in[1] * in[3];
  };
  const auto found = [&](std::int64_t tile) {
    const Tensor row = select(select(x_, 0, 1), 0, 3);  // (4)
    const Tensor y =
        tile == 0 ? function({row, mask, {}, other}) : checkpoint_tiled(function, {row, mask, {}, other}, -1, tile);
    return grad({sum(y * y)}, {x_, other});
  };
  for (const std::int64_t tile : {1, 3}) {
    EXPECT_TRUE(bit_equal(found(tile)[0], found(0)[0]));
    EXPECT_TRUE(bit_equal(found(tile)[1], found(0)[1]));
  }
}

TEST_F(Tiled, HasSecondDerivatives) {
  const auto second = [&](const Tensor& y) {
    const Tensor first = grad({sum(y * y)}, {x_}, {}, {.create_graph = true})[0];
    return grad({sum(first * first)}, {x_, up_});
  };
  const std::vector<Tensor> expected = second(feed_forward(x_)), found = second(tiled(4));
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_LT(relative_error(found[i], expected[i]), 1e-12);
}

TEST_F(Tiled, NestsInACheckpoint) {
  const auto over_tiles = [this](const Tensor& x) {
    return checkpoint_tiled([this](const Tensor& part) { return feed_forward(part); }, sin(x), 1, 4);
  };
  const std::vector<Tensor> expected = gradients(over_tiles(x_));
  calls_ = 0;
  const std::vector<Tensor> found = gradients(checkpoint(over_tiles, x_));
  EXPECT_EQ(calls_, 3 + 3);  // the outer function's second run ends at the tensor that it passed to the first tile
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(bit_equal(found[i], expected[i]));
}

TEST_F(Tiled, KeepsNoGraphWithoutRequiresGrad) {
  const NoGradGuard guard;
  const Tensor y = tiled(3);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_LT(relative_error(y, feed_forward(x_)), 1e-14);
  const Tensor nothing = checkpoint_tiled([](const Tensor& x) { return exp(x); }, zeros({2, 0, 3}), 1, 8);
  EXPECT_EQ(nothing.shape(), (Shape{2, 0, 3}));
}

TEST_F(Tiled, NeedsTheMemoryOfOneTile) {
  constexpr std::int64_t positions = 512, tile = 32, hidden = 64;
  Tensor x = made({1, positions, 8}, 7), wide = made({8, hidden}, 8), narrow = made({hidden, 8}, 9);
  const auto layer = [&](const Tensor& in) { return matmul(gelu(matmul(in, wide)), narrow); };
  CachingAllocator& pool = allocator_for(cpu);
  const auto peak = [&](const std::function<Tensor()>& forward) {
    const std::uint64_t before = pool.statistics().requested_bytes.current;
    pool.reset_peaks();
    const Tensor y = forward();
    const std::uint64_t kept = pool.statistics().requested_bytes.current - before;
    grad({y}, {x, wide, narrow}, {y.detach()});
    return std::pair{kept, pool.statistics().requested_bytes.peak - before};
  };
  constexpr std::uint64_t row = sizeof(double);
  const auto [kept, whole] = peak([&] { return layer(x); });
  const auto [kept_tiled, tiled_peak] = peak([&] { return checkpoint_tiled(layer, x, 1, tile); });
  EXPECT_EQ(kept, positions * (8 + 2 * hidden) * row);
  EXPECT_EQ(kept_tiled, positions * 8 * row);  // the result
  EXPECT_GT(whole, positions * (8 + 3 * hidden) * row);
  // Result, whose gradient shares its memory; gradient of x in tiles, then joined; weights' gradients; tiles.
  EXPECT_LT(tiled_peak, (positions * 8 * 3 + 4 * 8 * hidden + tile * 6 * hidden) * row);
}

TEST_F(Tiled, RejectsBadInputsInOneSentence) {
  const auto same = [](const std::vector<Tensor>& in) { return exp(in[0]); };
  EXPECT_EQ(message_of([&] { checkpoint_tiled(same, {x_}, 1, 0); }),
            "[checkpoint_tiled] a tile must have at least 1 position: 0");
  EXPECT_EQ(message_of([&] { checkpoint_tiled(same, {Tensor()}, 1, 2); }),
            "[checkpoint_tiled] no tensor to cut into tiles");
  EXPECT_EQ(message_of([&] {
              checkpoint_tiled(same, {x_, up_}, 1, 2);
            }),
            "[checkpoint_tiled] inputs differ in dimension 1: (2, 10, 4) f64 on cpu, (4, 16) f64 on cpu");
  EXPECT_EQ(message_of([&] { checkpoint_tiled([](const Tensor& x) { return sum(x); }, x_, 1, 4); }),
            "[checkpoint_tiled] the result of a tile must have its 4 positions in dimension 1: () f64 on cpu");
  int part = 0;
  EXPECT_EQ(message_of([&] {
              checkpoint_tiled([&](const Tensor& x) { return ++part < 2 ? x * 1.0 : to(x, DType::f32); }, x_, 1, 4);
            }),
            "[checkpoint_tiled] results of tiles differ: (2, 4, 4) f32 on cpu beside parts of (2, 10, 4) f64 on cpu");
}

}  // namespace
}  // namespace poolgrad
