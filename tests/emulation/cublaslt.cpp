#include "kernels/cuda/cublaslt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/report/snapshot.h"
#include "kernels/cpu/gemm/backends.h"
#include "kernels/cpu/kernels.h"
#include "kernels/dtype.h"
#include "tests/emulation/device.h"

namespace poolgrad::emulation::cublaslt {

struct Context {
  int device;
};
struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::array<std::uint32_t, 4> alignments = {256, 256, 256, 256};
};

namespace {

struct Counters {
  std::atomic<std::int64_t> handles{0}, descriptors{0}, choices{0}, products{0}, in_tf32{0};
};
Counters counters;
thread_local std::string broken_rule;

struct NoAlgorithm {};

/// Runs `call` and converts its exceptions to statuses, as a C library does.
template <class Call>
cublasStatus_t status_of(const Call& call) {
  try {
    call();
    return CUBLAS_STATUS_SUCCESS;
  } catch (const ValueError& error) {
    broken_rule = error.what();
    return CUBLAS_STATUS_INVALID_VALUE;
  } catch (const NoAlgorithm&) {
    broken_rule = "no algorithm has the epilogue";
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

void demand(bool kept, const std::string& rule) {
  if (!kept) throw ValueError(rule);
}

/// Sets an attribute of exactly its size.
template <class Value>
void assign(Value& target, const void* value, std::size_t bytes) {
  demand(bytes == sizeof(target),
         "an attribute of " + std::to_string(sizeof(target)) + " bytes is set by " + std::to_string(bytes));
  std::memcpy(&target, value, bytes);
}

std::size_t size_of(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }
const char* name_of(cudaDataType_t type) {
  return type == CUDA_R_64F ? "f64" : type == CUDA_R_32F ? "f32" : type == CUDA_R_16F ? "f16" : "bf16";
}

/// A product D = alpha op(A) op(B) + beta C + bias, as its descriptors define it.
struct Product {
  Operation operation;
  Layout a, b, c, d;

  bool in_f64() const { return operation.compute == CUBLAS_COMPUTE_64F; }
  bool has_bias() const { return operation.epilogue == CUBLASLT_EPILOGUE_BIAS; }
  bool sums_columns() const { return operation.epilogue == CUBLASLT_EPILOGUE_BGRADB; }
  /// Returns the layout of the vector that the epilogue reads or writes.
  Layout vector() const {
    return {.type = d.type, .rows = sums_columns() ? d.columns : d.rows, .columns = 1, .leading = 1};
  }
  std::uint64_t terms() const { return operation.transpose_a ? a.rows : a.columns; }

  void check() const {
    check_types();
    check_layout("A", a);
    check_layout("B", b);
    check_layout("C", c);
    check_layout("D", d);
    demand(terms() == (operation.transpose_b ? b.columns : b.rows), "op(A) and op(B) have different numbers of terms");
    demand((operation.transpose_a ? a.columns : a.rows) == d.rows, "op(A) and D have different numbers of rows");
    demand((operation.transpose_b ? b.rows : b.columns) == d.columns, "op(B) and D have different numbers of columns");
    demand(c.rows == d.rows && c.columns == d.columns, "C and D have different sizes");
    demand(a.batch == d.batch && b.batch == d.batch && c.batch == d.batch,
           "batches have different numbers of matrices");
    demand(d.batch == 1 || d.stride != 0, "all matrices of the batch are written to one place");
  }

  /// Hash of the problem; an algorithm is valid for one problem only.
  std::uint64_t fingerprint(int device) const {
    std::uint64_t hash = static_cast<std::uint64_t>(device) + 1;
    const auto add = [&](auto value) { hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15u + 1; };
    for (const std::int32_t x : {operation.transpose_a, operation.transpose_b, a.batch}) add(x);
    for (const int x : {int{operation.compute}, int{operation.scale}, static_cast<int>(operation.epilogue)}) add(x);
    for (const Layout& layout : {a, b, c, d}) {
      add(layout.type), add(layout.rows), add(layout.columns);
      add(layout.leading), add(layout.stride);
    }
    return hash;
  }

 private:
  void check_types() const {
    demand(a.type == b.type && c.type == d.type, "A and B, or C and D, are of different types");
    const bool half = a.type == CUDA_R_16F || a.type == CUDA_R_16BF;
    const bool fits = in_f64()
                          ? a.type == CUDA_R_64F && d.type == CUDA_R_64F && operation.scale == CUDA_R_64F
                          : operation.scale == CUDA_R_32F && ((a.type == CUDA_R_32F && d.type == CUDA_R_32F) ||
                                                              (half && (d.type == a.type || d.type == CUDA_R_32F)));
    demand(fits, std::string("there is no product of ") + name_of(a.type) + " that gives " + name_of(d.type) +
                     " with alpha and beta in " + name_of(operation.scale));
    demand(operation.compute != CUBLAS_COMPUTE_32F_FAST_TF32 || a.type == CUDA_R_32F, "TF32 is for operands of f32");
    demand(operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT || has_bias() || sums_columns(), "no such epilogue");
    demand(!(has_bias() || sums_columns()) || !in_f64(), "products in f64 have no epilogue");
    demand(!has_bias() || operation.bias != nullptr, "the epilogue adds a bias, and there is none");
    demand(!sums_columns() || operation.bias != nullptr, "the epilogue has no place for the gradient of a bias");
    demand(!sums_columns() || d.batch == 1, "the gradient of a bias is that of one product");
  }
  static void check_layout(const std::string& name, const Layout& layout) {
    demand(layout.rows > 0 && layout.columns > 0, name + " is empty");
    demand(layout.leading >= static_cast<std::int64_t>(layout.rows),
           "the leading dimension of " + name + ", " + std::to_string(layout.leading) + ", is less than its " +
               std::to_string(layout.rows) + " rows");
    demand(layout.batch > 0 && layout.batch <= 65535, name + " has a batch of " + std::to_string(layout.batch));
  }
};

/// The content of cublasLtMatmulAlgo_t.
struct Algorithm {
  std::uint64_t fingerprint, workspace;
  std::array<std::uint32_t, 4> alignments;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// Returns the bytes from an address to the end of its pool block, as requested. Returns none if no pool of the device
/// owns the address.
std::optional<std::size_t> bytes_of_block_from(const void* address) {
  const CachingAllocator* pool = owner_of(DeviceType::cuda, address);
  if (!pool) return std::nullopt;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const BlockSnapshot& block : pool->snapshot())
    if (block.is_held() && at >= block.address && at < block.address + block.requested)
      return block.address + block.requested - at;
  return 0;
}

/// Checks that a matrix and its batch repeats lie in device memory and in one block of the pool. A leading dimension
/// that is too long leaves the block, and the check detects it.
void check_memory(const std::string& name, int device, const void* address, const Layout& layout,
                  std::uint32_t alignment) {
  demand(alignment_of(address) >= std::max<std::uint32_t>(alignment, static_cast<std::uint32_t>(size_of(layout.type))),
         name + " is aligned to " + std::to_string(alignment_of(address)) + " bytes, the algorithm is for " +
             std::to_string(alignment));
  const std::int64_t last = static_cast<std::int64_t>(layout.columns - 1) * layout.leading +
                            static_cast<std::int64_t>(layout.rows - 1),
                     repeats = (layout.batch - 1) * layout.stride;
  const auto at = [&](std::int64_t element) {
    return static_cast<const char*>(address) + element * static_cast<std::int64_t>(size_of(layout.type));
  };
  for (const std::int64_t element : {std::int64_t{0}, last, repeats, repeats + last})
    demand(emulation::device(device).owns(at(element)),
           name + " is not memory of cuda:" + std::to_string(device) + " from its first to its last element");
  const auto reach = static_cast<std::size_t>(std::max<std::int64_t>(0, repeats) + last + 1) * size_of(layout.type);
  if (const std::optional<std::size_t> there = bytes_of_block_from(address))
    demand(reach <= *there, name + " is " + std::to_string(layout.columns) + " columns of " +
                                std::to_string(layout.rows) + " at a leading dimension of " +
                                std::to_string(layout.leading) + ", which reach over " + std::to_string(reach) +
                                " bytes, and its block has " + std::to_string(*there));
}

/// The product of D, transposed: row-major C^T = op(B)^T op(A)^T.
kernels::Gemm transposed(const Product& product, double alpha, double beta) {
  const auto dtype_of = [](cudaDataType_t type) {
    return type == CUDA_R_64F   ? DType::f64
           : type == CUDA_R_32F ? DType::f32
           : type == CUDA_R_16F ? DType::f16
                                : DType::bf16;
  };
  const auto& [operation, a, b, c, d] = product;
  return {.m = static_cast<std::int64_t>(d.columns),
          .n = static_cast<std::int64_t>(d.rows),
          .k = static_cast<std::int64_t>(product.terms()),
          .transpose_a = operation.transpose_b != CUBLAS_OP_N,
          .transpose_b = operation.transpose_a != CUBLAS_OP_N,
          .lda = b.leading,
          .ldb = a.leading,
          .ldc = d.leading,
          .batch = d.batch,
          .stride_a = b.stride,
          .stride_b = a.stride,
          .stride_c = d.stride,
          .alpha = alpha,
          .beta = beta,
          .dtype = dtype_of(a.type),
          .f32_out = d.type == CUDA_R_32F,
          .bias = product.has_bias() ? operation.bias : nullptr,
          .row_sums = product.sums_columns() ? const_cast<void*>(operation.bias) : nullptr};
}

/// Multiplies on the CPU. Overwrites the workspace, as an algorithm may.
void multiply(const kernels::Gemm& g, const void* a, const void* b, void* c, void* workspace,
              std::size_t workspace_bytes) {
  if (workspace_bytes > 0) std::memset(workspace, 0xff, workspace_bytes);
  kernels::gemm_native(g, a, b, c);
  if (!g.row_sums) return;
  View terms{const_cast<void*>(a), g.dtype, 2, {g.k, g.m}, {g.lda, 1}};  // op(A)^T
  if (!g.transpose_a) std::swap(terms.strides[0], terms.strides[1]);
  kernels::on_cpu::reduce({}, kernels::ReduceOp::sum, {g.row_sums, g.out_dtype(), 2, {1, g.m}, {0, 1}}, terms);
}

}  // namespace

Calls calls() {
  return {counters.handles, counters.descriptors, counters.choices, counters.products, counters.in_tf32};
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new Context{current_device};
  ++counters.handles;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_INVALID_VALUE) return "CUBLAS_STATUS_INVALID_VALUE";
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : broken_rule.c_str();
}

namespace {

template <class Descriptor>
cublasStatus_t create(Descriptor** descriptor, const Descriptor& value) {
  *descriptor = new Descriptor(value);
  ++counters.descriptors;
  return CUBLAS_STATUS_SUCCESS;
}
template <class Descriptor>
cublasStatus_t destroy(Descriptor* descriptor) {
  if (descriptor) --counters.descriptors;
  delete descriptor;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(operation, {.compute = compute, .scale = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) { return destroy(operation); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  return status_of([&] {
    switch (attribute) {
      case CUBLASLT_MATMUL_DESC_TRANSA: return assign(operation->transpose_a, value, bytes);
      case CUBLASLT_MATMUL_DESC_TRANSB: return assign(operation->transpose_b, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(operation->epilogue, value, bytes);
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(operation->bias, value, bytes);
    }
    demand(false, "no such attribute of an operation");
  });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  return create(layout, {.type = type, .rows = rows, .columns = columns, .leading = leading});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  return status_of([&] {
    switch (attribute) {
      case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return assign(layout->batch, value, bytes);
      case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return assign(layout->stride, value, bytes);
    }
    demand(false, "no such attribute of a layout");
  });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  return status_of([&] {
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(preference->workspace, value, bytes);
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return assign(preference->reductions, value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(preference->alignments[0], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(preference->alignments[1], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(preference->alignments[2], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(preference->alignments[3], value, bytes);
    }
    demand(false, "no such attribute of a preference");
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = 0;
  return status_of([&] {
    demand(wanted > 0, "no algorithm is wanted");
    const Product product{*operation, *a, *b, *c, *d};
    product.check();
    if (product.sums_columns()) {
      const bool aligned = std::ranges::all_of(preference->alignments, [](std::uint32_t bytes) { return bytes >= 16; });
      if (!aligned || d->rows * size_of(d->type) % 16 != 0) throw NoAlgorithm();
    }
    if (product.has_bias() && preference->alignments[3] < 4) throw NoAlgorithm();
    ++counters.choices;
    Algorithm chosen{
        .fingerprint = product.fingerprint(handle->device), .workspace = 0, .alignments = preference->alignments};
    for (std::uint32_t& alignment : chosen.alignments) alignment = std::min(alignment, 16u);
    const std::uint64_t parts = std::min<std::uint64_t>(4, product.terms()),
                        sums = parts * d->rows * d->columns * (product.in_f64() ? 8 : 4);
    if (parts > 1 && sums <= preference->workspace) chosen.workspace = sums;
    demand(chosen.workspace == 0 || size_of(d->type) > 2 ||
               !(preference->reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE),
           std::string("parts of the product may be rounded to ") + name_of(d->type));
    results[0] = {};
    results[0].workspaceSize = chosen.workspace;
    std::memcpy(&results[0].algo, &chosen, sizeof(chosen));
    *count = 1;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b, const void* beta,
                              const void* c, cublasLtMatrixLayout_t of_c, void* d, cublasLtMatrixLayout_t of_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
  return status_of([&] {
    const Product product{*operation, *of_a, *of_b, *of_c, *of_d};
    product.check();
    Algorithm how;
    std::memcpy(&how, algorithm, sizeof(how));
    demand(handle->device == current_device, "the handle is of another device than the one that was set");
    demand(how.fingerprint == product.fingerprint(handle->device), "the algorithm is for another problem");
    check_memory("A", handle->device, a, *of_a, how.alignments[0]);
    check_memory("B", handle->device, b, *of_b, how.alignments[1]);
    check_memory("C", handle->device, c, *of_c, how.alignments[2]);
    check_memory("D", handle->device, d, *of_d, how.alignments[3]);
    if (product.has_bias() || product.sums_columns())
      check_memory("the bias", handle->device, operation->bias, product.vector(), how.alignments[3]);
    demand(workspace_bytes >= how.workspace, "the algorithm needs a workspace of " + std::to_string(how.workspace) +
                                                 " bytes, it has " + std::to_string(workspace_bytes));
    if (workspace_bytes > 0) {
      demand(alignment_of(workspace) == 256, "the workspace is not aligned to 256 bytes");
      CachingAllocator& pool =
          allocator_for(poolgrad::Device{DeviceType::cuda, static_cast<std::uint8_t>(handle->device)});
      demand(pool.usable_size(workspace) >= workspace_bytes, "the workspace has fewer bytes than are claimed");
    }
    demand(c == d, "the emulated library adds to C in its place");
    ++counters.products;
    counters.in_tf32 += operation->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    emulation::Device& device = emulation::device(handle->device);
    device.take_failure();
    const auto number = [&](const void* of) {
      return product.in_f64() ? *static_cast<const double*>(of) : *static_cast<const float*>(of);
    };
    device.enqueue(
        "gemm", reinterpret_cast<std::uint64_t>(stream),
        [=, g = transposed(product, number(alpha), number(beta))] { multiply(g, b, a, d, workspace, how.workspace); });
  });
}

}  // namespace poolgrad::emulation::cublaslt
