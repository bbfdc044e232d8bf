// cuBLASLt for the emulated device: the entry points of kernels/cuda/gemm.cu, with the names, types and rules of
// NVIDIA's cublasLt.h. The CPU's kernel multiplies, later, on the stream. A call that breaks a rule returns
// CUBLAS_STATUS_INVALID_VALUE; cublasLtGetStatusString() then names the rule:
//
//  - descriptors: known attributes of the right size; every descriptor is destroyed
//  - types: f64 products have only f64 operands and no bias; others accumulate in f32, with f32 alpha and beta
//  - epilogues: a bias per row of D, or (BGRADB) sums of op(B) over its terms per column of D. The vector is aligned as
//    declared for D. A bias needs D aligned to 4 bytes. Sums need all matrices aligned to 16 bytes, and D with a
//    multiple of 16 bytes per column. Otherwise the status is CUBLAS_STATUS_NOT_SUPPORTED
//  - layouts: leading dimensions cover a column; op(A), op(B), C and D fit; batches are equal
//  - the algorithm: chosen for this problem on this device, with the alignments and workspace that it requested
//  - addresses: device memory of one pool block from the first to the last element; an excessive leading dimension
//    leaves the block. A workspace has its declared size
//
// An algorithm overwrites the workspace if there is one. A preference must exclude that it rounds parts of the product
// to f16 or bf16. Operands of TF32 products are counted, not rounded.
#pragma once

#define POOLGRAD_HAVE_CUBLASLT

#include <cstddef>
#include <cstdint>

namespace poolgrad::emulation::cublaslt {

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_64F = 70, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasLtEpilogue_t { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_BGRADB = 512 };
enum cublasLtReductionScheme_t {
  CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
  CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
  CUBLASLT_REDUCTION_SCHEME_MASK = 7
};
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA = 3,    // int32_t
  CUBLASLT_MATMUL_DESC_TRANSB = 4,    // int32_t
  CUBLASLT_MATMUL_DESC_EPILOGUE = 7,  // uint32_t
  CUBLASLT_MATMUL_DESC_BIAS_POINTER =
      8,  // const void*, as many elements of D's type as D has rows; BGRADB: void*, columns
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,           // int32_t
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,  // int64_t, elements
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,    // uint64_t, default 0
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,  // uint32_t, default all
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,  // uint32_t, default 256
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};

struct Context;
struct Operation;
struct Layout;
struct Preference;
using cublasLtHandle_t = Context*;
using cublasLtMatmulDesc_t = Operation*;
using cublasLtMatrixLayout_t = Layout*;
using cublasLtMatmulPreference_t = Preference*;
using cudaStream_t = struct CUstream_st*;

struct cublasLtMatmulAlgo_t {
  std::uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  std::size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};

/// The device that cudaSetDevice() selected for this thread.
inline thread_local int current_device = 0;

/// Counts of all threads' calls; `handles` and `descriptors` count live objects.
struct Calls {
  std::int64_t handles, descriptors, choices, products, in_tf32;
};
Calls calls();

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle);
const char* cublasLtGetStatusName(cublasStatus_t status);
const char* cublasLtGetStatusString(cublasStatus_t status);

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes);

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* count);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b, const void* beta,
                              const void* c, cublasLtMatrixLayout_t of_c, void* d, cublasLtMatrixLayout_t of_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream);

}  // namespace poolgrad::emulation::cublaslt

namespace poolgrad::kernels {

using namespace emulation::cublaslt;
inline void use_device(int index) { current_device = index; }

}  // namespace poolgrad::kernels
#define POOLGRAD_CUBLASLT_ENTRY(name) &name
