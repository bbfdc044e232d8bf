// Sizes beyond 32-bit arithmetic. Memory is mapped, but few of its pages are touched.
#include <gtest/gtest.h>

#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/grad_mode.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::make_call;
using testing_support::Outcome;
using testing_support::parts;

constexpr std::int64_t beyond = (std::int64_t{1} << 31) + 12345;

/// x (1, N, H, D) in a storage whose last row begins beyond 2^31 elements.
Tensor spread_out(const Tensor& x) {
  const std::int64_t rows = x.size(1), row = beyond / (rows - 1);
  const Tensor storage = Tensor::empty({rows * row}, x.options());
  const Tensor spread = storage.alias({x.shape(), {rows * row, row, x.size(3), 1}, 0});
  Tensor(spread).copy_from(x);
  return spread;
}

TEST(AttendSize, RowStridesMayExceed32Bits) {
  const NoGradGuard no_grad;
  const Pattern pattern = Pattern::dilated({16, 32}, {1, 2}) & Pattern::causal();
  const Call call = make_call({1, 40, 40, 2, 2, 4, 4}, DType::bf16);
  const Attended want = attend(call.q, call.k, call.v, pattern);
  const Tensor q = spread_out(call.q), k = spread_out(call.k), v = spread_out(call.v);
  const Attended got = attend(q, k, v, pattern, {.out_over_q = true});
  EXPECT_TRUE(got.out.shares_storage_with(q));
  EXPECT_TRUE(bit_equal(contiguous(got.out), want.out));
  EXPECT_TRUE(bit_equal(got.lse, want.lse));
}

TEST(AttendSize, GradientsReadRowStridesBeyond32Bits) {
  const Pattern pattern = Pattern::block_offsets(16, {0, -1});
  Call call = make_call({1, 40, 40, 2, 1, 4, 4}, DType::bf16);
  const Outcome want = attended(call, pattern);
  call.q = spread_out(call.q);
  call.grad_out = spread_out(call.grad_out);
  const Outcome got = attended(call, pattern);
  const auto left = parts(got), right = parts(want);
  for (const std::size_t i : {0u, 2u, 3u, 4u}) EXPECT_TRUE(bit_equal(left[i].second, right[i].second)) << i;
}

/// A few queries at the end of more than 2^31 keys. The patterns see only the last of these keys.
TEST(AttendSize, PositionsMayExceed32Bits) {
  const NoGradGuard no_grad;
  const std::int64_t tail = 300, queries = 21;
  const Tensor k = Tensor::empty({1, beyond, 1, 1}, {.dtype = DType::bf16});
  const Call call = make_call({1, queries, tail, 2, 1, 1, 1}, DType::bf16);
  slice(k, 1, beyond - tail).copy_from(call.k);
  const AttendOptions options{.alibi = alibi_slopes(2)};
  // Patterns that depend on positions mod 64 at most.
  const std::int64_t residue = (beyond - tail) % 64;
  const auto near = [&](const Pattern& pattern) { return attend(call.q, k, k, pattern, options); };
  const auto moved = [&](const Pattern& pattern) {
    const Tensor keys = zeros({1, residue + tail, 1, 1}, k.options());
    slice(keys, 1, residue).copy_from(call.k);
    return attend(call.q, keys, keys, pattern, options);
  };
  for (const Pattern& pattern : {Pattern::window(100, 0), Pattern::dilated({32, 64}, {1, 4}) & Pattern::causal(),
                                 Pattern::block_offsets(32, {0, -1})}) {
    const Attended far = near(pattern), want = moved(pattern);
    EXPECT_TRUE(bit_equal(far.out, want.out)) << pattern.to_string();
    EXPECT_TRUE(bit_equal(far.lse, want.lse)) << pattern.to_string();
  }
}

}  // namespace
}  // namespace poolgrad::attention
