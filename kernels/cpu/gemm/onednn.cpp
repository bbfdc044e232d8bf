// Matrix products by oneDNN's matmul primitive, with scratch memory from the pool. oneDNN keeps compiled primitives in
// its own cache.
#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>

#include "kernels/cpu/gemm/backends.h"
#include "kernels/cpu/instruction_sets.h"
#include "kernels/cpu/workspace.h"
#include "kernels/parallel.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace poolgrad::kernels {
namespace {

using dnnl::memory;

const dnnl::engine& engine() {
  static const dnnl::engine cpu_engine(dnnl::engine::kind::cpu, 0);
  return cpu_engine;
}

/// A matrix of the batch, `rows` by `columns` after transposition; a batch stride of 0 broadcasts. Empty if oneDNN
/// cannot describe it: overlapping matrices. A single matrix ends where its rows end: with a larger stride oneDNN 2.6.3
/// takes another implementation, whose scratch holds all of C twice in f32.
memory::desc describe(const Gemm& g, DType dtype, std::int64_t rows, std::int64_t columns, bool transposed,
                      std::int64_t leading, std::int64_t batch_stride) {
  const auto type = dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const bool repeats = g.batch == 1 || batch_stride == 0;
  const std::int64_t stride = repeats ? (transposed ? columns : rows) * leading : batch_stride;
  return {{repeats ? 1 : g.batch, rows, columns},
          type,
          transposed ? memory::dims{stride, 1, leading} : memory::dims{stride, leading, 1},
          /*allow_empty=*/true};
}

/// The operands of a product, and its result.
struct Matrices {
  memory::desc a, b, c;

  explicit Matrices(const Gemm& g)
      : a(describe(g, g.dtype, g.m, g.k, g.transpose_a, g.lda, g.stride_a)),
        b(describe(g, g.dtype, g.k, g.n, g.transpose_b, g.ldb, g.stride_b)),
        c(describe(g, g.out_dtype(), g.m, g.n, false, g.ldc, g.stride_c)) {}
};

memory wrap(const memory::desc& description, const void* data) {
  return memory(description, engine(), const_cast<void*>(data));
}

/// POOLGRAD_ISA limits oneDNN's instruction set, too.
dnnl::cpu_isa best_isa() {
  const std::string_view forced = forced_instruction_set();
  if (forced == "avx2") dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
  if (forced == "avx512") dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core);
  if (forced == "avx512_bf16") dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
  return dnnl::get_effective_cpu_isa();
}

/// The primitive of a product, and its operands.
struct Product : Matrices {
  memory::desc bias;
  dnnl::matmul::primitive_desc primitive;

  explicit Product(const Gemm& g) : Matrices(g), bias({1, 1, g.n}, c.data_type(), memory::dims{g.n, g.n, 1}) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (g.alpha != 1.0) attributes.set_output_scales(0, {static_cast<float>(g.alpha)});
    if (g.beta != 0.0) {
      dnnl::post_ops add_c;
      add_c.append_sum(static_cast<float>(g.beta));
      attributes.set_post_ops(add_c);
    }
    const dnnl::matmul::desc operation = g.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    primitive = {operation, attributes, engine()};
  }

  std::int64_t scratch() const {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(primitive.scratchpad_desc().get_size()));
  }
};

/// Sets oneDNN's number of threads to that of the kernels during its lifetime.
class ThreadsOfKernels {
 public:
#if defined(_OPENMP)
  ThreadsOfKernels() : before_(omp_get_max_threads()) { omp_set_num_threads(num_threads()); }
  ~ThreadsOfKernels() { omp_set_num_threads(before_); }
#else
  ThreadsOfKernels() : before_(0) {}
#endif
  ThreadsOfKernels(const ThreadsOfKernels&) = delete;
  ThreadsOfKernels& operator=(const ThreadsOfKernels&) = delete;

 private:
  [[maybe_unused]] const int before_;
};

}  // namespace

bool onednn_takes(const Gemm& g) {
  static const bool has_bf16 = best_isa() >= dnnl::cpu_isa::avx512_core_bf16;
  const bool scales_bias = g.bias && g.alpha != 1.0;  // oneDNN would scale the bias, too
  const bool repeats_both = g.batch > 1 && g.stride_a == 0 && g.stride_b == 0;
  const bool has_dtype = g.dtype == DType::f32 || (g.dtype == DType::bf16 && has_bf16);
  if (!has_dtype || g.k == 0 || g.alpha == 0 || scales_bias || repeats_both) return false;
  const Matrices matrices(g);
  return !matrices.a.is_zero() && !matrices.b.is_zero() && !matrices.c.is_zero();
}

std::int64_t gemm_onednn_scratch(const Gemm& g) {
  const ThreadsOfKernels threads;
  return Product(g).scratch();
}

void gemm_onednn(const Gemm& g, const void* a, const void* b, void* c) {
  const ThreadsOfKernels threads;
  const Product plan(g);
  const Workspace<char> scratch("gemm", plan.scratch());
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, wrap(plan.a, a)},
      {DNNL_ARG_WEIGHTS, wrap(plan.b, b)},
      {DNNL_ARG_DST, wrap(plan.c, c)},
      {DNNL_ARG_SCRATCHPAD, wrap(plan.primitive.scratchpad_desc(), scratch.data())}};
  if (g.bias) arguments.emplace(DNNL_ARG_BIAS, wrap(plan.bias, g.bias));
  dnnl::stream stream(engine());
  dnnl::matmul(plan.primitive).execute(stream, arguments);
  stream.wait();
}

std::string_view onednn_version() {
  static const std::string version = [] {
    const dnnl_version_t* v = dnnl_version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
  }();
  return version;
}

}  // namespace poolgrad::kernels
