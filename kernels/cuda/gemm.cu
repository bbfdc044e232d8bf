// Matrix products by cuBLASLt. The first product loads the library (half a gigabyte), so programs without products and
// machines without it never load it (kernels/cuda/cublaslt.h).
#include "kernels/gemm.h"

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launcher.cuh"

#if !defined(POOLGRAD_HAVE_CUBLASLT)

void poolgrad::kernels::on_cuda::gemm(Stream stream, const Gemm&, const void*, const void*, void*) {
  throw DeviceError("[gemm] needs cuBLASLt on " + to_string(stream.device) +
                    ": poolgrad was built without its header cublasLt.h");
}

#else

#include <compare>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu/workspace.h"

namespace poolgrad::kernels {
namespace {

/// The entry points in use, by their names without the prefix cublasLt.
struct CublasLt {
#define POOLGRAD_ENTRY(name) decltype(&cublasLt##name) name = POOLGRAD_CUBLASLT_ENTRY(cublasLt##name)
  POOLGRAD_ENTRY(Create);
  POOLGRAD_ENTRY(GetStatusName);
  POOLGRAD_ENTRY(GetStatusString);
  POOLGRAD_ENTRY(Matmul);
  POOLGRAD_ENTRY(MatmulAlgoGetHeuristic);
  POOLGRAD_ENTRY(MatmulDescCreate);
  POOLGRAD_ENTRY(MatmulDescDestroy);
  POOLGRAD_ENTRY(MatmulDescSetAttribute);
  POOLGRAD_ENTRY(MatmulPreferenceCreate);
  POOLGRAD_ENTRY(MatmulPreferenceDestroy);
  POOLGRAD_ENTRY(MatmulPreferenceSetAttribute);
  POOLGRAD_ENTRY(MatrixLayoutCreate);
  POOLGRAD_ENTRY(MatrixLayoutDestroy);
  POOLGRAD_ENTRY(MatrixLayoutSetAttribute);
#undef POOLGRAD_ENTRY
};

const CublasLt& cublaslt() {
  static const CublasLt calls;
  return calls;
}

void check_status(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(std::string("[gemm] ") + call + " fails with " + cublaslt().GetStatusName(status) + ": " +
                  cublaslt().GetStatusString(status));
}

/// A cuBLASLt handle for one thread at a time, from the device's free list. The list grows to the number of concurrent
/// products. Handles are never destroyed, because that would wait for the device.
class Handle {
 public:
  explicit Handle(int device) : spare_(spare_of(device)) {
    const std::lock_guard lock(mutex());
    if (spare_.handles.empty()) {
      spare_.handles.reserve(spare_.made + 1);  // so that the destructor never allocates
      check_status(cublaslt().Create(&handle_), "cublasLtCreate");
      ++spare_.made;
    } else {
      handle_ = spare_.handles.back();
      spare_.handles.pop_back();
    }
  }
  ~Handle() {
    const std::lock_guard lock(mutex());
    spare_.handles.push_back(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator cublasLtHandle_t() const { return handle_; }

 private:
  struct Spare {
    std::vector<cublasLtHandle_t> handles;
    std::size_t made = 0;
  };
  static std::mutex& mutex() {
    static auto& instance = *new std::mutex;
    return instance;
  }
  static Spare& spare_of(int device) {
    static auto& devices = *new std::map<int, Spare>;
    const std::lock_guard lock(mutex());
    return devices[device];
  }

  Spare& spare_;
  cublasLtHandle_t handle_ = nullptr;
};

/// A cuBLASLt descriptor with scope lifetime. cuBLASLt takes attributes as bytes; set() requires their exact type.
template <class T, auto Create, auto Destroy, auto SetAttribute>
class Descriptor {
 public:
  template <class... Arguments>
  explicit Descriptor(Arguments... arguments) {
    check_status((cublaslt().*Create)(&descriptor_, arguments...), "making a descriptor");
  }
  ~Descriptor() { (cublaslt().*Destroy)(descriptor_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  template <class Value>
  void set(auto attribute, Value value) {
    check_status((cublaslt().*SetAttribute)(descriptor_, attribute, &value, sizeof(value)), "setting an attribute");
  }
  operator T() const { return descriptor_; }

 private:
  T descriptor_ = nullptr;
};
using Operation = Descriptor<cublasLtMatmulDesc_t, &CublasLt::MatmulDescCreate, &CublasLt::MatmulDescDestroy,
                             &CublasLt::MatmulDescSetAttribute>;
using Matrix = Descriptor<cublasLtMatrixLayout_t, &CublasLt::MatrixLayoutCreate, &CublasLt::MatrixLayoutDestroy,
                          &CublasLt::MatrixLayoutSetAttribute>;
using Preference = Descriptor<cublasLtMatmulPreference_t, &CublasLt::MatmulPreferenceCreate,
                              &CublasLt::MatmulPreferenceDestroy, &CublasLt::MatmulPreferenceSetAttribute>;

cudaDataType_t native_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::f32: return CUDA_R_32F;
    case DType::f16: return CUDA_R_16F;
    default: return CUDA_R_16BF;
  }
}

/// Returns the alignment of an address in bytes, at most 16; no algorithm needs more.
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 16u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// The key of an algorithm choice.
struct Problem {
  int device;
  DType dtype, out_dtype;
  bool tf32, transpose_a, transpose_b, bias, row_sums;
  std::int64_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c, workspace;
  std::uint32_t alignment_a, alignment_b, alignment_c, alignment_of_vector;

  auto operator<=>(const Problem&) const = default;
};

/// One cuBLASLt call. Its matrices are column-major: row-major C = op(A) op(B) is C^T = op(B)^T op(A)^T in the same
/// memory. B is its first operand, and our columns are its rows. The transpose flags stay the same.
class Product {
 public:
  Product(Stream stream, const Gemm& g, const void* a, const void* b, void* c, void* workspace)
      : stream_(stream),
        g_(g),
        a_(a),
        b_(b),
        c_(c),
        workspace_(workspace),
        problem_{stream.device.index,
                 g.dtype,
                 g.out_dtype(),
                 g.dtype == DType::f32 && tf32_allowed(),
                 g.transpose_a,
                 g.transpose_b,
                 g.bias != nullptr,
                 g.row_sums != nullptr,
                 g.m,
                 g.n,
                 g.k,
                 g.lda,
                 g.ldb,
                 g.ldc,
                 g.batch,
                 g.stride_a,
                 g.stride_b,
                 g.stride_c,
                 workspace ? gemm_workspace(g) : 0,
                 alignment_of(a),
                 alignment_of(b),
                 alignment_of(c),
                 alignment_of(g.bias ? g.bias : g.row_sums)},
        operation_(compute_type(), scale_type()),
        first_(native_type(g.dtype), size(g.transpose_b ? g.k : g.n), size(g.transpose_b ? g.n : g.k), g.ldb),
        second_(native_type(g.dtype), size(g.transpose_a ? g.m : g.k), size(g.transpose_a ? g.k : g.m), g.lda),
        out_(native_type(g.out_dtype()), size(g.n), size(g.m), g.ldc) {
    operation_.set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    operation_.set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (g.bias != nullptr) {  // bias: added to each of its columns, which are our rows
      operation_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      operation_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
    } else if (g.row_sums != nullptr) {  // row sums: a sum per column of its second operand, the gradient of a bias
      operation_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB);
      operation_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.row_sums);
    }
    repeat(first_, g.stride_b);
    repeat(second_, g.stride_a);
    repeat(out_, g.stride_c);
  }

  /// Returns false if cuBLASLt has no algorithm with the requested bias or row sums.
  bool run() const {
    const Handle handle(problem_.device);
    const std::optional<cublasLtMatmulAlgo_t> algorithm = chosen(handle);
    if (!algorithm) return false;
    const auto call = [&](auto alpha, auto beta) {
      check_status(cublaslt().Matmul(handle, operation_, &alpha, b_, first_, a_, second_, &beta, c_, out_, c_, out_,
                                     &*algorithm, workspace_, static_cast<std::size_t>(problem_.workspace),
                                     reinterpret_cast<cudaStream_t>(stream_.id)),
                   "cublasLtMatmul");
    };
    if (g_.dtype == DType::f64)
      call(g_.alpha, g_.beta);
    else
      call(static_cast<float>(g_.alpha), static_cast<float>(g_.beta));
    return true;
  }

 private:
  static std::uint64_t size(std::int64_t n) { return static_cast<std::uint64_t>(n); }
  cudaDataType_t scale_type() const { return g_.dtype == DType::f64 ? CUDA_R_64F : CUDA_R_32F; }
  cublasComputeType_t compute_type() const {
    if (g_.dtype == DType::f64) return CUBLAS_COMPUTE_64F;
    return problem_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  }
  void repeat(Matrix& matrix, std::int64_t stride) const {
    if (g_.batch == 1) return;
    matrix.set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(g_.batch));
    matrix.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }

  /// Returns the algorithm of a problem, cached so that repeated products have the same bits. The choice is a function
  /// of the problem, so clearing the cache changes no results.
  std::optional<cublasLtMatmulAlgo_t> chosen(cublasLtHandle_t handle) const {
    static auto& mutex = *new std::mutex;
    static auto& algorithms = *new std::map<Problem, std::optional<cublasLtMatmulAlgo_t>>;
    const std::lock_guard lock(mutex);
    if (const auto known = algorithms.find(problem_); known != algorithms.end()) return known->second;
    if (algorithms.size() >= 4096) algorithms.clear();
    return algorithms[problem_] = choose(handle);
  }

  std::optional<cublasLtMatmulAlgo_t> choose(cublasLtHandle_t handle) const {
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size(problem_.workspace));
    // Parts of k are summed in the compute type, neither in place nor rounded to the type of C.
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem_.alignment_b);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem_.alignment_a);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem_.alignment_c);
    // cuBLASLt has no preference for the epilogue vector; algorithms assume the alignment of D.
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                   std::min(problem_.alignment_c, problem_.alignment_of_vector));
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    const cublasStatus_t status = cublaslt().MatmulAlgoGetHeuristic(handle, operation_, first_, second_, out_, out_,
                                                                    preference, 1, &best, &count);
    const bool none = status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0);
    if (none && (problem_.bias || problem_.row_sums)) return std::nullopt;
    if (none)
      throw CudaError("[gemm] cuBLASLt has no algorithm for (" + std::to_string(g_.m) + ", " + std::to_string(g_.k) +
                      ") x (" + std::to_string(g_.k) + ", " + std::to_string(g_.n) + ") " +
                      std::string(to_string(g_.dtype)) + ", " + std::to_string(g_.batch) + " times, on " +
                      to_string(stream_.device));
    check_status(status, "cublasLtMatmulAlgoGetHeuristic");
    check_status(best.state, "cublasLtMatmulAlgoGetHeuristic");
    return best.algo;
  }

  const Stream stream_;
  const Gemm& g_;
  const void *const a_, *const b_;
  void *const c_, *const workspace_;
  const Problem problem_;
  Operation operation_;
  Matrix first_, second_, out_;
};

/// C = beta * C + bias without cuBLASLt. Covers k = 0, and products whose bias epilogue cuBLASLt lacks.
void scale_and_shift(Stream stream, const Gemm& g, void* c) {
  View out{.data = c, .dtype = g.out_dtype(), .rank = 3};
  const std::int64_t shape[] = {g.batch, g.m, g.n}, strides[] = {g.stride_c, g.ldc, 1};
  std::copy_n(shape, 3, out.shape);
  std::copy_n(strides, 3, out.strides);
  View bias = out;
  bias.data = const_cast<void*>(g.bias);
  bias.strides[0] = bias.strides[1] = 0;
  if (g.beta == 0.0) return g.bias ? on_cuda::copy(stream, out, bias) : on_cuda::fill(stream, out, 0.0);
  if (g.bias) return on_cuda::axpby(stream, out, g.beta, out, 1.0, bias);
  on_cuda::unary(stream, UnaryOp::affine, out, out, g.beta, 0.0);
}

const void* advanced(const void* matrix, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(matrix) + elements * static_cast<std::int64_t>(size_of(dtype));
}

/// Returns the number of parts of k to multiply separately. Weight gradients in f32 have small C and long k. cuBLASLt
/// then uses few blocks and leaves most of a GPU idle (docs/archive/measurements.md). Batched products use more blocks.
std::int64_t parts_of_k(const Gemm& g) {
  const bool plain = g.dtype == DType::f32 && !tf32_allowed() && g.batch == 1 && g.alpha == 1 && g.beta == 0 && !g.bias;
  constexpr std::int64_t tile = 128, few_tiles = 32, enough_blocks = 256, shortest = 256, most = 16;
  const std::int64_t tiles = ((g.m + tile - 1) / tile) * ((g.n + tile - 1) / tile);
  if (!plain || tiles == 0 || tiles > few_tiles) return 1;
  std::int64_t parts = std::min({enough_blocks / tiles, g.k / shortest, most});
  constexpr std::int64_t together = 4;  // 16 bytes: every part is aligned like the whole
  while (parts > 1 && g.k % (parts * together) != 0) --parts;
  return std::max<std::int64_t>(1, parts);
}

struct SumOfParts {
  const float* parts;
  float* c;
  std::int64_t count, elements, n, ldc;
};
/// Sums the parts of C in order; the parts are contiguous.
__global__ __launch_bounds__(256) void add_parts(const SumOfParts x) {
  for (std::int64_t i = cuda::grid_thread(); i < x.elements; i += cuda::grid_threads()) {
    float sum = 0;
    for (std::int64_t p = 0; p < x.count; ++p) sum += x.parts[p * x.elements + i];
    x.c[i / x.n * x.ldc + i % x.n] = sum;
  }
}

/// Multiplies the parts into gemm_workspace() memory and sums them.
void multiply_in_parts(Stream stream, const Gemm& g, std::int64_t count, const void* a, const void* b, void* c,
                       void* parts) {
  Gemm part = g;
  part.k = g.k / count;
  part.batch = count;
  part.stride_a = g.transpose_a ? part.k * g.lda : part.k;
  part.stride_b = g.transpose_b ? part.k : part.k * g.ldb;
  part.ldc = g.n;
  part.stride_c = g.m * g.n;
  Product(stream, part, a, b, parts, nullptr).run();
  cuda::launch("gemm", &add_parts, grid_stride_shape(part.stride_c), stream,
               {static_cast<const float*>(parts), static_cast<float*>(c), count, part.stride_c, g.n, g.ldc});
}

}  // namespace

void on_cuda::gemm(Stream stream, const Gemm& shape, const void* a, const void* b, void* c) {
  if (shape.k > 0)
    for (const void* operand : {a, b}) cuda::check_operand("gemm", stream, operand);
  cuda::check_operand("gemm", stream, c);
  for (const void* vector : {shape.bias, static_cast<const void*>(shape.row_sums)})
    if (vector) cuda::check_operand("gemm", stream, vector);
  if (shape.k == 0) return scale_and_shift(stream, shape, c);

  Gemm g = shape;
  const bool sums = sums_rows_in_epilogue(g);
  if (!sums || alignment_of(g.row_sums) < 16) g.row_sums = nullptr;
  std::optional<Workspace<std::byte>> workspace;
  if (const std::int64_t bytes = gemm_workspace(g)) workspace.emplace(stream, "gemm", bytes, gemm_workspace_alignment);
  use_device(stream.device.index);
  const std::int64_t parts = parts_of_k(g);
  if (parts > 1) multiply_in_parts(stream, g, parts, a, b, c, workspace->data());
  constexpr std::int64_t most = max_grid_yz;  // grid limit on matrices per call
  for (std::int64_t first = 0; first < shape.batch && parts == 1; first += most) {
    g.batch = std::min(most, shape.batch - first);
    g.beta = shape.beta, g.bias = shape.bias;
    void* const to = const_cast<void*>(advanced(c, first * g.stride_c, g.out_dtype()));
    const auto run = [&] {
      return Product(stream, g, advanced(a, first * g.stride_a, g.dtype), advanced(b, first * g.stride_b, g.dtype), to,
                     workspace ? workspace->data() : nullptr)
          .run();
    };
    const bool in_f64 = g.dtype == DType::f64;  // f64 has no epilogue
    if (!(g.bias && in_f64) && run()) continue;
    if (g.bias) {
      scale_and_shift(stream, g, to);
      g.beta = 1.0, g.bias = nullptr;
    }
    g.row_sums = nullptr;
    run();
  }
  if (synchronous()) cuda::wait_for("gemm", stream);
  workspace.reset();
  if (sums) sum_rows_of(stream, shape, a, /*asks_alone=*/g.row_sums != nullptr);
}

}  // namespace poolgrad::kernels

#endif
