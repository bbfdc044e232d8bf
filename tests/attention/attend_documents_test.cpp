// Batches whose rows have different documents: each document attends as if it were alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "allocator/caching_allocator.h"
#include "attention/attend.h"
#include "attention/ring/ring.h"
#include "autograd/engine/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;

constexpr std::int64_t heads = 4, kv_heads = 2, width = 6;

/// q, k and v (B, N, H, D) as slices of one packed tensor.
struct Packed {
  Tensor whole, q, k, v;

  explicit Packed(Generator& generator, std::int64_t batch, std::int64_t length, Device device = cpu,
                  DType dtype = DType::f64)
      : whole(
            to(to(randn({batch, length, heads + 2 * kv_heads, width}, {.dtype = DType::f64}, generator), dtype), device)
                .detach()
                .set_requires_grad()),
        q(slice(whole, 2, 0, heads)),
        k(slice(whole, 2, heads, heads + kv_heads)),
        v(slice(whole, 2, heads + kv_heads)) {}
};

RowDocuments random_documents(Generator& generator, std::int64_t batch, std::int64_t length) {
  RowDocuments rows;
  for (std::int64_t row = 0; row < batch; ++row) {
    std::vector<std::int64_t> ends =
        randint(0, length + 1, {3}, {.dtype = DType::i64}, generator).to_vector<std::int64_t>();
    ends.insert(ends.end(), {0, length});
    std::ranges::sort(ends);  // equal ends are empty documents
    rows.push_back(ends);
  }
  return rows;
}

/// Attention of one document by its scores: the pairs with -left <= j - i <= right.
Attended alone(const Tensor& q, const Tensor& k, const Tensor& v, double left, double right) {
  const std::int64_t length = q.size(1);
  const Tensor at = arange(0, static_cast<double>(length), 1, {.dtype = DType::f64});
  const Tensor distance = unsqueeze(at, 0) - unsqueeze(at, 1);
  const Tensor hidden = logical_or(distance<-left, distance> right);
  std::vector<Tensor> out, lse;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t group = h / (heads / kv_heads);
    const Tensor scores = masked_fill(
        matmul(select(q, 2, h), transpose(select(k, 2, group), 1, 2)) / std::sqrt(double(width)), hidden, -1e300);
    out.push_back(unsqueeze(matmul(softmax(scores, -1), select(v, 2, group)), 2));
    lse.push_back(unsqueeze(logsumexp(scores, -1), 1));
  }
  return {cat(out, 2), cat(lse, 1)};
}

TEST(AttendDocuments, EachDocumentAttendsAsIfAlone) {
  Generator generator(test_seed());
  struct Case {
    Pattern pattern;
    double left, right;
  };
  const Case cases[] = {{Pattern::dense(), INFINITY, INFINITY},
                        {Pattern::causal(), INFINITY, 0},
                        {Pattern::window(5, 2), 5, 2},
                        {Pattern::window(9, 9) & Pattern::causal(), 9, 0}};
  for (const std::int64_t length : {1, 37, 130})
    for (const auto& [pattern, left, right] : cases) {
      const Packed x(generator, 3, length);
      const RowDocuments rows = random_documents(generator, 3, length);
      const Attended found = attend(x.q, x.k, x.v, pattern, {.documents = rows});
      std::vector<Tensor> out, lse;
      for (std::int64_t row = 0; row < 3; ++row) {
        std::vector<Tensor> of_row, lse_of_row;
        const std::vector<std::int64_t>& ends = rows[static_cast<std::size_t>(row)];
        for (std::size_t d = 0; d + 1 < ends.size(); ++d) {
          if (ends[d] == ends[d + 1]) continue;
          const auto part = [&](const Tensor& y) { return slice(slice(y, 0, row, row + 1), 1, ends[d], ends[d + 1]); };
          const Attended one = alone(part(x.q), part(x.k), part(x.v), left, right);
          of_row.push_back(one.out);
          lse_of_row.push_back(one.lse);
        }
        out.push_back(cat(of_row, 1));
        lse.push_back(cat(lse_of_row, 2));
      }
      const Tensor want = cat(out, 0), want_lse = cat(lse, 0);
      SCOPED_TRACE(pattern.to_string() + ", length " + std::to_string(length));
      EXPECT_TRUE(allclose(found.out, want, 1e-12, 1e-12));
      EXPECT_TRUE(allclose(found.lse, want_lse, 1e-12, 1e-12));
      const Tensor weight = randn(want.shape(), {.dtype = DType::f64}, generator);
      const Tensor gradient =
          grad({sum(found.out * weight) + sum(found.lse)}, {x.whole}, {}, {.retain_graph = true})[0];
      EXPECT_TRUE(allclose(gradient,
                           grad({sum(want * weight) + sum(want_lse)}, {x.whole}, {}, {.retain_graph = true})[0], 1e-12,
                           1e-12));
      EXPECT_TRUE(allclose(attend_by_definition(x.q, x.k, x.v, pattern, {.documents = rows}).out, want, 1e-12, 1e-12));
    }
}

TEST(AttendDocuments, HalfTypesAreNearTheResultsOfF64) {
  Generator generator(test_seed());
  const RowDocuments rows = random_documents(generator, 2, 70);
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-5}, {DType::bf16, 4e-2}, {DType::f16, 5e-3}}) {
    const Packed x(generator, 2, 70, cpu, dtype);
    const auto wide = [](const Tensor& y) { return to(y, DType::f64); };
    const AttendOptions options{.causal = true, .documents = rows};
    const Tensor want = attend(wide(x.q), wide(x.k), wide(x.v), Pattern::dense(), options).out;
    EXPECT_TRUE(allclose(wide(attend(x.q, x.k, x.v, Pattern::dense(), options).out), want, tolerance, tolerance))
        << to_string(dtype);
  }
}

TEST(AttendDocuments, OneRowHasTheBitsOfThePattern) {
  Generator generator(test_seed());
  const Packed x(generator, 1, 90);
  const RowDocuments rows = random_documents(generator, 1, 90);
  const Attended want = attend(x.q, x.k, x.v, Pattern::causal() & Pattern::documents(rows[0]));
  const Attended found = attend(x.q, x.k, x.v, Pattern::causal(), {.documents = rows});
  EXPECT_TRUE(bit_equal(found.out, want.out));
  EXPECT_TRUE(bit_equal(found.lse, want.lse));
}

TEST(AttendDocuments, HaveTheGradientsOfCentralDifferences) {
  Generator generator(test_seed());
  const Packed x(generator, 2, 4);
  const RowDocuments rows{{0, 1, 4}, {0, 3, 4}};
  const auto function = [&](const Tensor& whole) {
    return attend(slice(whole, 2, 0, heads), slice(whole, 2, heads, heads + kv_heads),
                  slice(whole, 2, heads + kv_heads), Pattern::causal(), {.documents = rows})
        .out;
  };
  EXPECT_TRUE(gradcheck(function, x.whole));
  EXPECT_TRUE(gradgradcheck(function, x.whole));
}

TEST(AttendDocuments, KeyPaddingHidesKeysOfItsRow) {
  Generator generator(test_seed());
  const Packed x(generator, 2, 20);
  const Tensor rows_of_padding = randint(0, 2, {2, 20}, {.dtype = DType::i64}, generator) == 1.0;
  const Tensor found =
      attend(x.q, x.k, x.v, Pattern::dense(), {.key_padding = rows_of_padding, .documents = {{0, 8, 20}, {0, 20}}}).out;
  const auto row = [](const Tensor& y, std::int64_t b) { return slice(y, 0, b, b + 1); };
  for (std::int64_t b = 0; b < 2; ++b) {
    const Pattern own =
        Pattern::documents(b == 0 ? std::vector<std::int64_t>{0, 8, 20} : std::vector<std::int64_t>{0, 20});
    const Tensor want =
        attend(row(x.q, b), row(x.k, b), row(x.v, b), own, {.key_padding = row(rows_of_padding, b)}).out;
    EXPECT_TRUE(allclose(row(found, b), want, 1e-12, 1e-12)) << "row " << b;
  }
}

TEST(AttendDocuments, ASimulatedDevicePredictsThePeakToTheByte) {
  const auto peak_on = [](Device device) {
    Generator generator(1);
    const Packed x(generator, 3, 64, device, DType::f32);
    CachingAllocator& pool = allocator_for(device);
    const std::uint64_t before = pool.statistics().requested_bytes.current;
    pool.reset_peaks();
    const Tensor out =
        attend(x.q, x.k, x.v, Pattern::causal(), {.documents = {{0, 10, 64}, {0, 64}, {0, 1, 2, 64}}}).out;
    sum(out).backward();
    return pool.statistics().requested_bytes.peak - before;
  };
  constexpr int planned = 43;
  configure_simulated_device(planned, std::size_t{1} << 30, "cpu");
  EXPECT_EQ(peak_on({DeviceType::sim, planned}), peak_on(cpu));
}

TEST(AttendDocuments, TakeEmptyBatchesAndSequences) {
  Generator generator(1);
  const Packed none(generator, 0, 5), empty(generator, 2, 0);
  EXPECT_EQ(attend(none.q, none.k, none.v, Pattern::causal(), {.documents = {}}).out.shape(), (Shape{0, 5, 4, 6}));
  EXPECT_EQ(attend(empty.q, empty.k, empty.v, Pattern::causal(), {.documents = {{0}, {0, 0}}}).out.shape(),
            (Shape{2, 0, 4, 6}));
}

TEST(AttendDocuments, AreRefusedInOneSentence) {
  Generator generator(1);
  const Packed x(generator, 2, 6);
  const auto refusal = [&](const Pattern& pattern, AttendOptions options) {
    const std::string text = error_of<ValueError>([&] { attend(x.q, x.k, x.v, pattern, options); });
    return text.substr(0, text.find(": q ("));
  };
  const RowDocuments rows{{0, 2, 6}, {0, 6}};
  EXPECT_EQ(refusal(Pattern::causal(), {.documents = {{0, 6}}}),
            "[attend] documents by row need a list for each row, but there are 1");
  EXPECT_EQ(refusal(Pattern::causal(), {.documents = {{0, 6}, {0, 5}}}),
            "[attend] documents by row must ascend from 0 to 6, but not so in row 1");
  EXPECT_EQ(refusal(Pattern::causal(), {.documents = {{0, 4, 3, 6}, {0, 6}}}),
            "[attend] documents by row must ascend from 0 to 6, but not so in row 0");
  EXPECT_THAT(refusal(Pattern::strided(4), {.documents = rows}),
              testing::StartsWith("[attend] documents by row need a pattern of dense, causal and window, not "));
  EXPECT_EQ(refusal(Pattern::causal(), {.bias = zeros({1, 1, 6, 6}, {.dtype = DType::f64}), .documents = rows}),
            "[attend] documents by row take no bias, dropout, out_over_q and chunks");
  EXPECT_EQ(refusal(Pattern::causal(), {.documents = rows, .out_over_q = true}),
            "[attend] documents by row take no bias, dropout, out_over_q and chunks");
  EXPECT_THAT(error_of<ValueError>(
                  [&] { ring_attend_all(x.q, x.k, x.v, Pattern::causal(), 2, {.attend = {.documents = rows}}); }),
              testing::StartsWith("[ring_attend] documents by row are not divided among ranks: q ("));
  EXPECT_EQ(refusal(Pattern::documents({0, 6}), {.documents = rows}),
            "[attend] documents by row need a pattern of dense, causal and window, not documents(1)");
  EXPECT_EQ(refusal(Pattern::causal(), {.documents = rows, .dropout = 0.1}),
            "[attend] documents by row take no bias, dropout, out_over_q and chunks");
  EXPECT_EQ(error_of<ValueError>([&] {
              attend(slice(x.q, 1, 0, 2), x.k, x.v, Pattern::causal(), {.documents = rows});
            }).substr(0, 55),
            "[attend] documents by row need as many keys as queries:");
}

TEST(DocumentsOf, EndAfterEachSeparator) {
  const Tensor tokens = from_data<std::int64_t>({7, 1, 7, 2, 3, 7, 7, 4, 5, 6}, {2, 5});
  EXPECT_EQ(documents_of(tokens, 7), (RowDocuments{{0, 1, 3, 5}, {0, 1, 2, 5}}));
  EXPECT_EQ(documents_of(slice(tokens, 1, 0, 0), 7), (RowDocuments{{0}, {0}}));
  EXPECT_THROW(documents_of(ones({2, 5}), 7), DTypeError);
  EXPECT_EQ(error_of<ShapeError>([&] { documents_of(select(tokens, 0, 0), 7); }),
            "[documents_of] tokens must be (B, T): tokens (5,) i64 on cpu");
}

}  // namespace
}  // namespace poolgrad::attention
