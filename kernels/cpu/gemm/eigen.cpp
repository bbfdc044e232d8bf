// Matrix products by Eigen, which brings its own OpenMP threads.
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

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Operand = Eigen::Map<const Matrix<T>, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class T>
void multiply_one(const Gemm& g, const T* a, const T* b, T* c) {
  const Operand<T> x(a, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, Eigen::OuterStride<>(g.lda));
  const Operand<T> y(b, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, Eigen::OuterStride<>(g.ldb));
  Eigen::Map<Matrix<T>, Eigen::Unaligned, Eigen::OuterStride<>> out(c, g.m, g.n, Eigen::OuterStride<>(g.ldc));
  if (g.beta == 0.0)
    out.setZero();
  else if (g.beta != 1.0)
    out *= static_cast<T>(g.beta);
  if (g.bias)
    out.rowwise() += Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>(static_cast<const T*>(g.bias), g.n);
  const T alpha = static_cast<T>(g.alpha);
  if (g.transpose_a && g.transpose_b)
    out.noalias() += alpha * x.transpose() * y.transpose();
  else if (g.transpose_a)
    out.noalias() += alpha * x.transpose() * y;
  else if (g.transpose_b)
    out.noalias() += alpha * x * y.transpose();
  else
    out.noalias() += alpha * x * y;
}

template <class T>
void multiply(const Gemm& g, const T* a, const T* b, T* c) {
  const auto one = [&](std::int64_t i, int) {
    multiply_one(g, a + i * g.stride_a, b + i * g.stride_b, c + i * g.stride_c);
  };
  // Eigen runs alone on its thread inside a parallel region.
  Eigen::setNbThreads(num_threads());
  if (g.batch >= num_threads()) return parallel_items(g.batch, one);
  for (std::int64_t i = 0; i < g.batch; ++i) one(i, 0);
}

}  // namespace

void gemm_eigen(const Gemm& shape, const void* a, const void* b, void* c) {
  if (shape.dtype == DType::f64)
    multiply(shape, static_cast<const double*>(a), static_cast<const double*>(b), static_cast<double*>(c));
  else
    multiply(shape, static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c));
}

std::string_view eigen_version() {
  static const std::string version = "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
                                     std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION);
  return version;
}

}  // namespace poolgrad::kernels
