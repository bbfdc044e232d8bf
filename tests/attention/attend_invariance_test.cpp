// Properties of every pattern, for any operands.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "kernels/schedule/tiles.h"
#include "tensor/compare.h"
#include "tensor/grad_mode.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::cases_with;
using testing_support::infinity;
using testing_support::make_call;
using testing_support::Outcome;
using testing_support::parts;
using testing_support::Sizes;

void expect_equal_bits(const Outcome& a, const Outcome& b, const std::string& what) {
  const auto left = parts(a), right = parts(b);
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!left[i].second.defined()) continue;
    EXPECT_TRUE(bit_equal(left[i].second, right[i].second)) << left[i].first << what;
  }
}

/// Whether query i of head h sees a key; positions are indices.
bool sees_something(const Case& one, std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t keys) {
  for (std::int64_t j = 0; j < keys; ++j)
    if (one.m(h, heads, i, j) > 0) return true;
  return false;
}

TEST(AttendInvariance, CachedProgramsChangeNoBit) {
  kernels::ProgramCache& cache = kernels::ProgramCache::global();
  const auto limit = static_cast<std::size_t>(cache.statistics().byte_limit);
  for (const Case& one : cases_with(""))
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Call call = make_call({1, 131, 150, 4, 2, 8, 8}, dtype);
      const Outcome kept = attended(call, one.pattern);
      cache.set_byte_limit(0);  // tiles are expanded one by one
      const Outcome windows = attended(call, one.pattern);
      EXPECT_EQ(cache.statistics().entries, 0);
      cache.set_byte_limit(limit);
      expect_equal_bits(kept, windows, ", " + one.name);
    }
}

TEST(AttendInvariance, RemovingUnseenKeysChangesNothing) {
  constexpr std::int64_t queries = 20, keys = 75, kept = 3, gone = 40;  // the first query follows 55 keys
  Generator generator(6);
  const auto normal = [&](std::int64_t n, std::int64_t h) {
    return randn({2, n, h, 8}, {.dtype = DType::f64}, generator);
  };
  const Tensor q = normal(queries, 4), k = normal(keys, 2), v = normal(keys, 2), grad_out = normal(queries, 4);
  const Pattern pattern = (Pattern::window(11, 0) | Pattern::sink_tokens(kept)) & Pattern::causal();
  const auto without = [&](const Tensor& x) { return cat({slice(x, 1, 0, kept), slice(x, 1, kept + gone)}, 1); };
  const Tensor slopes = alibi_slopes(4, {.dtype = DType::f64});
  struct Result {
    Tensor out, lse, dq, dk, dv, squares;
  };
  const auto run = [&](const Tensor& some_k, const Tensor& some_v, const KeyPositions& at) {
    const Tensor a = q.copy().set_requires_grad(), b = some_k.copy().set_requires_grad(),
                 c = some_v.copy().set_requires_grad();
    Generator drops(3);
    const auto [out, lse] =
        attend(a, b, c, pattern, {.key_positions = at, .alibi = slopes, .dropout = 0.3, .generator = &drops});
    const auto first = grad({out}, {a, b, c}, {grad_out}, {.create_graph = true});
    const Tensor second = grad({sum(first[0] * first[0])}, {c})[0];
    return Result{out, lse, first[0], first[1], first[2], second};
  };
  const Result want = run(k, v, {}), got = run(without(k), without(v), {.gap_begin = kept, .gap = gone});
  EXPECT_TRUE(allclose(got.out, want.out, 1e-13, 1e-13));
  EXPECT_TRUE(allclose(got.lse, want.lse, 1e-13, 1e-13));
  EXPECT_TRUE(allclose(got.dq, want.dq, 1e-12, 1e-13));
  EXPECT_TRUE(allclose(got.dk, without(want.dk), 1e-12, 1e-13));
  EXPECT_TRUE(allclose(got.dv, without(want.dv), 1e-12, 1e-13));
  EXPECT_TRUE(allclose(got.squares, without(want.squares), 1e-11, 1e-12)) << "by the definition";
  EXPECT_FALSE(allclose(run(without(k), without(v), {}).out, want.out, 1e-3, 1e-3)) << "positions matter";
}

TEST(AttendInvariance, ARepeatedCallHitsTheProgramCache) {
  for (const Case& one : cases_with("")) {
    const Call call = make_call({1, 70, 75, 4, 2, 8, 8});
    attended(call, one.pattern);
    const auto before = kernels::ProgramCache::global().statistics();
    attended(call, one.pattern);
    const auto after = kernels::ProgramCache::global().statistics();
    EXPECT_EQ(after.misses, before.misses) << one.name;
    EXPECT_GT(after.hits, before.hits) << one.name;
  }
}

TEST(AttendInvariance, ConstantValuesGiveAConstantResult) {
  const std::int64_t length = 97, heads = 4;
  for (const Case& one : cases_with("")) {
    Call call = make_call({1, length, length, heads, 2, 8, 3});
    const Tensor values = attend(call.q, call.k, full({1, length, 2, 3}, 2.5, {.dtype = DType::f64}), one.pattern).out;
    const auto out = values.to_vector<double>();
    for (std::int64_t n = 0; n < values.numel(); ++n) {
      const std::int64_t h = n / 3 % heads, i = n / 3 / heads;
      ASSERT_NEAR(out[static_cast<std::size_t>(n)], sees_something(one, h, heads, i, length) ? 2.5 : 0.0, 1e-13)
          << one.name << ", head " << h << ", query " << i;
    }
  }
}

TEST(AttendInvariance, AQueryDependsOnlyOnTheKeysOfItsPattern) {
  const std::int64_t length = 90, heads = 4, width = 4;
  const NoGradGuard no_grad;
  for (const Case& one : cases_with("")) {
    const Call call = make_call({1, length, length, heads, heads, width, width});
    const auto before = attend(call.q, call.k, call.v, one.pattern).out.to_vector<double>();
    for (const std::int64_t j : {0, 1, 16, 37, 64, 89}) {
      const Tensor k = call.k.copy(), v = call.v.copy();
      slice(k, 1, j, j + 1).fill(30.0);
      slice(v, 1, j, j + 1).fill(-40.0);
      const auto changed = attend(call.q, k, v, one.pattern).out.to_vector<double>();
      const auto moved = attend(call.q, call.k, v, one.pattern).out.to_vector<double>();
      for (std::int64_t i = 0; i < length; ++i)
        for (std::int64_t h = 0; h < heads; ++h) {
          const auto at = static_cast<std::size_t>((i * heads + h) * width);
          if (one.m(h, heads, i, j) == 0)
            ASSERT_EQ(changed[at], before[at]) << one.name << ": head " << h << ", query " << i << " saw key " << j;
          else
            ASSERT_NE(moved[at], before[at]) << one.name << ": head " << h << ", query " << i << " missed key " << j;
        }
    }
  }
}

TEST(AttendInvariance, PermutedHeadsGivePermutedResults) {
  const auto turned = [](const Tensor& x, std::int64_t dim, std::int64_t group) {
    return cat({slice(x, dim, group), slice(x, dim, 0, group)}, dim);
  };
  for (const Case& one : cases_with("")) {
    if (one.depends_on_head) continue;
    const Call call = make_call({1, 67, 67, 6, 3, 8, 8});
    Call other = call;
    other.q = turned(call.q, 2, 2);  // one group of two
    other.grad_out = turned(call.grad_out, 2, 2);
    other.grad_lse = turned(call.grad_lse, 1, 2);
    other.k = turned(call.k, 2, 1);
    other.v = turned(call.v, 2, 1);
    const Outcome a = attended(call, one.pattern), b = attended(other, one.pattern);
    expect_equal_bits(
        {turned(a.out, 2, 2), turned(a.lse, 1, 2), turned(a.dq, 2, 2), turned(a.dk, 2, 1), turned(a.dv, 2, 1), {}, {}},
        b, " of " + one.name);
  }
}

TEST(AttendInvariance, NeitherThreadsNorRepetitionChangeABit) {
  for (const char* name :
       {"dense", "window(3, 7)", "dilated not nested", "blocks random", "window + offsets + sinks"}) {
    const Case one = cases_with(name)[0];
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Call call = make_call({2, 150, 150, 4, 2, 16, 16}, dtype);
      call.options.sinks = testing_support::normal({4}, 3, DType::f32);
      call.options.bias = testing_support::normal({1, 4, 1, 150}, 4, DType::f32);
      call.options.dropout = 0.3;
      const auto run = [&](int threads) {
        Generator generator(9);  // the same range of random numbers each time
        call.options.generator = &generator;
        const testing_support::Threads guard(threads);
        return attended(call, one.pattern);
      };
      const Outcome first = run(1);
      for (const int threads : {2, 5}) expect_equal_bits(first, run(threads), " with other threads: " + one.name);
      for (int i = 0; i < 10; ++i) expect_equal_bits(first, run(3), " at another time: " + one.name);
    }
  }
}

TEST(AttendInvariance, QueriesInPiecesGiveTheResultOfOneCall) {
  const std::int64_t length = 131;
  for (const Case& full : testing_support::pattern_cases()) {
    const Case one = causal(full);
    Call call = make_call({1, length, length, 4, 2, 8, 8});
    Generator generator(10);
    call.options.dropout = 0.25;
    const auto run = [&](std::int64_t begin, std::int64_t end, std::int64_t keys) {
      Generator again = generator;
      call.options.generator = &again;
      return attend(slice(call.q, 1, begin, end), slice(call.k, 1, 0, keys), slice(call.v, 1, 0, keys), one.pattern,
                    call.options);
    };
    const Attended whole = run(0, length, length);
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 30}, {30, 99}, {130, 131}}) {
      const Attended piece = run(begin, end, end);  // no query sees a key beyond the end
      EXPECT_TRUE(allclose(piece.out, slice(whole.out, 1, begin, end), 1e-12, 1e-13)) << one.name << " at " << begin;
      EXPECT_TRUE(allclose(piece.lse, slice(whole.lse, 2, begin, end), 1e-12, 1e-13)) << one.name << " at " << begin;
    }
  }
}

TEST(AttendInvariance, AQueryWithoutKeysGivesZeroAndTakesNoGradient) {
  const std::int64_t length = 40;
  const Pattern nothing = Pattern::documents({0, 7, 7});  // queries from 7 on are in no document
  for (const bool sinks : {false, true}) {
    Call call = make_call({2, length, length, 4, 2, 4, 4});
    if (sinks) call.options.sinks = from_data<double>({-1, 0, 1, 2}, {4});
    const Outcome got = attended(call, nothing);
    EXPECT_EQ(norm(slice(got.out, 1, 7)).item(), 0.0);
    EXPECT_EQ(norm(slice(got.dq, 1, 7)).item(), 0.0);
    EXPECT_EQ(norm(slice(got.dk, 1, 7)).item(), 0.0);
    EXPECT_EQ(norm(slice(got.dv, 1, 7)).item(), 0.0);
    EXPECT_GT(norm(slice(got.dq, 1, 0, 7)).item(), 0.0);
    for (const auto& [name, x] : parts(got)) EXPECT_FALSE(x.defined() && any(isnan(x)).item()) << name;
    for (std::int64_t h = 0; h < 4; ++h) {
      const double lse = slice(select(select(got.lse, 0, 1), 0, h), 0, 20, 21).item();
      EXPECT_EQ(lse, sinks ? static_cast<double>(h - 1) : -infinity);
    }
  }
}

TEST(AttendInvariance, MemoryLayoutsDoNotMatter) {
  Generator generator(4);
  const Tensor packed = randn({2, 61, 8, 6}, {.dtype = DType::f64}, generator);
  const auto inside_out = [](const Tensor& x) { return permute(contiguous(permute(x, {3, 2, 1, 0})), {3, 2, 1, 0}); };
  const auto heads_first = [](const Tensor& x) { return permute(contiguous(permute(x, {0, 2, 1, 3})), {0, 2, 1, 3}); };
  for (const char* name : {"dense", "dilated nested", "blocks listed", "window + offsets + sinks"}) {
    const Case one = cases_with(name)[1];
    Call call = make_call({2, 61, 61, 4, 2, 6, 6});
    call.q = slice(packed, 2, 0, 4);
    call.k = slice(packed, 2, 4, 6);
    call.v = slice(packed, 2, 6, 8);
    Call plain = call;
    for (Tensor* x : {&plain.q, &plain.k, &plain.v}) *x = contiguous(*x);
    const Outcome want = attended(plain, one.pattern);
    expect_equal_bits(attended(call, one.pattern), want, " of slices: " + one.name);
    Call odd = call;
    odd.q = inside_out(call.q);
    odd.k = heads_first(call.k);
    odd.v = inside_out(call.v);
    odd.grad_out = inside_out(call.grad_out);
    odd.grad_lse = permute(contiguous(permute(call.grad_lse, {2, 1, 0})), {2, 1, 0});
    expect_equal_bits(attended(odd, one.pattern), want, " of odd layouts: " + one.name);
    Call shared = call;  // one key and value for all batches
    shared.k = expand(slice(call.k, 0, 0, 1), call.k.shape());
    shared.v = expand(slice(call.v, 0, 0, 1), call.v.shape());
    Call copied = shared;
    copied.k = contiguous(shared.k);
    copied.v = contiguous(shared.v);
    expect_equal_bits(attended(shared, one.pattern), attended(copied, one.pattern), " of expanded keys: " + one.name);
  }
}

}  // namespace
}  // namespace poolgrad::attention
