#include "kernels/cpu/strided.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

View view_of(const Shape& shape, const Shape& strides) {
  View view;
  view.rank = static_cast<int>(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) {
    view.shape[d] = shape[d];
    view.strides[d] = strides[d];
  }
  return view;
}
Shape shape_of(const View& view) { return Shape(view.shape, view.shape + view.rank); }
Shape strides_of(const View& view) { return Shape(view.strides, view.strides + view.rank); }

TEST(MergeDimensions, MergesDimensionsContiguousInAllViews) {
  std::array views{view_of({2, 3, 4, 5}, {60, 20, 5, 1}), view_of({2, 3, 4, 5}, {60, 20, 5, 1})};
  merge_dimensions(views);
  EXPECT_EQ(shape_of(views[0]), (Shape{120}));
  EXPECT_EQ(strides_of(views[1]), (Shape{1}));

  std::array broadcast{view_of({2, 3, 4, 5}, {60, 20, 5, 1}), view_of({2, 3, 4, 5}, {0, 0, 5, 1})};
  merge_dimensions(broadcast);
  EXPECT_EQ(shape_of(broadcast[0]), (Shape{6, 20}));
  EXPECT_EQ(strides_of(broadcast[1]), (Shape{0, 1}));

  std::array gap{view_of({2, 5}, {7, 1})}, overlap{view_of({2, 5}, {3, 1})};
  merge_dimensions(gap);
  merge_dimensions(overlap);
  EXPECT_EQ(shape_of(gap[0]), (Shape{2, 5}));
  EXPECT_EQ(shape_of(overlap[0]), (Shape{2, 5}));

  std::array ones{view_of({1, 3, 1, 5}, {77, 5, 88, 1})};
  merge_dimensions(ones);
  EXPECT_EQ(shape_of(ones[0]), (Shape{15}));

  std::array scalar{view_of({1, 1}, {3, 4})};
  merge_dimensions(scalar);
  EXPECT_EQ(scalar[0].rank, 0);
}

TEST(SortDimensions, PutsTheFirstViewInMemoryOrder) {
  std::array views{view_of({2, 3, 4}, {1, 2, 6}), view_of({2, 3, 4}, {12, 4, 1})};
  sort_dimensions(views);
  EXPECT_EQ(shape_of(views[0]), (Shape{4, 3, 2}));
  EXPECT_EQ(strides_of(views[0]), (Shape{6, 2, 1}));
  EXPECT_EQ(strides_of(views[1]), (Shape{1, 4, 12}));
}

/// Unrolled runs are the elements of every view in row-major order.
TEST(ForEachRun, UnrollsToRowMajorOrder) {
  std::mt19937_64 random(test_seed());
  for (int repeat = 0; repeat < 300; ++repeat) {
    Shape shape, first, second;
    for (std::uint64_t d = random() % 5; d > 0; --d) {
      shape.push_back(1 + static_cast<std::int64_t>(random() % 5));
      first.push_back(static_cast<std::int64_t>(random() % 100) - 50);
      second.push_back(static_cast<std::int64_t>(random() % 100) - 50);
    }
    const std::array views{view_of(shape, first), view_of(shape, second)};
    const std::int64_t n = views[0].count();
    const std::int64_t begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    const std::int64_t count = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n - begin));
    std::int64_t i = begin;
    for_each_run(views, begin, count, [&](const auto& offsets, const auto& strides, std::int64_t length) {
      for (std::int64_t k = 0; k < length; ++k, ++i)
        for (std::size_t v = 0; v < 2; ++v)
          EXPECT_EQ(offsets[v] + k * strides[v], views[v].offset(i)) << "seed " << test_seed();
    });
    EXPECT_EQ(i, begin + count);
  }
}

TEST(Strided, ReadsAndWritesAnyRangeOfAnyLayout) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::u8})
    for (const Layout layout : output_layouts) {
      TestArray x(dtype, {7, 11, 5}, layout), y(dtype, {7, 11, 5}, layout);
      x.random(random, 0, 100);
      const Strided from(x), to(y);
      alignas(64) std::int64_t buffer[block_size];
      for (std::int64_t begin = 0; begin < 385; begin += 37) {
        const std::int64_t count = std::min<std::int64_t>(37, 385 - begin);
        from.read(begin, count, buffer);
        to.write(begin, count, buffer);
      }
      expect_elements(
          y, [&](std::int64_t i) { return x[i]; }, 0);
      EXPECT_EQ(from.direct(3) != nullptr, layout == Layout::contiguous);
    }
}

}  // namespace
}  // namespace poolgrad::kernels
