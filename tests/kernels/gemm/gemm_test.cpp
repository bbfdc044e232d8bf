// Every back end, compared with the definition in f64.
#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "kernels/cpu/kernels.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {
namespace {

/// Selects a back end until the end of the scope.
struct Backend {
  explicit Backend(const std::string& name) { set_gemm_backend(name); }
  ~Backend() { set_gemm_backend("auto"); }
};

bool has_onednn() {
  try {
    set_gemm_backend("onednn");
  } catch (const ValueError&) {
    return false;
  }
  set_gemm_backend("auto");
  return true;
}

std::vector<std::string> backends() {
  std::vector<std::string> names = {"auto", "poolgrad", "eigen"};
  if (has_onednn()) names.push_back("onednn");
  return names;
}

template <class S>
using ComputeOf = std::conditional_t<std::is_same_v<S, double>, double, float>;
template <class S>
double as_double(S x) {
  return static_cast<double>(static_cast<ComputeOf<S>>(x));
}

/// Operands of type S and a result of type C.
template <class S, class C = S>
struct Case {
  static constexpr double canary = -3.0;
  Gemm shape;
  std::vector<S> a, b;
  std::vector<C> c, bias;

  /// Operands of `shape`, each row `gap` elements longer than necessary. C is NaN unless beta reads it.
  Case(Gemm g, std::int64_t gap, bool with_bias, unsigned seed = 1) : shape(g) {
    shape.dtype = dtype_of<S>;
    shape.f32_out = !std::is_same_v<S, C>;
    shape.lda = (g.transpose_a ? g.m : g.k) + gap;
    shape.ldb = (g.transpose_b ? g.k : g.n) + gap;
    shape.ldc = g.n + gap;
    const std::int64_t size_a = (g.transpose_a ? g.k : g.m) * shape.lda,
                       size_b = (g.transpose_b ? g.n : g.k) * shape.ldb;
    if (g.batch > 1) {
      shape.stride_a = g.stride_a < 0 ? 0 : size_a;  // negative in a test case: repeated
      shape.stride_b = g.stride_b < 0 ? 0 : size_b;
      shape.stride_c = g.m * shape.ldc;
    }
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&]<class T>(std::vector<T>& x, std::int64_t count) {
      x.resize(static_cast<std::size_t>(count));
      for (T& value : x) value = T(normal(random));
    };
    fill(a, g.batch * size_a);
    fill(b, g.batch * size_b);
    fill(c, g.batch * g.m * shape.ldc);
    fill(bias, with_bias ? g.n : 0);
    for (std::size_t i = 0; i < c.size(); ++i) {
      if (static_cast<std::int64_t>(i) % shape.ldc >= g.n)
        c[i] = C(static_cast<float>(canary));
      else if (g.beta == 0.0)
        c[i] = C(std::numeric_limits<float>::quiet_NaN());
    }
    if (with_bias) shape.bias = bias.data();
  }

  void run() { gemm({}, shape, a.data(), b.data(), c.data()); }

  /// Runs the product and compares: |error| <= tolerance * sum of |terms|, plus one rounding of the result.
  void expect_definition(double tolerance, double rounding) {
    const std::vector<C> before = c;
    run();
    const Gemm& g = shape;
    for (std::int64_t i = 0; i < g.batch; ++i) {
      for (std::int64_t r = 0; r < g.m; ++r) {
        for (std::int64_t s = 0; s < g.ldc; ++s) {
          const auto at = static_cast<std::size_t>(i * g.stride_c + r * g.ldc + s);
          if (s >= g.n) {
            ASSERT_EQ(as_double(c[at]), canary) << "wrote past a row";
            continue;
          }
          double sum = 0, magnitude = 0;
          for (std::int64_t p = 0; p < g.k; ++p) {
            const double x = as_double(
                a[static_cast<std::size_t>(i * g.stride_a + (g.transpose_a ? p * g.lda + r : r * g.lda + p))]);
            const double y = as_double(
                b[static_cast<std::size_t>(i * g.stride_b + (g.transpose_b ? s * g.ldb + p : p * g.ldb + s))]);
            sum += x * y;
            magnitude += std::abs(x * y);
          }
          double expected = g.alpha * sum;
          if (g.beta != 0.0) expected += g.beta * as_double(before[at]);
          if (g.bias) expected += as_double(bias[static_cast<std::size_t>(s)]);
          const double bound =
              tolerance * (std::abs(g.alpha) * magnitude + std::abs(expected) + 1e-30) + rounding * std::abs(expected);
          ASSERT_LE(std::abs(as_double(c[at]) - expected), bound)
              << "batch " << i << " (" << r << ", " << s << "): " << as_double(c[at]) << " instead of " << expected;
        }
      }
    }
  }
};

Gemm product(std::int64_t m, std::int64_t n, std::int64_t k, bool ta = false, bool tb = false) {
  Gemm g;
  g.m = m, g.n = n, g.k = k, g.transpose_a = ta, g.transpose_b = tb;
  return g;
}

constexpr double f32_error = 4e-6, f64_error = 1e-14;

TEST(Gemm, MultipliesEveryLayoutOnEveryBackend) {
  const std::int64_t sizes[][3] = {{1, 1, 1},     {1, 40, 33}, {40, 1, 33},    {14, 32, 16}, {15, 33, 17},
                                   {28, 64, 128}, {61, 65, 7}, {100, 48, 400}, {3, 130, 1},  {17, 1100, 9}};
  for (const std::string& name : backends()) {
    const Backend backend(name);
    for (const auto& [m, n, k] : sizes) {
      for (int layout = 0; layout < 4; ++layout) {
        SCOPED_TRACE(testing::Message() << name << " m " << m << " n " << n << " k " << k << " layout " << layout);
        const Gemm g = product(m, n, k, layout & 1, layout & 2);
        Case<float>(g, 0, false).expect_definition(f32_error, 0);
        Case<float>(g, 5, true).expect_definition(f32_error, 0);
        Case<double>(g, 3, true).expect_definition(f64_error, 0);
      }
    }
  }
}

TEST(Gemm, OwnKernelSupportsEveryNumberOfRows) {
  const Backend backend("poolgrad");
  for (std::int64_t m = 1; m <= 45; ++m) {  // remainders after whole register blocks
    SCOPED_TRACE(m);
    Case<float>(product(m, 33, 9), 0, false).expect_definition(f32_error, 0);
    Case<double>(product(m, 33, 9), 2, true).expect_definition(f64_error, 0);
  }
}

TEST(Gemm, HalfTypesAccumulateInFloatAndRoundOnce) {
  for (const std::string& name : backends()) {
    const Backend backend(name);
    for (std::int64_t k : {5, 384, 385, 1000}) {
      for (int layout = 0; layout < 4; ++layout) {
        SCOPED_TRACE(testing::Message() << name << " k " << k << " layout " << layout);
        const Gemm g = product(30, 50, k, layout & 1, layout & 2);
        Case<Half>(g, 2, true).expect_definition(f32_error, 1.0 / 2048);
        Case<BFloat16>(g, 2, true).expect_definition(f32_error, 1.0 / 256);
      }
    }
  }
}

TEST(Gemm, HalfTypesMayAccumulateIntoFloat) {
  for (const std::string& name : backends()) {
    const Backend backend(name);
    for (std::int64_t k : {0, 5, 384, 1000}) {
      for (int layout = 0; layout < 4; ++layout) {
        SCOPED_TRACE(testing::Message() << name << " k " << k << " layout " << layout);
        Gemm g = product(30, 50, k, layout & 1, layout & 2);
        Case<Half, float>(g, 2, true).expect_definition(f32_error, 0);
        Case<BFloat16, float>(g, 2, true).expect_definition(f32_error, 0);
        g.beta = 1.0;
        g.batch = 3;
        Case<Half, float>(g, 2, false).expect_definition(f32_error, 0);
        Case<BFloat16, float>(g, 2, false).expect_definition(f32_error, 0);
      }
    }
  }
}

TEST(Gemm, ScalesTheProductByAlphaAndCByBeta) {
  for (const std::string& name : backends()) {
    SCOPED_TRACE(name);
    const Backend backend(name);
    Gemm g = product(29, 37, 500, false, true);
    g.alpha = -0.5;
    g.beta = 1.0;
    Case<float>(g, 1, true).expect_definition(f32_error, 0);
    g.beta = 0.25;
    Case<float>(g, 1, false).expect_definition(f32_error, 0);
    Case<double>(g, 1, true).expect_definition(f64_error, 0);
    Case<BFloat16>(g, 1, false).expect_definition(f32_error, 1.0 / 256);
  }
}

TEST(Gemm, GivesZeroForAlphaAndBetaZero) {
  for (const std::string& name : backends()) {
    SCOPED_TRACE(name);
    const Backend backend(name);
    Gemm g = product(4, 16, 1, false, false);
    g.alpha = g.beta = 0.0;
    Case<float>(g, 1, false).expect_definition(f32_error, 0);
    g.dtype = DType::bf16;
    g.f32_out = true;
    g.lda = 1, g.ldb = g.ldc = 16;
    const std::vector<BFloat16> a(4, BFloat16(1.0f)), b(16, BFloat16(1.0f));
    std::vector<float> c(4 * 16, NAN);
    gemm({}, g, a.data(), b.data(), c.data());
    EXPECT_EQ(c, std::vector<float>(4 * 16, 0.0f)) << "C is not read";
  }
}

TEST(Gemm, BroadcastsBatchOperandsOfStrideZero) {
  for (const std::string& name : backends()) {
    const Backend backend(name);
    for (const auto& [repeat_a, repeat_b] : {std::pair{0, 0}, {-1, 0}, {0, -1}, {-1, -1}}) {
      SCOPED_TRACE(testing::Message() << name << " repeat a " << repeat_a << " b " << repeat_b);
      Gemm g = product(20, 33, 18);
      g.batch = 7;
      g.stride_a = repeat_a;
      g.stride_b = repeat_b;
      Case<float>(g, 0, true).expect_definition(f32_error, 0);
      Case<double>(g, 2, false).expect_definition(f64_error, 0);
      Case<BFloat16>(g, 0, false).expect_definition(f32_error, 1.0 / 256);
      g.transpose_a = true;
      Case<float>(g, 0, false).expect_definition(f32_error, 0);
    }
  }
}

/// Windows over a sequence overlap in this way.
TEST(Gemm, AllowsOverlappingBatchesOfAnOperand) {
  for (const std::string& name : backends()) {
    const Backend backend(name);
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(testing::Message() << name << " transposed " << transposed);
      Gemm g = product(20, 33, 18, transposed, transposed);
      g.batch = 7;
      const auto check = [&]<class S>(S, double tolerance, double rounding) {
        Case<S> left(g, 2, false), right(g, 2, false);
        left.shape.stride_a = left.shape.lda;
        left.expect_definition(tolerance, rounding);
        right.shape.stride_b = 3 * right.shape.ldb;
        right.expect_definition(tolerance, rounding);
      };
      check(float{}, f32_error, 0);
      check(double{}, f64_error, 0);
      check(BFloat16{}, f32_error, 1.0 / 256);
    }
  }
}

TEST(Gemm, GivesBetaTimesCPlusBiasWithoutTerms) {
  for (const std::string& name : backends()) {
    SCOPED_TRACE(name);
    const Backend backend(name);
    Gemm g = product(5, 40, 0);
    Case<float>(g, 1, false).expect_definition(0, 0);
    g.beta = 2.0;
    Case<float>(g, 1, true).expect_definition(f32_error, 0);
    Case<Half>(g, 1, true).expect_definition(f32_error, 1.0 / 2048);
    Case<float>(product(0, 5, 3), 0, false).run();
    Case<float>(product(5, 0, 3), 0, false).run();
  }
}

/// Sets the number of threads until the end of the scope.
struct Threads {
  int before = num_threads();
  explicit Threads(int threads) { set_num_threads(threads); }
  ~Threads() { set_num_threads(before); }
};

TEST(Gemm, OwnKernelIsBitEqualForEveryNumberOfThreads) {
  const Backend backend("poolgrad");
  for (const Gemm& shape : {product(300, 200, 700, false, true), product(130, 640, 900, true, false)}) {
    Case<float> reference(shape, 0, true);
    {
      const Threads scope(1);
      reference.run();
    }
    for (int threads : {2, 2, 3, 8}) {
      const Threads scope(threads);
      Case<float> again(shape, 0, true);
      again.run();
      EXPECT_EQ(0, std::memcmp(again.c.data(), reference.c.data(), again.c.size() * sizeof(float))) << threads;
    }
  }
}

TEST(Gemm, OwnKernelGivesARowTheSameBitsInEveryProduct) {
  const Backend backend("poolgrad");
  Case<float> whole(product(100, 70, 500), 0, false);
  whole.run();
  for (std::int64_t row : {0, 13, 14, 99}) {
    std::vector<float> alone(70);
    Gemm g = whole.shape;
    g.m = 1;
    gemm({}, g, whole.a.data() + row * g.lda, whole.b.data(), alone.data());
    EXPECT_EQ(0, std::memcmp(alone.data(), whole.c.data() + row * g.ldc, alone.size() * sizeof(float))) << row;
  }
}

TEST(Gemm, PropagatesNaNAndInfinity) {
  for (const std::string& name : backends()) {
    const Backend backend(name);
    Case<float> x(product(20, 40, 30), 0, false);
    x.a[0] = std::numeric_limits<float>::quiet_NaN();
    x.a[30] = std::numeric_limits<float>::infinity();
    x.run();
    for (std::size_t j = 0; j < 40; ++j) {
      EXPECT_TRUE(std::isnan(x.c[j])) << name;
      EXPECT_TRUE(std::isinf(x.c[40 + j])) << name;
      EXPECT_TRUE(std::isfinite(x.c[80 + j])) << name;
    }
  }
}

TEST(Gemm, NamesItsBackend) {
  const Backend backend("eigen");
  EXPECT_EQ(gemm_backend().substr(0, 6), "Eigen ");
  set_gemm_backend("poolgrad");
  EXPECT_EQ(gemm_backend(), "poolgrad");
}

TEST(Gemm, RejectsUnknownBackendsAndDtypes) {
  try {
    set_gemm_backend("mkl");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "[gemm] unknown back end 'mkl': POOLGRAD_GEMM is auto, poolgrad, eigen or onednn");
  }
  Gemm g = product(1, 1, 1);
  g.dtype = DType::i64;
  EXPECT_THROW(gemm({}, g, nullptr, nullptr, nullptr), DTypeError);
}

TEST(Gemm, OnlyAdvancesTheClockOnASimulatedDevice) {
  const Device sim{DeviceType::sim, 0};
  const auto before = device_clock(sim);
  Gemm g = product(1000, 1000, 1000);
  g.lda = g.ldb = g.ldc = 1000;
  gemm({sim}, g, nullptr, nullptr, nullptr);
  EXPECT_GT(device_clock(sim), before);
}

TEST(Gemm, RequestsTheSameScratchFromASimulatedCpu) {
  const Device sim{DeviceType::sim, 78};
  configure_simulated_device(sim.index, std::size_t{4} << 30, "cpu");
  const auto asked = [](Device device, const auto& call) {
    CachingAllocator& pool = allocator_for(device);
    const auto bytes = [&] {
      const Statistics s = pool.statistics();
      return std::pair(s.requests, s.category_bytes[static_cast<std::size_t>(Category::workspace)].allocated);
    };
    const auto before = bytes();
    call();
    return std::pair(bytes().first - before.first, bytes().second - before.second);
  };
  for (const std::string& name : backends())
    for (const int number : {1, 2, 7}) {
      const Backend backend(name);
      const Threads threads(number);
      for (auto [m, n, k] : {std::array{1, 1, 1}, {5, 300, 70}, {100, 130, 800}, {140, 1100, 3}, {3, 4, 0}})
        for (const std::int64_t batch : {1, 3})
          for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
            Gemm g = product(m, n, k);
            g.dtype = dtype;
            g.lda = k + 1, g.ldb = g.ldc = n;
            g.batch = batch, g.stride_a = m * g.lda, g.stride_c = m * g.ldc;
            g.f32_out = batch == 3;
            const std::vector<double> a(static_cast<std::size_t>(batch * m * g.lda)),
                b(static_cast<std::size_t>(k * n + 1));
            std::vector<double> c(static_cast<std::size_t>(batch * m * n));
            const auto want = asked(cpu, [&] { gemm({}, g, a.data(), b.data(), c.data()); });
            EXPECT_EQ(asked(sim, [&] { gemm({sim}, g, a.data(), b.data(), c.data()); }), want)
                << name << ", " << number << " threads, " << m << " x " << n << " x " << k << ", " << batch << " of "
                << to_string(dtype);
          }
    }
}

TEST(Gemm, TakesScratchThatDoesNotGrowWithTheRows) {
  const auto scratch = [](std::int64_t rows, std::int64_t n, std::int64_t k, bool transposed) {
    Gemm g = product(rows, n, k, false, transposed);
    g.dtype = DType::bf16;
    g.lda = k, g.ldb = transposed ? k : n, g.ldc = n;
    return on_cpu::gemm_scratch(g);
  };
  for (const std::string& name : backends()) {
    const Backend backend(name);
    for (const bool transposed : {false, true})
      for (auto [n, k] : {std::pair{512, 64}, {64, 512}})
        EXPECT_EQ(scratch(65536, n, k, transposed), scratch(4096, n, k, transposed))
            << name << ", " << k << " to " << n << (transposed ? ", transposed" : "");
  }
}

#if !defined(POOLGRAD_STD_THREADS)
/// Ends the process with the number of threads that oneDNN started for a large product.
[[noreturn]] void multiply_alone() {
  set_num_threads(1);
  set_gemm_backend("onednn");
  constexpr std::int64_t n = 512;
  const std::vector<float> a(n * n), b(n * n);
  std::vector<float> c(n * n);
  gemm(Stream{cpu}, product(n, n, n), a.data(), b.data(), c.data());
  const std::filesystem::directory_iterator threads("/proc/self/task");
  std::_Exit(static_cast<int>(std::distance(begin(threads), end(threads))) - 1);
}

TEST(GemmDeathTest, OneDnnUsesTheThreadLimitOfKernels) {
  if (!has_onednn()) GTEST_SKIP() << "this build has no oneDNN";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process without other threads
  EXPECT_EXIT(multiply_alone(), ::testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace poolgrad::kernels
