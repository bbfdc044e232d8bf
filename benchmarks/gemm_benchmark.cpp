// Matrix products of the shapes of a training step, for every CPU back end: forward X W^T, gradient of the input dY W,
// gradient of the weights dY^T X. `FLOPS` is what to compare; run with --benchmark_repetitions=5 and read the medians.
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "benchmarks/support.h"
#include "kernels/gemm.h"

namespace poolgrad::kernels {
namespace {

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

template <class S>
std::vector<S> random_elements(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<S> x(static_cast<std::size_t>(count));
  for (S& value : x) value = S(uniform(random));
  return x;
}

template <class S>
void run(benchmark::State& state, const std::string& backend, Product product) {
  Gemm g = shape_of(product, state.range(0), state.range(1), state.range(2));
  g.dtype = dtype_of<S>;
  const auto a = random_elements<S>(g.m * g.k, 1), b = random_elements<S>(g.k * g.n, 2);
  std::vector<S> c(static_cast<std::size_t>(g.m * g.n));
  set_gemm_backend(backend);
  for (auto _ : state) gemm({}, g, a.data(), b.data(), c.data());
  set_gemm_backend("auto");
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

template <class S>
void register_backend(const std::string& backend, const std::string& dtype) {
  const std::pair<Product, const char*> products[] = {
      {forward, "forward"}, {input_gradient, "input_gradient"}, {weight_gradient, "weight_gradient"}};
  for (const auto& [product, name] : products)
    benchmark::RegisterBenchmark(("Gemm/" + backend + "/" + dtype + "/" + name).c_str(), run<S>, backend, product)
        ->ArgNames({"tokens", "in", "out"})
        ->Args({768, 128, 384})
        ->Args({768, 512, 128})
        ->Args({768, 128, 65})
        ->Args({2048, 192, 768})
        ->Args({2048, 768, 192})
        ->Args({4096, 256, 1024})
        ->Args({1024, 1024, 1024})
        ->UseRealTime();
}

}  // namespace
}  // namespace poolgrad::kernels

int main(int count, char** arguments) {
  using namespace poolgrad;
  for (const char* backend : {"poolgrad", "eigen", "onednn"})
    if (kernels::exists(backend)) kernels::register_backend<float>(backend, "f32");
  kernels::register_backend<double>("poolgrad", "f64");
  for (const char* backend : {"poolgrad", "onednn"})
    if (kernels::exists(backend)) kernels::register_backend<BFloat16>(backend, "bf16");
  return run_benchmarks(count, arguments);
}
