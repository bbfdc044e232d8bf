// Gathers and scatters on CUDA have the CPU's bits in every order of threads. An index out of range gives the CPU's
// error at the next synchronization.
#include "kernels/indexing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <optional>
#include <thread>

#include "allocator/error.h"
#include "kernels/elementwise.h"
#include "kernels/functors/indexing.h"
#include "tests/kernels/cuda/twin.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

struct PickCase {
  Shape shape;
  int dim;
  std::int64_t picks;
};
const std::vector<PickCase> pick_cases = {{{5}, 0, 9},           {{1}, 0, 0},        {{7, 33}, 0, 1025},
                                          {{7, 33}, 1, 20},      {{3, 5, 41}, 1, 8}, {{3, 5, 41}, 2, 100},
                                          {{4, 0}, 0, 3},        {{30, 64}, 0, 257}, {{40}, 0, 700},
                                          {{2, 6, 1, 70}, 1, 9}, {{6, 300}, 1, 200}, {{2, 16}, 0, 5}};
/// Layouts for a dtype: all layouts for one dtype of each word size, dense ones for the others.
std::vector<Layout> layouts_for(DType dtype) {
  if (dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::u8)
    return {Layout::contiguous, Layout::transposed, Layout::reversed, Layout::spread};
  return {Layout::contiguous};
}
const Layout some_layouts[] = {Layout::contiguous, Layout::transposed, Layout::reversed, Layout::spread};

std::int64_t limit_of(const PickCase& c) { return c.shape[static_cast<std::size_t>(c.dim)]; }
Shape picked_shape(const PickCase& c) {
  Shape shape = c.shape;
  shape[static_cast<std::size_t>(c.dim)] = c.picks;
  return shape;
}
/// The index shape of gather and scatter: `picks` long along dim, and shorter elsewhere where possible.
Shape places_shape(const PickCase& c) {
  Shape shape = c.shape;
  for (std::int64_t& size : shape) size = std::max<std::int64_t>(std::min<std::int64_t>(size, 1), size - 1);
  shape[static_cast<std::size_t>(c.dim)] = c.picks;
  return shape;
}
TestArray& some_indices(TestArray& index, std::mt19937_64& random, std::int64_t limit) {
  return index.random(random, static_cast<double>(-limit), static_cast<double>(limit));
}

TEST(CudaIndexing, IndexSelectMatchesTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const PickCase& c : pick_cases)
      for (const Layout layout : layouts_for(dtype)) {
        TestArray x(dtype, c.shape, layout), index(DType::i64, {c.picks}, Layout::spread),
            out(dtype, picked_shape(c), layout);
        x.random(random, 0, 100);
        some_indices(index, random, limit_of(c));
        expect_same(bits, {&out}, {&x, &index}, [&](Stream stream, const std::vector<View>& views) {
          index_select(stream, views[0], views[1], c.dim, views[2]);
        });
      }
}

TEST(CudaIndexing, GatherMatchesTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const PickCase& c : pick_cases)
      for (const Layout layout : layouts_for(dtype)) {
        TestArray x(dtype, c.shape, layout), index(DType::i64, places_shape(c), Layout::transposed),
            out(dtype, places_shape(c), layout);
        x.random(random, 0, 100);
        some_indices(index, random, limit_of(c));
        expect_same(bits, {&out}, {&x, &index}, [&](Stream stream, const std::vector<View>& views) {
          gather(stream, views[0], views[1], c.dim, views[2]);
        });
      }
}

TEST(CudaIndexing, IndexAddAddsInTheOrderOfTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const PickCase& c : pick_cases)
      for (const Layout layout : layouts_for(dtype)) {
        TestArray out(dtype, c.shape, layout), index(DType::i64, {c.picks}), x(dtype, picked_shape(c), layout);
        out.random(random, 0, 9);
        x.random(random, 0, 9);
        some_indices(index, random, limit_of(c));
        expect_same(
            bits, {&out}, {&index, &x},
            [&](Stream stream, const std::vector<View>& views) {
              index_add(stream, views[0], c.dim, views[1], views[2]);
            },
            layout == Layout::contiguous && dtype == DType::f32 ? 3 : 1);
      }
}

TEST(CudaIndexing, ScattersMatchTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const PickCase& c : pick_cases)
      for (const Layout layout : layouts_for(dtype)) {
        TestArray out(dtype, c.shape, layout), index(DType::i64, places_shape(c), Layout::transposed),
            x(dtype, places_shape(c), layout);
        out.random(random, 0, 9);
        x.random(random, 0, 9);
        some_indices(index, random, limit_of(c));
        for (const auto op : {std::optional<BinaryOp>(), std::optional(BinaryOp::add), std::optional(BinaryOp::mul),
                              std::optional(BinaryOp::maximum), std::optional(BinaryOp::minimum)}) {
          const bool as_others_do = op && op != BinaryOp::add && (layout != Layout::contiguous || dtype == DType::f64);
          if (as_others_do) continue;
          expect_same(
              bits, {&out}, {&index, &x},
              [&](Stream stream, const std::vector<View>& views) {
                if (op) return scatter_reduce(stream, *op, views[0], c.dim, views[1], views[2]);
                scatter(stream, views[0], c.dim, views[1], views[2]);
              },
              layout == Layout::contiguous && dtype == DType::f32 ? 3 : 1);
        }
      }
}

TEST(CudaIndexing, ChoosesBothScatterKernels) {
  EXPECT_TRUE(scatter_walks(1, 128));
  EXPECT_FALSE(scatter_walks(1, 129));
  EXPECT_FALSE(scatter_walks(32, 1025));  // {7, 33} above
  EXPECT_TRUE(scatter_walks(4096, 1025));
}

TEST(CudaIndexing, EmbeddingsAndTheirGradientsMatchTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& index_shape : {Shape{}, Shape{0}, Shape{1}, Shape{1025}, Shape{3, 65}})
      for (const std::int64_t columns : {1, 33, 128, 300})
        for (const std::int64_t padding : {-1, 2}) {
          if (padding == 2 && columns != 33) continue;
          Shape shape = index_shape;
          shape.push_back(columns);
          TestArray table(dtype, {37, columns}), index(DType::i64, index_shape), out(dtype, shape), grad(dtype, shape),
              dtable(dtype, {37, columns});
          table.random(random);
          grad.random(random);
          dtable.random(random);
          index.random(random, 0, 37);
          expect_same(bits, {&out}, {&table, &index}, [](Stream stream, const std::vector<View>& views) {
            embedding(stream, views[0], views[1], views[2]);
          });
          expect_same(
              bits, {&dtable}, {&grad, &index},
              [&](Stream stream, const std::vector<View>& views) {
                embedding_backward(stream, views[0], views[1], views[2], padding);
              },
              2);
        }
}

TEST(CudaIndexing, ManyIndicesAreSortedStably) {
  std::mt19937_64 random(test_seed());
  constexpr std::int64_t n = 17000, rows = 1500;  // nine tiles: two merges
  TestArray grad(DType::f32, {n, 3}), index(DType::i64, {n}), dtable(DType::f32, {rows, 3});
  grad.random(random);
  const std::function<double(std::int64_t)> orders[] = {
      [](std::int64_t) { return 7.0; }, [](std::int64_t i) { return static_cast<double>(i * rows / n); },
      [](std::int64_t i) { return static_cast<double>((n - 1 - i) * rows / n); },
      [&](std::int64_t) { return static_cast<double>(random() % rows); }};
  for (const auto& order : orders) {
    index.fill(order);
    expect_same(bits, {&dtable.zero()}, {&grad, &index}, [](Stream stream, const std::vector<View>& views) {
      embedding_backward(stream, views[0], views[1], views[2], -1);
    });
  }
}

TEST(CudaIndexing, LongAndShortRunsAreAddedInTheOrderOfTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const std::int64_t columns : {3, 64, 132})
      for (const std::int64_t skip : {-1, 1}) {
        TestArray grad(dtype, {300, columns}), index(DType::i64, {300}), dtable(dtype, {40, columns});
        grad.random(random);
        // Runs of 120, 33, 32, 31, 8 and 1 keys, and a longer run of one key.
        index.fill([&](std::int64_t i) {
          const std::int64_t at = (i * 7) % 300;
          return static_cast<double>(at < 120   ? 3
                                     : at < 153 ? 1
                                     : at < 185 ? 20
                                     : at < 216 ? 21
                                     : at < 224 ? 39
                                                : at % 38);
        });
        dtable.random(random);
        expect_same(
            bits, {&dtable}, {&grad, &index},
            [&](Stream stream, const std::vector<View>& views) {
              embedding_backward(stream, views[0], views[1], views[2], skip);
            },
            2);
      }
}

TEST(CudaIndexing, SupportsMisalignedSlices) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8})
    for (std::size_t shift = 0; shift < 6; ++shift) {
      TestArray table(dtype, {20 * 32 + 8}), index(DType::i64, {50}), out(dtype, {50 * 32 + 8}),
          sums(dtype, {20 * 32 + 8});
      table.random(random, 0, 9);
      index.random(random, 0, 20);
      sums.random(random, 0, 9);
      const auto rows = [&](const View& flat, std::int64_t count, std::size_t by) {
        View view{flat.as<std::uint8_t>() + by * size_of(dtype), dtype, 2, {count, 32}, {32, 1}};
        return view;
      };
      expect_same(bits, {&out}, {&table, &index}, [&](Stream stream, const std::vector<View>& views) {
        index_select(stream, rows(views[0], 50, shift), rows(views[1], 20, shift / 2), 0, views[2]);
      });
      expect_same(bits, {&sums}, {&index, &out}, [&](Stream stream, const std::vector<View>& views) {
        index_add(stream, rows(views[0], 20, shift), 0, views[1], rows(views[2], 50, shift));
      });
    }
}

// Indices out of range.

template <class F>
std::string index_error_of(const F& action) {
  try {
    action();
  } catch (const IndexError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CudaIndexFault, GivesTheCpuErrorOnceAtTheNextSynchronization) {
  for (const Layout layout : some_layouts) {
    TestArray index(DType::i64, {50, 60}, layout);
    index.fill([](std::int64_t i) { return static_cast<double>(i % 10); });
    for (const std::int64_t bad : {2999, 2000, 1500, 77, 0}) {
      index.set(bad, bad % 2 ? -1 : 10);
      const Twin twin(index);
      const std::string expected = index_error_of([&] { check_indices({}, "embedding", "index", index, 10); });
      EXPECT_THAT(expected, ::testing::StartsWith("[embedding] index "));
      EXPECT_EQ(index_error_of([&] { check_indices(cuda0, "embedding", "index", twin.on_device(), 10); }), "no error");
      EXPECT_EQ(index_error_of([] { cuda::synchronize(cuda0); }), expected);
      EXPECT_EQ(index_error_of([] { cuda::synchronize(cuda0); }), "no error");
    }
  }
}

TEST(CudaIndexFault, AppliesBelowTheLowestAllowedIndex) {
  TestArray index(DType::i64, {3});
  index.fill([](std::int64_t i) { return static_cast<double>(-i - 2); });
  const Twin twin(index);
  check_indices(cuda0, "index", "index", twin.on_device(), 4, -4);
  EXPECT_EQ(index_error_of([] { cuda::synchronize(cuda0); }), "no error");
  check_indices(cuda0, "index", "index", twin.on_device(), 3, -3);
  EXPECT_EQ(index_error_of([] { cuda::synchronize(cuda0); }), "[index] index -4 at position (2,) is outside [-3, 3)");
}

TEST(CudaIndexFault, ReportsTheFirstOfSeveral) {
  TestArray index(DType::i64, {5});
  const Twin twin(index.fill([](std::int64_t i) { return static_cast<double>(i); }));
  check_indices(cuda0, "gather", "index", twin.on_device(), 4);
  check_indices(cuda0, "cross_entropy", "target", twin.on_device(), 3);
  EXPECT_EQ(index_error_of([] { cuda::synchronize(cuda0); }), "[gather] index 4 at position (4,) is outside [0, 4)");
  check_indices(cuda0, "cross_entropy", "target", twin.on_device(), 3);
  EXPECT_EQ(index_error_of([] { cuda::synchronize(cuda0); }),
            "[cross_entropy] target 3 at position (3,) is outside [0, 3)");
}

TEST(CudaIndexFault, IsReportedByAHostRead) {
  TestArray index(DType::i64, {3}), host(DType::i64, {3});
  const Twin twin(index.fill([](std::int64_t i) { return static_cast<double>(i); }));
  check_indices(cuda0, "gather", "index", twin.on_device(), 2);
  EXPECT_EQ(index_error_of([&] { copy(cuda0, host, twin.on_device()); }),
            "[gather] index 2 at position (2,) is outside [0, 2)");
  EXPECT_EQ(index_error_of([&] { copy(cuda0, host, twin.on_device()); }), "no error");
}

TEST(CudaIndexFault, IsReportedWholeToOneWaitingThread) {
  TestArray index(DType::i64, {3});
  const Twin twin(index.fill([](std::int64_t i) { return static_cast<double>(i); }));
  twin.bytes();  // waits until the array is on the device
  const Stream own{cuda0.device, per_thread_stream};
  std::atomic<int> heard{0};
  std::atomic<bool> over{false};
  const auto wait = [&] {
    const std::string said = index_error_of([&] { cuda::synchronize(own); });
    if (said == "no error") return;
    ++heard;
    EXPECT_EQ(said, "[gather] index 2 at position (2,) is outside [0, 2)");
  };
  std::thread listener([&] {
    while (!over) wait();
  });
  for (int repeat = 0; repeat < 100; ++repeat) {
    check_indices(own, "gather", "index", twin.on_device(), 2);
    wait();
  }
  over = true;
  listener.join();
  EXPECT_GE(heard, 1);
  EXPECT_LE(heard, 100);
}

/// The output of a kernel that gets some indices out of range.
std::vector<double> left_by(const std::function<void(const View& out, const View& index, const View& x)>& run) {
  TestArray out(DType::f32, {4}), index(DType::i64, {4}), x(DType::f32, {4});
  out.fill([](std::int64_t) { return 50.0; });
  x.fill([](std::int64_t i) { return 1.0 + static_cast<double>(i); });
  const double indices[] = {1, 1000000000000.0, -1000000000000.0, 3};
  index.fill([&](std::int64_t i) { return indices[i]; });
  const Twin to(out), at(index), from(x);
  run(to.on_device(), at.on_device(), from.on_device());
  to.fetch();
  return {out[0], out[1], out[2], out[3]};
}

TEST(CudaIndexFault, ReadsZeroAndWritesNothing) {
  using ::testing::ElementsAre;
  const auto rows = [](const View& flat) { return View{flat.data, flat.dtype, 2, {4, 1}, {1, 1}}; };
  EXPECT_THAT(left_by([](View out, View index, View x) { gather(cuda0, out, x, 0, index); }), ElementsAre(2, 0, 0, 4));
  EXPECT_THAT(left_by([](View out, View index, View x) { index_select(cuda0, out, x, 0, index); }),
              ElementsAre(2, 0, 0, 4));
  EXPECT_THAT(left_by([&](View out, View index, View x) { embedding(cuda0, rows(out), rows(x), index); }),
              ElementsAre(2, 0, 0, 4));
  EXPECT_THAT(left_by([](View out, View index, View x) { scatter(cuda0, out, 0, index, x); }),
              ElementsAre(50, 1, 50, 4));
  EXPECT_THAT(left_by([](View out, View index, View x) { scatter_reduce(cuda0, BinaryOp::add, out, 0, index, x); }),
              ElementsAre(50, 51, 50, 54));
  EXPECT_THAT(left_by([](View out, View index, View x) { index_add(cuda0, out, 0, index, x); }),
              ElementsAre(50, 51, 50, 54));
  EXPECT_THAT(left_by([&](View out, View index, View x) { embedding_backward(cuda0, rows(out), rows(x), index, -1); }),
              ElementsAre(50, 51, 50, 54));
}

}  // namespace
}  // namespace poolgrad::kernels
