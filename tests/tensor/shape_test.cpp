#include "tensor/shape.h"

#include <gtest/gtest.h>

#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing_support::error_of;

constexpr std::int64_t huge = std::int64_t{1} << 62;

TEST(Dims, HoldsUpToEightSizesInline) {
  Dims dims{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(dims.rank(), 8);
  EXPECT_EQ(dims.back(), 8);
  EXPECT_EQ(error_of<ShapeError>([&] { dims.append(9); }), "[shape] 9 dimensions: at most 8");
  EXPECT_EQ(error_of<ShapeError>([] { Dims::filled(9, 1); }), "[shape] 9 dimensions: at most 8");
  EXPECT_EQ(dims, (Dims{1, 2, 3, 4, 5, 6, 7, 8})) << "unchanged by the failure";
}

TEST(Dims, InsertsAndErasesAnywhere) {
  Dims dims{2, 4};
  dims.insert(1, 3);
  dims.insert(0, 1);
  dims.append(5);
  EXPECT_EQ(dims, (Dims{1, 2, 3, 4, 5}));
  dims.erase(0);
  dims.erase(3);
  dims.erase(1);
  EXPECT_EQ(dims, (Dims{2, 4}));
  EXPECT_NE(dims, (Dims{2, 4, 1}));
  EXPECT_NE(dims, (Dims{4, 2}));
}

TEST(Dims, AreShownLikePythonTuples) {
  EXPECT_EQ(to_string(Dims{}), "()");
  EXPECT_EQ(to_string(Dims{3}), "(3,)");
  EXPECT_EQ(to_string(Dims{4, 8}), "(4, 8)");
  EXPECT_EQ(to_string(Dims{-1, huge}), "(-1, 4611686018427387904)");
}

TEST(Shape, CountsItsElements) {
  EXPECT_EQ(count({}), 1);
  EXPECT_EQ(count({5, 0, 7}), 0);
  EXPECT_EQ(count({2, 3, 4}), 24);
  EXPECT_EQ(count({huge}), huge);
}

TEST(Shape, RefusesNegativeSizesAndOverflow) {
  EXPECT_EQ(error_of<ShapeError>([] { count({2, -3}); }), "[shape] negative size: (2, -3)");
  EXPECT_EQ(error_of<ShapeError>([] {
              count({huge, 2});
            }),
            "[shape] more than 2^63 - 1 elements: (4611686018427387904, 2)");
  EXPECT_EQ(error_of<ShapeError>([] {
              count({0, huge, 2});
            }),
            "[shape] more than 2^63 - 1 elements: (0, 4611686018427387904, 2)")
      << "its strides would not fit";
  EXPECT_EQ(count({huge, 0}), 0);
}

TEST(Shape, RowMajorStridesAreProductsOfTheSizesBehind) {
  EXPECT_EQ(contiguous_strides({}), Dims{});
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({5, 1}), (Dims{1, 1}));
}

TEST(Shape, DimensionsCountFromBothEnds) {
  const Shape shape{4, 8};
  EXPECT_EQ(normalize_dim("sum", 1, shape), 1);
  EXPECT_EQ(normalize_dim("sum", -1, shape), 1);
  EXPECT_EQ(normalize_dim("sum", -2, shape), 0);
  EXPECT_EQ(error_of<IndexError>([&] { normalize_dim("sum", 2, shape); }),
            "[sum] dimension 2 is out of range for shape (4, 8)");
  EXPECT_EQ(error_of<IndexError>([&] { normalize_dim("sum", -3, shape); }),
            "[sum] dimension -3 is out of range for shape (4, 8)");
  EXPECT_EQ(error_of<IndexError>([&] { normalize_dim("sum", 0, {}); }),
            "[sum] dimension 0 is out of range for shape ()");
}

TEST(Shape, BroadcastsLikeNumPy) {
  EXPECT_EQ(broadcast_shapes({3, 1, 5}, {4, 1}), (Shape{3, 4, 5}));
  EXPECT_EQ(broadcast_shapes({}, {2, 3}), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes({1}, {0}), Shape{0});
  EXPECT_EQ(broadcast_shapes({0, 1}, {3}), (Shape{0, 3}));
  EXPECT_EQ(broadcast_shapes({4, 8}, {9, 2}), std::nullopt);
  EXPECT_EQ(broadcast_shapes({3}, {0, 2}), std::nullopt);
}

TEST(Shape, UnravelsARowMajorNumber) {
  EXPECT_EQ(unravel(0, {}), Dims{});
  EXPECT_EQ(unravel(23, {2, 3, 4}), (Dims{1, 2, 3}));
  EXPECT_EQ(unravel(5, {2, 1, 3}), (Dims{1, 0, 2}));
}

}  // namespace
}  // namespace poolgrad
