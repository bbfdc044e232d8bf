// The laws of views, checked over all coordinates against plain index maps: element c of the view is the original's
// element by the definition.
#include "tensor/geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing_support::coordinates;
using testing_support::error_of;
using testing_support::offset_of;
using testing_support::offsets_of;
using Coordinate = std::vector<std::int64_t>;
using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {  // both included
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

/// A geometry that a chain of views could make: permuted, sliced, with steps, broadcast and offset.
Geometry random_geometry(Random& random) {
  Shape shape;
  for (std::int64_t rank = pick(random, 0, 4); rank > 0; --rank) shape.append(pick(random, pick(random, 0, 1), 4));
  Geometry x = contiguous_geometry(shape);
  x.offset = pick(random, 0, 3);
  for (int d = 0; d < shape.rank(); ++d) {
    if (pick(random, 0, 2) == 0) x = sliced(x, d, pick(random, -4, 4), pick(random, -4, 4), pick(random, 1, 3));
    if (pick(random, 0, 2) == 0) x = transposed(x, d, pick(random, 0, shape.rank() - 1));
  }
  for (int d = 0; d < x.shape.rank(); ++d)
    if (x.shape[d] == 1 && pick(random, 0, 1)) {
      Shape wider = x.shape;
      wider[d] = pick(random, 0, 3);
      x = expanded(x, wider);
    }
  return x;
}

void for_random_geometries(const std::function<void(const Geometry&, Random&)>& check) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Geometry x = random_geometry(random);
    check(x, random);
    if (testing::Test::HasFailure()) return;
  }
}

/// view(c) must lie where x(source(c)) lies, for all c.
void expect_view(const Geometry& view, const Geometry& x, const std::function<Coordinate(Coordinate)>& source) {
  for (const Coordinate& c : coordinates(view.shape)) ASSERT_EQ(offset_of(view, c), offset_of(x, source(c)));
}

TEST(Geometry, PermutedMovesDimensions) {
  for_random_geometries([](const Geometry& x, Random& random) {
    Dims order = Dims::filled(x.shape.rank(), 0);
    for (int d = 0; d < order.rank(); ++d) order[d] = d;
    std::shuffle(order.begin(), order.end(), random);
    expect_view(permuted(x, order), x, [&](const Coordinate& c) {
      Coordinate from(c.size());
      for (std::size_t d = 0; d < c.size(); ++d) from[static_cast<std::size_t>(order[static_cast<int>(d)])] = c[d];
      return from;
    });
  });
}

TEST(Geometry, TransposedTwiceIsTheSame) {
  for_random_geometries([](const Geometry& x, Random& random) {
    if (x.shape.rank() == 0) return;
    const std::int64_t a = pick(random, -x.shape.rank(), x.shape.rank() - 1), b = pick(random, 0, x.shape.rank() - 1);
    const Geometry once = transposed(x, a, b);
    expect_view(once, x, [&](Coordinate c) {
      const auto rank = static_cast<std::int64_t>(c.size());
      std::swap(c[static_cast<std::size_t>(a < 0 ? a + rank : a)], c[static_cast<std::size_t>(b)]);
      return c;
    });
    EXPECT_EQ(transposed(once, a, b), x);
  });
}

TEST(Geometry, SlicedTakesEveryStepthElement) {
  for_random_geometries([](const Geometry& x, Random& random) {
    if (x.shape.rank() == 0) return;
    const auto d = static_cast<std::size_t>(pick(random, 0, x.shape.rank() - 1));
    const std::int64_t size = x.shape[static_cast<int>(d)];
    const std::int64_t start = pick(random, -6, 6), stop = pick(random, -6, 6), step = pick(random, 1, 4);
    std::vector<std::int64_t> taken;  // by the definition
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t first = std::max<std::int64_t>(start < 0 ? start + size : start, 0);
      if (i >= first && i < (stop < 0 ? stop + size : stop) && (i - first) % step == 0) taken.push_back(i);
    }
    const Geometry view = sliced(x, static_cast<std::int64_t>(d), start, stop, step);
    ASSERT_EQ(view.shape[static_cast<int>(d)], static_cast<std::int64_t>(taken.size()));
    expect_view(view, x, [&](Coordinate c) {
      c[d] = taken[static_cast<std::size_t>(c[d])];
      return c;
    });
  });
}

TEST(Geometry, DiagonalsTakeBothIndicesTogether) {
  for_random_geometries([](const Geometry& x, Random& random) {
    const std::int64_t rank = x.shape.rank();
    if (rank < 2) return;
    const std::int64_t a = pick(random, 0, rank - 1), b = (a + pick(random, 1, rank - 1)) % rank;
    const std::int64_t offset = pick(random, -5, 5);
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // by the definition
    for (std::int64_t i = 0; i < x.shape[static_cast<int>(a)]; ++i)
      if (i + offset >= 0 && i + offset < x.shape[static_cast<int>(b)]) taken.emplace_back(i, i + offset);
    const Geometry view = diagonal_of(x, offset, a, b - rank);
    ASSERT_EQ(view.shape.back(), static_cast<std::int64_t>(taken.size()));
    expect_view(view, x, [&](Coordinate c) {
      const auto [i, j] = taken[static_cast<std::size_t>(c.back())];
      c.pop_back();
      for (const std::int64_t d : {std::min(a, b), std::max(a, b)}) c.insert(c.begin() + d, d == a ? i : j);
      return c;
    });
  });
}

TEST(Geometry, WindowsStartAtEveryStep) {
  for_random_geometries([](const Geometry& x, Random& random) {
    if (x.shape.rank() == 0) return;
    const auto d = static_cast<std::size_t>(pick(random, 0, x.shape.rank() - 1));
    const std::int64_t length = x.shape[static_cast<int>(d)];
    const std::int64_t size = pick(random, 1, 3), step = pick(random, 1, 3), dilation = pick(random, 1, 2);
    const auto unfold = [&] { return unfolded(x, static_cast<std::int64_t>(d), size, step, dilation); };
    std::int64_t windows = 0;  // by the definition
    while (windows * step + (size - 1) * dilation < length) ++windows;
    if (windows == 0) {
      EXPECT_THROW(unfold(), ShapeError);
      return;
    }
    const Geometry view = unfold();
    ASSERT_EQ(view.shape[static_cast<int>(d)], windows);
    ASSERT_EQ(view.shape.back(), size);
    expect_view(view, x, [&](Coordinate c) {
      c[d] = c[d] * step + c.back() * dilation;
      c.pop_back();
      return c;
    });
  });
  EXPECT_TRUE(repeats_elements(unfolded(contiguous_geometry({7}), 0, 3, 2, 1)));
  EXPECT_FALSE(repeats_elements(unfolded(contiguous_geometry({7}), 0, 3, 3, 1)));
  EXPECT_THROW(unfolded(contiguous_geometry({7}), 0, INT64_MAX, 1, INT64_MAX), ShapeError);
}

TEST(Geometry, SlicedAcceptsTheLargestBounds) {
  const Geometry x = contiguous_geometry({5});
  EXPECT_EQ(sliced(x, 0, INT64_MIN, INT64_MAX, INT64_MAX).shape, Shape{1});
  EXPECT_EQ(sliced(x, 0, 5, INT64_MAX, 1).shape, Shape{0});
}

TEST(Geometry, SelectedDropsItsDimension) {
  for_random_geometries([](const Geometry& x, Random& random) {
    for (int d = 0; d < x.shape.rank(); ++d) {
      if (x.shape[d] == 0) continue;
      const std::int64_t index = pick(random, -x.shape[d], x.shape[d] - 1);
      expect_view(selected(x, d, index), x, [&](Coordinate c) {
        c.insert(c.begin() + d, index < 0 ? index + x.shape[d] : index);
        return c;
      });
    }
  });
}

TEST(Geometry, ExpandedRepeats) {
  for_random_geometries([](const Geometry& x, Random& random) {
    Shape wanted, full;
    for (std::int64_t lead = pick(random, 0, 2); lead > 0; --lead) {
      wanted.append(pick(random, 0, 3));
      full.append(wanted.back());
    }
    const int lead = wanted.rank();
    for (int d = 0; d < x.shape.rank(); ++d) {
      full.append(x.shape[d] == 1 ? pick(random, 0, 3) : x.shape[d]);
      wanted.append(full.back() == x.shape[d] && pick(random, 0, 1) ? -1 : full.back());
    }
    const Geometry view = expanded(x, wanted);
    ASSERT_EQ(view.shape, full);
    expect_view(view, x, [&](Coordinate c) {
      c.erase(c.begin(), c.begin() + lead);
      for (std::size_t d = 0; d < c.size(); ++d)
        if (x.shape[static_cast<int>(d)] == 1) c[d] = 0;
      return c;
    });
  });
}

TEST(Geometry, UnsqueezedAndSqueezedAreInverse) {
  for_random_geometries([](const Geometry& x, Random& random) {
    const std::int64_t d = pick(random, -x.shape.rank() - 1, x.shape.rank());
    const int position = static_cast<int>(d < 0 ? d + x.shape.rank() + 1 : d);
    const Geometry view = unsqueezed(x, d);
    ASSERT_EQ(view.shape[position], 1);
    expect_view(view, x, [&](Coordinate c) {
      c.erase(c.begin() + position);
      return c;
    });
    EXPECT_EQ(squeezed(view, position), x);
    EXPECT_EQ(view.contiguous(), x.contiguous()) << "a dimension of size 1 changes nothing in memory";
  });
}

/// A random shape with `elements` elements.
Shape random_factors(Random& random, std::int64_t elements) {
  Shape shape;
  while (shape.rank() < 5 && (elements > 1 || pick(random, 0, 2) == 0)) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t i = 1; i <= elements; ++i)
      if (elements % i == 0) divisors.push_back(i);
    const std::int64_t size = divisors[static_cast<std::size_t>(pick(random, 0, std::ssize(divisors) - 1))];
    shape.append(shape.rank() == 4 ? elements : size);
    elements /= shape.back();
  }
  return shape;
}

TEST(Geometry, ReshapedKeepsRowMajorOrderOrAsksForACopy) {
  int views = 0, copies = 0;
  for_random_geometries([&](const Geometry& x, Random& random) {
    const std::int64_t elements = count(x.shape);
    if (elements == 0) return;
    const Shape wanted = random_factors(random, elements);
    const std::optional<Geometry> view = reshaped(x, wanted);
    if (view) {
      ++views;
      EXPECT_EQ(view->shape, wanted);
      EXPECT_EQ(offsets_of(*view), offsets_of(x));
    } else {
      ++copies;
      // No strides fit: the offsets in row-major order fix one step along each dimension, and these steps do not
      // reproduce the other offsets.
      const std::vector<std::int64_t> all = offsets_of(x);
      Geometry only{wanted, contiguous_strides(wanted), all[0]};
      for (int d = 0; d < wanted.rank(); ++d)
        if (wanted[d] > 1) only.strides[d] = all[static_cast<std::size_t>(contiguous_strides(wanted)[d])] - all[0];
      EXPECT_NE(offsets_of(only), all);
    }
    if (x.contiguous()) {
      EXPECT_TRUE(view.has_value());
    }
  });
  EXPECT_GT(views, 50);
  EXPECT_GT(copies, 20);
}

TEST(Geometry, ReshapedEmptyIsAlwaysAView) {
  const Geometry x = transposed(contiguous_geometry({3, 0, 2}), 0, 2);
  EXPECT_EQ(reshaped(x, {0, 7})->shape, (Shape{0, 7}));
  EXPECT_EQ(reshaped(x, {-1, 7})->shape, (Shape{0, 7}));
}

TEST(Geometry, InferShapeFillsInMinusOne) {
  EXPECT_EQ(infer_shape("reshape", {2, -1, 3}, 12), (Shape{2, 2, 3}));
  EXPECT_EQ(infer_shape("reshape", {-1}, 1), Shape{1});
  EXPECT_EQ(infer_shape("reshape", {}, Shape{1}), Shape{});
  EXPECT_EQ(infer_shape("reshape", {-1, 5}, 0), (Shape{0, 5}));
  const auto refused = [](const Shape& wanted, const Shape& present) {
    return error_of<ShapeError>([&] { infer_shape("reshape", wanted, present); });
  };
  EXPECT_EQ(refused({3, -1}, {2, 4}), "[reshape] shape (3, -1) does not hold the 8 elements of (2, 4)");
  EXPECT_EQ(refused({-1, -1}, 4), "[reshape] only one size can be -1: (-1, -1) for (4,)");
  EXPECT_EQ(refused({-1, 0}, 0), "[reshape] shape (-1, 0) does not hold the 0 elements of (0,)") << "any size would do";
  EXPECT_EQ(refused({-2, -2}, 4), "[reshape] shape (-2, -2) does not hold the 4 elements of (4,)");
  EXPECT_EQ(refused({2, 3}, 5), "[reshape] shape (2, 3) does not hold the 5 elements of (5,)");
  EXPECT_EQ(refused({}, 0), "[reshape] shape () does not hold the 0 elements of (0,)");
}

TEST(Geometry, ExtentCoversExactlyTheElements) {
  for_random_geometries([](const Geometry& x, Random&) {
    const std::vector<std::int64_t> all = offsets_of(x);
    const Extent e = extent(x);
    if (all.empty()) {
      EXPECT_LT(e.last, e.first);
    } else {
      EXPECT_EQ(e.first, *std::min_element(all.begin(), all.end()));
      EXPECT_EQ(e.last, *std::max_element(all.begin(), all.end()));
    }
  });
  EXPECT_EQ(extent({{3}, {-2}, 4}).first, 0);
}

TEST(Geometry, ContiguousAndRepeatingAgreeWithOffsets) {
  for_random_geometries([](const Geometry& x, Random&) {
    std::vector<std::int64_t> all = offsets_of(x);
    bool consecutive = true;
    for (std::size_t i = 1; i < all.size(); ++i) consecutive &= all[i] == all[i - 1] + 1;
    EXPECT_EQ(x.contiguous(), consecutive);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(repeats_elements(x), std::adjacent_find(all.begin(), all.end()) != all.end());
  });
}

TEST(Geometry, KernelsSeeTheSameElements) {
  for_random_geometries([](const Geometry& x, Random&) {
    double memory[1];
    const View view = view_at(memory, DType::f64, x);
    ASSERT_EQ(view.count(), count(x.shape));
    const std::vector<std::int64_t> all = offsets_of(x);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto bytes = reinterpret_cast<std::intptr_t>(view.data) - reinterpret_cast<std::intptr_t>(memory);
      ASSERT_EQ(bytes / 8 + view.offset(static_cast<std::int64_t>(i)), all[i]);
    }
  });
  EXPECT_EQ(view_at(nullptr, DType::f64, {{2}, {1}, 5}).data, nullptr);
}

TEST(Geometry, RejectsInvalidViews) {
  const Geometry x = contiguous_geometry({4, 8});
  EXPECT_EQ(error_of<ShapeError>([&] { permuted(x, {0}); }),
            "[permute] order (0,) is not a permutation of the dimensions of (4, 8)");
  EXPECT_EQ(error_of<ShapeError>([&] {
              permuted(x, {1, -1});
            }),
            "[permute] order (1, -1) is not a permutation of the dimensions of (4, 8)");
  EXPECT_EQ(error_of<IndexError>([&] {
              permuted(x, {0, 2});
            }),
            "[permute] dimension 2 is out of range for shape (4, 8)");
  EXPECT_EQ(error_of<ValueError>([&] { sliced(x, 0, 0, 4, 0); }), "[slice] step 0 is not positive: (4, 8)");
  EXPECT_EQ(error_of<IndexError>([&] { selected(x, 1, 8); }),
            "[select] index 8 is out of range for dimension 1 of shape (4, 8)");
  EXPECT_EQ(error_of<ShapeError>([&] { expanded(x, {8}); }), "[expand] (4, 8) does not broadcast to (8,)");
  EXPECT_EQ(error_of<ShapeError>([&] { expanded(x, {4, 9}); }), "[expand] (4, 8) does not broadcast to (4, 9)");
  EXPECT_EQ(error_of<ShapeError>([&] { expanded(x, {-1, 4, 8}); }), "[expand] (4, 8) does not broadcast to (-1, 4, 8)");
  EXPECT_EQ(error_of<ShapeError>([&] { squeezed(x, 0); }), "[squeeze] dimension 0 of shape (4, 8) is not 1");
  EXPECT_EQ(error_of<IndexError>([&] { unsqueezed(x, 3); }),
            "[unsqueeze] dimension 3 is out of range for shape (4, 8)");
}

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

TEST(Shape, RejectsNegativeSizesAndOverflow) {
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

TEST(Shape, RowMajorStridesAreProductsOfTrailingSizes) {
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
