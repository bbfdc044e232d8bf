// Backward attention with fewer heads than threads. Items of one head run concurrently as a wavefront, with the bits of
// one thread.
#include "allocator/caching_allocator.h"
#include "tests/kernels/attention/backward_reference.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

struct Shape {
  const char* name;
  std::int64_t batch, q_heads, kv_heads, queries, keys, left, right;
};
// Key tiles have 192 keys.
const Shape shapes[] = {{"one head", 1, 1, 1, 801, 801, unbounded, unbounded},
                        {"causal", 1, 1, 1, 807, 807, unbounded, 0},
                        {"more keys than queries", 1, 1, 1, 333, 901, unbounded, 0},
                        {"queries before every key", 1, 1, 1, 701, 590, unbounded, 0},
                        {"backwards", 1, 1, 1, 650, 650, 0, unbounded},
                        {"window", 1, 1, 1, 1111, 1111, 400, 0},
                        {"wide window on both sides", 1, 1, 1, 900, 901, 300, 350},
                        {"a group of heads", 1, 3, 1, 411, 411, unbounded, 0},
                        {"groups under way together", 2, 4, 2, 300, 419, unbounded, unbounded},
                        {"three heads", 1, 3, 3, 399, 399, unbounded, 0}};

BackwardExample example(const Shape& shape) {
  BackwardExample e = banded(shape.queries, shape.keys, shape.left, shape.right);
  e.batch = shape.batch;
  e.q_heads = e.schedule.heads = shape.q_heads;
  e.kv_heads = shape.kv_heads;
  return e;
}

class AttentionBackwardThreads : public ::testing::TestWithParam<Shape> {
 protected:
  ~AttentionBackwardThreads() override { set_num_threads(before_); }

 private:
  int before_ = num_threads();
};

struct Storage {
  DType dtype;
  std::int64_t depth;
};
constexpr Storage in_place{DType::f32, 8}, narrow{DType::f32, 9}, halves{DType::f16, 8}, narrow_halves{DType::bf16, 9};

BackwardExample example(const Shape& shape, const Storage& storage) {
  BackwardExample e = example(shape);
  e.depth = storage.depth;
  return e;
}

TEST_P(AttentionBackwardThreads, ChangeNoBit) {
  for (const Storage& storage : {in_place, narrow, halves, narrow_halves}) {
    SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(storage.dtype) << " depth " << storage.depth);
    const BackwardCheck check(example(GetParam(), storage), storage.dtype);
    for (int repeat = 0; repeat < 3; ++repeat) expect_equal_bits(check, {2, 3, 5, 8});
  }
}

TEST_P(AttentionBackwardThreads, FollowTheDefinition) {
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    expect_definition(example(GetParam()));
  }
}

TEST_P(AttentionBackwardThreads, AccumulateIntoExistingGradients) {
  for (const Storage& storage : {in_place, narrow_halves}) {
    BackwardExample e = example(GetParam(), storage);
    e.dbias = true;
    const BackwardCheck check(e, storage.dtype);
    const auto twice = [&](int threads) {
      set_num_threads(threads);
      auto sum = std::make_unique<BackwardCheck::Result>(e, DType::f32);
      check.run(e.schedule, sum->views());
      check.run(e.schedule, sum->views(true));
      return sum;
    };
    const auto one = twice(1);
    for (const int threads : {2, 3, 8}) {
      const auto several = twice(threads);
      expect_same_bits(*several, *one, std::to_string(threads) + " threads");
      EXPECT_EQ(several->dbias.bytes(), one->dbias.bytes()) << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionBackwardThreads, ::testing::ValuesIn(shapes), [](const auto& shape) {
  std::string name = shape.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST(AttentionBackwardThreadsOverBlocks, ChangeNoBit) {
  // Three ranges of rows visit every key tile.
  BackwardExample e = banded(1490, 1490, unbounded, unbounded);
  e.q_heads = e.kv_heads = e.schedule.heads = 1;
  AttentionTerm& term = e.schedule.term[0];
  term.kind = AttentionTerm::Kind::offsets;
  term.size = e.schedule.cut = 128;
  term.sets = 1;
  term.set_begin[1] = 3;
  term.run[0] = {-4, -4};
  term.run[1] = {-2, 2};
  term.run[2] = {4, 4};
  e.multiplicity = [](std::int64_t, std::int64_t i, std::int64_t j) {
    const std::int64_t apart = std::abs(j / 128 - i / 128);
    return apart <= 2 || apart == 4 ? 1.0 : 0.0;
  };
  for (const Storage& storage : {in_place, narrow_halves}) {
    e.depth = storage.depth;
    const BackwardCheck check(e, storage.dtype);
    if (storage.dtype == DType::f32) check.expect(*check.run(), 2e-5);
    for (int repeat = 0; repeat < 3; ++repeat) expect_equal_bits(check, {2, 3, 8});
  }
}

TEST(AttentionBackwardThreadsOverLongHeads, ChangeNoBit) {
  // dq of one head takes more than 4 MiB in f32, so the limit for two threads holds one head at a time.
  BackwardExample e = banded(530, 530, unbounded, unbounded);
  e.q_heads = e.kv_heads = e.schedule.heads = 2;
  e.depth = 2000;
  expect_equal_bits(BackwardCheck(e, DType::f16), {2, 3});
}

TEST(AttentionBackwardInParallelRegion, ChangesNoBit) {
  const int before = num_threads();
  const BackwardCheck check(example(shapes[1]), DType::bf16);
  set_num_threads(1);
  const auto one = check.run();
  set_num_threads(2);
  BackwardCheck::Result results[2] = {{check.e, DType::bf16}, {check.e, DType::bf16}};
  parallel_items(2, [&](std::int64_t item, int) { check.run(check.e.schedule, results[item].views()); });
  for (const auto& result : results) expect_same_bits(result, *one, "inside a parallel region");
  set_num_threads(before);
}

/// Peak workspace in bytes of a call with one head of 64 in bf16, which sums dq in f32 scratch.
std::uint64_t workspace_of(std::int64_t n, std::int64_t left) {
  const BackwardExample e = banded(n, n, left, 0);
  const RowsArray x(DType::bf16, 1, n, 1, 64), dq(DType::bf16, 1, n, 1, 64), dk(DType::bf16, 1, n, 1, 64);
  TestArray rows(DType::f32, {1, 1, n});
  rows.zero();
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  const auto workspace = static_cast<std::size_t>(Category::workspace);
  const auto before = pool.statistics().category_bytes[workspace].current;
  attention_backward({}, e.schedule, {}, x.view(), x.view(), x.view(), rows, rows, x.view(),
                     {dq.view(), dk.view(), dk.view(), {}, false});
  return pool.statistics().category_bytes[workspace].peak - before;
}

TEST(AttentionBackwardScratch, IsSharedByThreadsWhileSmall) {
  const int before = num_threads();
  set_num_threads(2);
  const std::uint64_t shared = workspace_of(3000, 400), twice = workspace_of(6000, 400);
  // Besides dq, the plan takes less than one byte for each key.
  EXPECT_GE(twice - shared, 3000u * 64 * sizeof(float));
  EXPECT_LE(twice - shared, 3000u * (64 * sizeof(float) + 1));
  for (const std::int64_t n : {32768, 40000}) EXPECT_LT(workspace_of(n, 400), 2u * (5u << 20)) << n;
  set_num_threads(before);
}

}  // namespace
}  // namespace poolgrad::kernels
