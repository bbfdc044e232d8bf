// Matrix products by oneDNN's matmul primitive, with scratch memory from the pool.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
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

/// POOLGRAD_ISA limits oneDNN's instruction set, too.
dnnl::cpu_isa best_isa() {
  const std::string_view forced = forced_instruction_set();
  if (forced == "avx2") dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
  if (forced == "avx512") dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core);
  if (forced == "avx512_bf16") dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
  return dnnl::get_effective_cpu_isa();
}

/// A primitive and its operands, which each call points at their data.
struct Product {
  dnnl::matmul primitive;    // empty if oneDNN cannot describe an operand
  std::int64_t scratch = 0;  // bytes
  std::unordered_map<int, memory> arguments;

  explicit Product(const Gemm& g) {
    const memory::desc a = describe(g, g.dtype, g.m, g.k, g.transpose_a, g.lda, g.stride_a),
                       b = describe(g, g.dtype, g.k, g.n, g.transpose_b, g.ldb, g.stride_b),
                       c = describe(g, g.out_dtype(), g.m, g.n, false, g.ldc, g.stride_c);
    if (a.is_zero() || b.is_zero() || c.is_zero()) return;
    const memory::desc bias({1, 1, g.n}, c.data_type(), memory::dims{g.n, g.n, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (g.alpha != 1.0) attributes.set_output_scales(0, {static_cast<float>(g.alpha)});
    if (g.beta != 0.0) {
      dnnl::post_ops add_c;
      add_c.append_sum(static_cast<float>(g.beta));
      attributes.set_post_ops(add_c);
    }
    const dnnl::matmul::desc operation = g.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc chosen(operation, attributes, engine());
    primitive = dnnl::matmul(chosen);
    scratch = std::max<std::int64_t>(1, static_cast<std::int64_t>(chosen.scratchpad_desc().get_size()));
    const auto argument = [&](int name, const memory::desc& description) {
      arguments.emplace(name, memory(description, engine(), DNNL_MEMORY_NONE));
    };
    argument(DNNL_ARG_SRC, a);
    argument(DNNL_ARG_WEIGHTS, b);
    argument(DNNL_ARG_DST, c);
    argument(DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc());
    if (g.bias) argument(DNNL_ARG_BIAS, bias);
  }

  void point(int name, const void* data) { arguments.at(name).set_data_handle(const_cast<void*>(data)); }
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

/// Returns the product from a cache of the thread. oneDNN takes longer to choose a primitive than to multiply small
/// matrices. The key has all fields of `g` except addresses, and the number of threads.
Product& product_of(const Gemm& g) {
  using Key = std::array<std::int64_t, 18>;
  constexpr std::size_t most = 512;
  thread_local std::map<Key, Product> products;
  const Key key{g.m,
                g.n,
                g.k,
                g.transpose_a,
                g.transpose_b,
                g.lda,
                g.ldb,
                g.ldc,
                g.batch,
                g.stride_a,
                g.stride_b,
                g.stride_c,
                std::bit_cast<std::int64_t>(g.alpha),
                std::bit_cast<std::int64_t>(g.beta),
                static_cast<std::int64_t>(g.dtype),
                g.f32_out,
                g.bias != nullptr,
                num_threads()};
  const auto found = products.find(key);
  if (found != products.end()) return found->second;
  if (products.size() == most) products.clear();
  const ThreadsOfKernels threads;
  return products.try_emplace(key, g).first->second;
}

}  // namespace

bool onednn_takes(const Gemm& g) {
  static const bool has_bf16 = best_isa() >= dnnl::cpu_isa::avx512_core_bf16;
  const bool scales_bias = g.bias && g.alpha != 1.0;  // oneDNN would scale the bias, too
  const bool repeats_both = g.batch > 1 && g.stride_a == 0 && g.stride_b == 0;
  const bool has_dtype = g.dtype == DType::f32 || (g.dtype == DType::bf16 && has_bf16);
  if (!has_dtype || g.k == 0 || g.alpha == 0 || scales_bias || repeats_both) return false;
  return static_cast<bool>(product_of(g).primitive);
}

std::int64_t gemm_onednn_scratch(const Gemm& g) { return product_of(g).scratch; }

void gemm_onednn(const Gemm& g, const void* a, const void* b, void* c) {
  const ThreadsOfKernels threads;
  const Workspace<char> scratch("gemm", product_of(g).scratch);
  Product& product = product_of(g);  // after the allocation, during which clients of the pool may multiply
  product.point(DNNL_ARG_SRC, a);
  product.point(DNNL_ARG_WEIGHTS, b);
  product.point(DNNL_ARG_DST, c);
  product.point(DNNL_ARG_SCRATCHPAD, scratch.data());
  if (g.bias) product.point(DNNL_ARG_BIAS, g.bias);
  dnnl::stream stream(engine());
  product.primitive.execute(stream, product.arguments);
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
