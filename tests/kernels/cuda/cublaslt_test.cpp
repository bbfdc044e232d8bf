// Requests of products to cuBLASLt, recorded by the emulated library, and the requests that it refuses.
#include "kernels/cuda/cublaslt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "kernels/dispatch.h"
#include "kernels/gemm.h"
#include "kernels/profile.h"
#include "tests/emulation/launch_log.h"
#include "tests/kernels/cuda/device_array.h"

namespace poolgrad::kernels {
namespace {

using namespace emulation::cublaslt;
using testing::cuda0;
using testing::DeviceArray;

Gemm dense(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n};
}
std::vector<float> numbers(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
  return values;
}
std::string error_of_product(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CublasLt, ChoosesAnAlgorithmOncePerProblem) {
  const DeviceArray<float> a(numbers(300)), b(numbers(300)), c(numbers(300));
  const auto choices = [&](const Gemm& g, const float* from) {
    const Calls before = calls();
    gemm(cuda0, g, from, b.data(), c.data());
    const Calls after = calls();
    EXPECT_EQ(after.products, before.products + 1);
    EXPECT_EQ(after.descriptors, 0) << "are left";
    return after.choices - before.choices;
  };
  const Gemm g = dense(11, 13, 12);
  EXPECT_EQ(choices(g, a.data()), 1);
  EXPECT_EQ(choices(g, a.data()), 0);
  EXPECT_EQ(choices(g, a.data() + 4), 0) << "is as well aligned";
  EXPECT_EQ(choices(g, a.data() + 1), 1) << "is not";
  Gemm wider = g;
  wider.lda = 13;
  EXPECT_EQ(choices(wider, a.data()), 1);
  wider.beta = 1;
  EXPECT_EQ(choices(wider, a.data()), 0) << "whatever is added to";
}

TEST(CublasLt, MultipliesInTF32OnlyWhereItMay) {
  const DeviceArray<float> a({1}), b({1}), c({0});
  const auto in_tf32 = [&](DType dtype) {
    const Calls before = calls();
    Gemm g = dense(1, 1, 1);
    g.dtype = dtype;
    gemm(cuda0, g, a.data(), b.data(), c.data());
    return calls().in_tf32 - before.in_tf32;
  };
  EXPECT_FALSE(tf32_allowed());
  EXPECT_EQ(in_tf32(DType::f32), 0);
  allow_tf32(true);
  EXPECT_EQ(in_tf32(DType::f32), 1);
  EXPECT_EQ(in_tf32(DType::bf16), 0);
  allow_tf32(false);
  EXPECT_EQ(in_tf32(DType::f32), 0);
}

TEST(CublasLt, MatchesTheWorkspaceOfASimulatedDevice) {
  const auto requests = [](Device device, const Gemm& g, const void* a, const void* b, void* c) {
    CachingAllocator& pool = allocator_for(device);
    pool.reset_sequence_hash();
    const std::size_t before = pool.statistics().requests;
    gemm(Stream{device}, g, a, b, c);
    return std::pair(pool.sequence_hash(), pool.statistics().requests - before);
  };
  const DeviceArray<double> a(std::vector<double>(60000)), b(std::vector<double>(60000)), c(std::vector<double>(60000));
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t k : {0, 1, 256, 257, 900})
      for (const std::int64_t batch : {1, 3}) {
        Gemm g = dense(19, 21, k);
        g.dtype = dtype, g.batch = batch, g.stride_c = 19 * 21;
        const auto there = requests(cuda0.device, g, a.data(), b.data(), c.data());
        EXPECT_EQ(there, requests(Device{DeviceType::sim, 0}, g, nullptr, nullptr, nullptr)) << to_string(dtype) << k;
        EXPECT_EQ(there.second, k > 256 ? 1u : 0u);
      }
}

/// Number of additional reductions of a product with sums of rows on `device`, and the hash of its pool requests.
std::pair<std::size_t, std::uint64_t> reductions_and_requests(Device device, Gemm g, const void* a, const void* b,
                                                              void* c, void* sums) {
  CachingAllocator& pool = allocator_for(device);
  pool.reset_sequence_hash();
  g.row_sums = sums;
  const KernelProfile profile;
  gemm(Stream{device}, g, a, b, c);
  const std::vector<KernelCall> taken = profile.calls();
  const auto reductions = std::ranges::count(taken, std::string_view("reduce"), &KernelCall::kernel);
  return {static_cast<std::size_t>(reductions), pool.sequence_hash()};
}

TEST(CublasLt, ComputesRowSumsInTheEpilogue) {
  const DeviceArray<double> a(std::vector<double>(9000)), b(std::vector<double>(9600)), c(std::vector<double>(400)),
      sums(std::vector<double>(20));
  const auto reductions = [&](DType dtype, std::int64_t n, std::int64_t at, std::int64_t sums_at = 0) {
    Gemm g = dense(16, n, 400);
    g.transpose_a = true, g.lda = 16, g.dtype = dtype;
    void* const to = reinterpret_cast<char*>(sums.data()) + sums_at;
    const auto there =
        reductions_and_requests(cuda0.device, g, reinterpret_cast<const char*>(a.data()) + at, b.data(), c.data(), to);
    EXPECT_EQ(there.second, reductions_and_requests({DeviceType::sim, 0}, g, nullptr, nullptr, nullptr, to).second)
        << to_string(dtype) << n << at;
    return there.first;
  };
  for (const DType dtype : {DType::f16, DType::bf16}) {
    EXPECT_EQ(reductions(dtype, 24, 0), 0u);
    EXPECT_EQ(reductions(dtype, 23, 0), 1u) << "no algorithm has it for rows that are not whole packs";
    EXPECT_EQ(reductions(dtype, 24, 2), 1u) << "nor for operands that do not begin with one";
    EXPECT_EQ(reductions(dtype, 24, 0, 2), 1u) << "nor is it asked for sums that do not";
  }
  EXPECT_EQ(reductions(DType::f32, 24, 0), 1u);
  EXPECT_EQ(reductions(DType::f64, 24, 0), 1u);
}

TEST(CublasLt, AddsABiasInTheEpilogueWhenSupported) {
  const DeviceArray<double> a(std::vector<double>(300)), b(std::vector<double>(300)), c(std::vector<double>(300)),
      bias(std::vector<double>(20));
  const auto copies = [&](std::int64_t at) {
    Gemm g = dense(16, 24, 20);
    g.dtype = DType::bf16, g.bias = reinterpret_cast<char*>(bias.data()) + at;
    const emulation::LaunchLog log;
    gemm(cuda0, g, a.data(), b.data(), c.data());
    cuda::synchronize(cuda0);
    return log.operators().size();
  };
  for (const std::int64_t at : {0, 4, 8}) EXPECT_EQ(copies(at), 0u) << at;
  EXPECT_EQ(copies(2), 1u) << "it has none: C is the bias, to which the product is added";
}

TEST(CublasLt, RejectsRowSumsWithABatchOrABias) {
  const DeviceArray<float> a(numbers(60)), b(numbers(60)), c(numbers(60));
  Gemm g = dense(4, 5, 3);
  g.row_sums = c.data();
  g.batch = 2;
  const std::string refused = "[gemm] row sums need a single product without a bias";
  EXPECT_EQ(error_of_product([&] { gemm(cuda0, g, a.data(), b.data(), c.data()); }), refused);
  g.batch = 1, g.bias = b.data();
  EXPECT_EQ(error_of_product([&] { gemm(cuda0, g, a.data(), b.data(), c.data()); }), refused);
}

TEST(CublasLt, GivesConcurrentThreadsTheirOwnHandles) {
  const std::int64_t m = 40, n = 50, k = 300;
  const DeviceArray<float> a(numbers(m * k)), b(numbers(k * n)), c(numbers(m * n));
  gemm(cuda0, dense(m, n, k), a.data(), b.data(), c.data());
  const std::vector<float> expected = c.read();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      const DeviceArray<float> own(numbers(m * n));
      for (int repeat = 0; repeat < 5; ++repeat) gemm(cuda0, dense(m, n, k), a.data(), b.data(), own.data());
      EXPECT_EQ(own.read() == expected, true);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(calls().handles, 5);
  EXPECT_EQ(calls().descriptors, 0);
}

TEST(CublasLt, ReportsABadProductInOneSentenceAndRecovers) {
  const DeviceArray<float> a(numbers(12)), b(numbers(12)), c(numbers(9));
  const std::vector<float> of_host(12);
  const auto multiply = [&](const Gemm& g, const float* from) {
    return error_of_product([&] { gemm(cuda0, g, from, b.data(), c.data()); });
  };
  const Gemm g = dense(3, 3, 4);
  EXPECT_EQ(multiply(g, of_host.data()), "[gemm] an operand is in memory of the host, not of cuda:0");
  Gemm narrow = g;
  narrow.lda = 3;
  EXPECT_EQ(
      multiply(narrow, a.data()),
      "[gemm] cublasLtMatmulAlgoGetHeuristic fails with CUBLAS_STATUS_INVALID_VALUE: the leading dimension of B, 3, "
      "is less than its 4 rows");
  EXPECT_EQ(calls().descriptors, 0) << "are left";
  EXPECT_EQ(multiply(g, a.data()), "no error");
}

TEST(KernelMutants, ALeadingDimensionBeyondItsOperandIsReported) {
  const DeviceArray<float> a(numbers(12)), b(numbers(20)), c(numbers(15));
  const auto multiply = [&](const Gemm& g) {
    return error_of_product([&] { gemm(cuda0, g, a.data(), b.data(), c.data()); });
  };
  const std::string refused = "[gemm] cublasLtMatmul fails with CUBLAS_STATUS_INVALID_VALUE: ";
  const Gemm right = dense(3, 5, 4);
  EXPECT_EQ(multiply(right), "no error");
  Gemm wrong = right;
  wrong.lda = 5;
  EXPECT_EQ(multiply(wrong), refused +
                                 "B is 3 columns of 4 at a leading dimension of 5, which reach over 56 bytes, and "
                                 "its block has 48");
  wrong = right, wrong.ldb = 6;
  EXPECT_EQ(multiply(wrong), refused +
                                 "A is 4 columns of 5 at a leading dimension of 6, which reach over 92 bytes, and "
                                 "its block has 80");
  wrong = right, wrong.ldc = 6;
  EXPECT_EQ(multiply(wrong), refused +
                                 "C is 3 columns of 5 at a leading dimension of 6, which reach over 68 bytes, and "
                                 "its block has 60");
  wrong = right, wrong.transpose_b = true;  // k columns, n apart
  EXPECT_EQ(multiply(wrong), refused +
                                 "A is 5 columns of 4 at a leading dimension of 5, which reach over 96 bytes, and "
                                 "its block has 80");
}

TEST(KernelMutants, AWrongLeadingDimensionGivesAnotherProduct) {
  const std::vector<float> rows_of_six = numbers(18), right = numbers(20);
  const DeviceArray<float> a(rows_of_six), b(right), c(numbers(15));
  Gemm g = dense(3, 5, 4);
  g.lda = 6;
  std::vector<float> expected(15);
  gemm({}, g, rows_of_six.data(), right.data(), expected.data());
  gemm(cuda0, g, a.data(), b.data(), c.data());
  EXPECT_EQ(c.read(), expected);
  g.lda = 5;
  gemm(cuda0, g, a.data(), b.data(), c.data());
  EXPECT_NE(c.read(), expected);
}

/// Describes the f32 product (8, 4) x (4, 6), column-major, to cuBLASLt, with one value changed.
struct Told {
  const cublasLtHandle_t handle = made_once();
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  std::size_t workspace = 0;

  explicit Told(cublasComputeType_t compute = CUBLAS_COMPUTE_32F, cudaDataType_t scale = CUDA_R_32F,
                std::int64_t leading = 8, std::uint64_t terms_of_b = 4) {
    cublasLtMatmulDescCreate(&operation, compute, scale);
    cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, 8, 4, leading);
    cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, terms_of_b, 6, 4);
    cublasLtMatrixLayoutCreate(&d, CUDA_R_32F, 8, 6, 8);
    cublasLtMatmulPreferenceCreate(&preference);
    for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      const std::uint32_t bytes = 16;
      cublasLtMatmulPreferenceSetAttribute(preference, which, &bytes, sizeof(bytes));
    }
  }
  ~Told() {
    cublasLtMatmulDescDestroy(operation);
    for (const auto layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference);
  }

  static cublasLtHandle_t made_once() {
    static cublasLtHandle_t made = nullptr;
    if (!made) cublasLtCreate(&made);
    return made;
  }
  cublasLtMatmulAlgo_t chosen;
  std::string choose() {
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, d, d, preference, 1, &best, &count);
    chosen = best.algo;
    return cublasLtGetStatusString(status);
  }
  std::string run(const void* at_a, const void* at_b, void* at_d, void* scratch = nullptr) {
    const float one = 1, zero = 0;
    return cublasLtGetStatusString(cublasLtMatmul(handle, operation, &one, at_a, a, at_b, b, &zero, at_d, d, at_d, d,
                                                  &chosen, scratch, workspace, nullptr));
  }
};

TEST(CublasLt, RejectsContradictoryDescriptors) {
  EXPECT_EQ(Told().choose(), "success");
  EXPECT_EQ(Told(CUBLAS_COMPUTE_32F, CUDA_R_32F, 7).choose(), "the leading dimension of A, 7, is less than its 8 rows");
  EXPECT_EQ(Told(CUBLAS_COMPUTE_32F, CUDA_R_32F, 8, 3).choose(), "op(A) and op(B) have different numbers of terms");
  EXPECT_EQ(Told(CUBLAS_COMPUTE_32F, CUDA_R_64F).choose(),
            "there is no product of f32 that gives f32 with alpha and beta in f64");
  EXPECT_EQ(Told(CUBLAS_COMPUTE_64F, CUDA_R_64F).choose(),
            "there is no product of f32 that gives f32 with alpha and beta in f64");
  Told swapped;
  std::swap(swapped.a, swapped.b);
  EXPECT_EQ(swapped.choose(), "op(A) and op(B) have different numbers of terms");
  Told biased;
  const std::uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  cublasLtMatmulDescSetAttribute(biased.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
  EXPECT_EQ(biased.choose(), "the epilogue adds a bias, and there is none");
  Told summed;
  const std::uint32_t sums = CUBLASLT_EPILOGUE_BGRADB;
  cublasLtMatmulDescSetAttribute(summed.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &sums, sizeof(sums));
  EXPECT_EQ(summed.choose(), "the epilogue has no place for the gradient of a bias");
  Told batched;
  const std::int32_t many = 2;
  cublasLtMatrixLayoutSetAttribute(batched.a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &many, sizeof(many));
  EXPECT_EQ(batched.choose(), "batches have different numbers of matrices");
  const std::int64_t wide = 2;
  EXPECT_EQ(cublasLtGetStatusString(
                cublasLtMatrixLayoutSetAttribute(batched.a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &wide, sizeof(wide))),
            std::string("an attribute of 4 bytes is set by 8"));
}

TEST(CublasLt, RejectsBadAddressesAndAlgorithms) {
  const DeviceArray<float> a(numbers(40)), b(numbers(40)), d(numbers(60));
  std::vector<float> of_host(60);
  Told told;
  ASSERT_EQ(told.choose(), "success");
  EXPECT_EQ(told.run(a.data(), b.data(), d.data()), "success");
  EXPECT_EQ(told.run(a.data() + 1, b.data(), d.data()), "A is aligned to 4 bytes, the algorithm is for 16");
  EXPECT_EQ(told.run(a.data(), of_host.data(), d.data()).substr(0, 1), "B");
  Told other(CUBLAS_COMPUTE_32F, CUDA_R_32F, 9);
  other.chosen = told.chosen;
  EXPECT_EQ(other.run(a.data(), b.data(), d.data()), "the algorithm is for another problem");
  const std::uint64_t most = 4096;
  cublasLtMatmulPreferenceSetAttribute(told.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof(most));
  ASSERT_EQ(told.choose(), "success");
  EXPECT_EQ(told.run(a.data(), b.data(), d.data()), "the algorithm needs a workspace of 768 bytes, it has 0");
  const Workspace<std::byte> scratch(cuda0, "test", 1024, 256);
  told.workspace = 1 << 20;
  EXPECT_EQ(told.run(a.data(), b.data(), d.data(), scratch.data()), "the workspace has fewer bytes than are claimed");
  told.workspace = 768;
  EXPECT_EQ(told.run(a.data(), b.data(), d.data(), scratch.data()), "success");
  d.read();
}

}  // namespace
}  // namespace poolgrad::kernels
