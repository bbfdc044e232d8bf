// Matrix products of the shapes of a training step, for every CPU back end: forward X W^T, gradient of the input dY W,
// gradient of the weights dY^T X. Compare `FLOPS`; run with --benchmark_repetitions=5 and read the medians.
// --device=cuda:0 measures a GPU, with one more large product as a ceiling for other kernels.
// POOLGRAD_BENCHMARK_SMALL=1: a tiny size.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "benchmarks/support.h"
#include "kernels/gemm.h"
#include "tensor/creation.h"

namespace poolgrad::kernels {
namespace {

Device device;  // --device

enum Product { forward, input_gradient, weight_gradient };

/// tokens x features in, tokens x features out.
Gemm shape_of(Product product, std::int64_t tokens, std::int64_t in, std::int64_t out) {
  Gemm g;
  switch (product) {
    case forward: g.m = tokens, g.n = out, g.k = in, g.transpose_b = true; break;
    case input_gradient: g.m = tokens, g.n = in, g.k = out; break;
    case weight_gradient: g.m = out, g.n = in, g.k = tokens, g.transpose_a = true; break;
  }
  g.lda = g.transpose_a ? g.m : g.k;
  g.ldb = g.transpose_b ? g.k : g.n;
  g.ldc = g.n;
  return g;
}

void run(benchmark::State& state, const std::string& backend, DType dtype, Product product) {
  Gemm g = shape_of(product, state.range(0), state.range(1), state.range(2));
  g.dtype = dtype;
  Tensor a = randn({g.m * g.k}, {dtype, device}), b = randn({g.k * g.n}, {dtype, device}),
         c = Tensor::empty({g.m * g.n}, {dtype, device});
  if (device.is_cpu()) set_gemm_backend(backend);
  try {
    time_calls(state, device, [&] { gemm(current_stream(device), g, a.view().data, b.view().data, c.view().data); });
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
  if (device.is_cpu()) set_gemm_backend("auto");
  state.counters["FLOPS"] =
      benchmark::Counter(2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k),
                         benchmark::Counter::kIsIterationInvariantRate);
}

bool exists(const std::string& backend) {
  try {
    set_gemm_backend(backend);
  } catch (const ValueError&) {
    return false;
  }
  set_gemm_backend("auto");
  return true;
}

void register_backend(const std::string& backend, DType dtype) {
  const std::pair<Product, const char*> products[] = {
      {forward, "forward"}, {input_gradient, "input_gradient"}, {weight_gradient, "weight_gradient"}};
  for (const auto& [product, name] : products) {
    auto* shapes = benchmark::RegisterBenchmark(
        ("Gemm/" + backend + "/" + std::string(to_string(dtype)) + "/" + name).c_str(), run, backend, dtype, product);
    shapes->ArgNames({"tokens", "in", "out"})->UseRealTime();
    if (small_sizes()) {
      shapes->Args({24, 16, 40});
      continue;
    }
    for (const auto& [tokens, in, out] : std::initializer_list<std::array<std::int64_t, 3>>{{768, 128, 384},
                                                                                            {768, 512, 128},
                                                                                            {768, 128, 65},
                                                                                            {2048, 192, 768},
                                                                                            {2048, 768, 192},
                                                                                            {4096, 256, 1024},
                                                                                            {1024, 1024, 1024}})
      shapes->Args({tokens, in, out});
    if (device.is_cuda()) shapes->Args({16384, 512, 2048})->Args({8192, 8192, 8192});  // the last is a ceiling
  }
}

}  // namespace
}  // namespace poolgrad::kernels

int main(int count, char** arguments) {
  using namespace poolgrad;
  using kernels::register_backend;
  kernels::device = take_device(count, arguments);
  if (kernels::device.is_cuda()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) register_backend("cublaslt", dtype);
  } else {
    for (const char* backend : {"poolgrad", "eigen", "onednn"})
      if (kernels::exists(backend)) register_backend(backend, DType::f32);
    register_backend("poolgrad", DType::f64);
    for (const char* backend : {"poolgrad", "onednn"})
      if (kernels::exists(backend)) register_backend(backend, DType::bf16);
  }
  return run_benchmarks(count, arguments);
}
