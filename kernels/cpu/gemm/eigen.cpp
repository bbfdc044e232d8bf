// Matrix products by Eigen, which has its own OpenMP threads.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own AVX-512 intrinsics, where Eigen uses them
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Core>
#include <string>

#include "kernels/cpu/gemm/backends.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Operand = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

void multiply_one(const Gemm& g, const float* a, const float* b, float* c) {
  const Operand x(a, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, Eigen::OuterStride<>(g.lda));
  const Operand y(b, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, Eigen::OuterStride<>(g.ldb));
  Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>> out(c, g.m, g.n, Eigen::OuterStride<>(g.ldc));
  if (g.beta == 0.0)
    out.setZero();
  else if (g.beta != 1.0)
    out *= static_cast<float>(g.beta);
  if (g.bias) out.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(static_cast<const float*>(g.bias), g.n);
  const float alpha = static_cast<float>(g.alpha);
  if (g.transpose_a && g.transpose_b)
    out.noalias() += alpha * x.transpose() * y.transpose();
  else if (g.transpose_a)
    out.noalias() += alpha * x.transpose() * y;
  else if (g.transpose_b)
    out.noalias() += alpha * x * y.transpose();
  else
    out.noalias() += alpha * x * y;
}

}  // namespace

void gemm_eigen(const Gemm& g, const void* a, const void* b, void* c) {
  const auto one = [&](std::int64_t i, int) {
    multiply_one(g, static_cast<const float*>(a) + i * g.stride_a, static_cast<const float*>(b) + i * g.stride_b,
                 static_cast<float*>(c) + i * g.stride_c);
  };
  // Inside a parallel region Eigen uses only the calling thread.
  Eigen::setNbThreads(num_threads());
  if (g.batch >= num_threads()) return parallel_items(g.batch, one);
  for (std::int64_t i = 0; i < g.batch; ++i) one(i, 0);
}

std::string_view eigen_version() {
  static const std::string version = "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
                                     std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION);
  return version;
}

}  // namespace poolgrad::kernels
