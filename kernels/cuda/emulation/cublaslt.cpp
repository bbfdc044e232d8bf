#include "kernels/cuda/emulation/cublaslt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/emulation/device.h"
#include "allocator/error.h"
#include "allocator/report/snapshot.h"
#include "kernels/dtype.h"

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
  std::atomic<std::int64_t> handles{0}, descriptors{0}, choices{0}, products{0};
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
  std::uint64_t fingerprint, parts, workspace;
  std::uint32_t rounds_parts;  // to the type of D
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

template <class T>
T load(const void* data, cudaDataType_t type, std::int64_t i) {
  switch (type) {
    case CUDA_R_64F: return static_cast<T>(static_cast<const double*>(data)[i]);
    case CUDA_R_32F: return static_cast<T>(static_cast<const float*>(data)[i]);
    case CUDA_R_16F: return static_cast<T>(static_cast<float>(static_cast<const Half*>(data)[i]));
    default: return static_cast<T>(static_cast<float>(static_cast<const BFloat16*>(data)[i]));
  }
}
template <class T>
void store(void* data, cudaDataType_t type, std::int64_t i, T value) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(data)[i] = static_cast<double>(value); break;
    case CUDA_R_32F: static_cast<float*>(data)[i] = static_cast<float>(value); break;
    case CUDA_R_16F: static_cast<Half*>(data)[i] = Half(static_cast<float>(value)); break;
    default: static_cast<BFloat16*>(data)[i] = BFloat16(static_cast<float>(value));
  }
}
template <class T>
T rounded_to(cudaDataType_t type, T value) {
  double place = 0;
  store(&place, type, 0, value);
  return load<T>(&place, type, 0);
}
float rounded_to_tf32(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000u) & 0xffffe000u);
}

/// The arguments of a call, copied when it was made.
template <class T>
struct Call {
  Product product;
  Algorithm algorithm;
  T alpha, beta;
  const void *a, *b, *c;
  void *d, *workspace;

  /// Returns op(matrix) number `repeat` of the batch as out[term][row], for A and for B.
  std::vector<T> packed(const void* data, const Layout& layout, bool terms_are_rows, std::int64_t repeat) const {
    const auto rows = static_cast<std::int64_t>(layout.rows), columns = static_cast<std::int64_t>(layout.columns);
    std::vector<T> out(static_cast<std::size_t>(rows * columns));
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t i = 0; i < rows; ++i) {
        T value = load<T>(data, layout.type, repeat * layout.stride + j * layout.leading + i);
        if (product.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
          value = static_cast<T>(rounded_to_tf32(static_cast<float>(value)));
        out[static_cast<std::size_t>(terms_are_rows ? i * columns + j : j * rows + i)] = value;
      }
    return out;
  }

  void run() const {
    const Layout& to = product.d;
    const auto rows = static_cast<std::int64_t>(to.rows), columns = static_cast<std::int64_t>(to.columns);
    const auto terms = static_cast<std::int64_t>(product.terms()), parts = static_cast<std::int64_t>(algorithm.parts);
    const std::int64_t per_part = (terms + parts - 1) / parts;
    std::vector<T> own(parts > 1 ? 0 : to.rows * to.columns);
    T* const sums = parts > 1 ? static_cast<T*>(workspace) : own.data();
    for (std::int64_t repeat = 0; repeat < to.batch; ++repeat) {
      const std::vector<T> left = packed(a, product.a, product.operation.transpose_a != CUBLAS_OP_N, repeat),
                           right = packed(b, product.b, product.operation.transpose_b == CUBLAS_OP_N, repeat);
      for (std::int64_t part = 0; part < parts; ++part) {
        T* const sum = sums + part * rows * columns;
        std::fill_n(sum, rows * columns, T{});
        for (std::int64_t p = part * per_part; p < std::min(terms, (part + 1) * per_part); ++p)
          for (std::int64_t j = 0; j < columns; ++j) {
            const T factor = right[static_cast<std::size_t>(p * columns + j)];
            const T* const column = left.data() + p * rows;
            for (std::int64_t i = 0; i < rows; ++i) sum[j * rows + i] += column[i] * factor;
          }
      }
      finish(sums, parts, repeat);
      if (product.sums_columns()) sum_columns(right);
    }
  }

  void sum_columns(const std::vector<T>& right) const {
    const std::size_t columns = product.d.columns;
    for (std::size_t j = 0; j < columns; ++j) {
      T sum{};
      for (std::size_t p = 0; p < product.terms(); ++p) sum += right[p * columns + j];
      store(const_cast<void*>(product.operation.bias), product.d.type, static_cast<std::int64_t>(j), sum);
    }
  }

  void finish(const T* sums, std::int64_t parts, std::int64_t repeat) const {
    const Layout &from = product.c, &to = product.d;
    const auto rows = static_cast<std::int64_t>(to.rows), columns = static_cast<std::int64_t>(to.columns);
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t i = 0; i < rows; ++i) {
        T sum{};
        for (std::int64_t part = 0; part < parts; ++part) {
          const T value = sums[(part * columns + j) * rows + i];
          sum += parts > 1 && algorithm.rounds_parts ? rounded_to(to.type, value) : value;
        }
        sum *= alpha;
        if (beta != T{}) sum += beta * load<T>(c, from.type, repeat * from.stride + j * from.leading + i);
        if (product.has_bias()) sum += load<T>(product.operation.bias, to.type, i);
        store(d, to.type, repeat * to.stride + j * to.leading + i, sum);
      }
  }
};

}  // namespace

Calls calls() { return {counters.handles, counters.descriptors, counters.choices, counters.products}; }

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
    Algorithm chosen{.fingerprint = product.fingerprint(handle->device),
                     .parts = std::min<std::uint64_t>(4, product.terms()),
                     .workspace = 0,
                     .rounds_parts = preference->reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
                     .alignments = preference->alignments};
    for (std::uint32_t& alignment : chosen.alignments) alignment = std::min(alignment, 16u);
    const std::uint64_t sums = d->rows * d->columns * (product.in_f64() ? 8 : 4);
    if (chosen.parts * sums > preference->workspace) chosen.parts = 1;
    if (chosen.parts > 1) chosen.workspace = chosen.parts * sums;
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
    ++counters.products;
    emulation::Device& device = emulation::device(handle->device);
    device.take_failure();
    const auto queue = [&]<class T>(T) {
      device.enqueue("gemm", reinterpret_cast<std::uint64_t>(stream),
                     [call = Call<T>{product, how, *static_cast<const T*>(alpha), *static_cast<const T*>(beta), a, b, c,
                                     d, workspace}] { call.run(); });
    };
    product.in_f64() ? queue(double{}) : queue(float{});
  });
}

}  // namespace poolgrad::emulation::cublaslt
