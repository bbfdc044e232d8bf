// Arrays for kernel tests: any dtype and layout, with canaries around and between the elements.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/parallel.h"
#include "kernels/view.h"
#include "tests/kernels/tolerance.h"
#include "tests/test_seed.h"

namespace poolgrad::kernels::testing {

using Shape = std::vector<std::int64_t>;

inline constexpr DType floats[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
inline constexpr DType all_dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                       DType::i64, DType::i32, DType::u8,  DType::boolean};
inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// contiguous: row-major; transposed: column-major; spread: row-major with a gap after every element; reversed:
/// negative strides; repeated: stride 0 in the first dimension (for inputs).
enum class Layout { contiguous, transposed, spread, reversed, repeated };
inline constexpr Layout output_layouts[] = {Layout::contiguous, Layout::transposed, Layout::spread, Layout::reversed};
inline constexpr Layout input_layouts[] = {Layout::contiguous, Layout::transposed, Layout::spread, Layout::reversed,
                                           Layout::repeated};

class TestArray {
 public:
  /// Elements start poisoned: NaN, or all bits set.
  TestArray(DType dtype, Shape shape, Layout layout = Layout::contiguous) {
    view_.dtype = dtype;
    view_.rank = static_cast<int>(shape.size());
    std::int64_t step = layout == Layout::spread ? 2 : 1;
    for (int i = 0; i < view_.rank; ++i) {
      const int d = layout == Layout::transposed ? i : view_.rank - 1 - i;
      view_.shape[d] = shape[static_cast<std::size_t>(d)];
      view_.strides[d] = layout == Layout::reversed ? -step : step;
      step *= std::max<std::int64_t>(1, view_.shape[d]);
    }
    const std::int64_t first = layout == Layout::reversed ? step - 1 : 0;
    if (layout == Layout::repeated && view_.rank) view_.strides[0] = 0;
    bytes_.assign(static_cast<std::size_t>(step + 2 * margin) * size_of(dtype), canary);
    element_.assign(bytes_.size(), 0);
    view_.data = bytes_.data() + (margin + first) * static_cast<std::int64_t>(size_of(dtype));
    dense_ = view_.contiguous();
    for (std::int64_t i = 0; i < view_.count(); ++i) {
      const std::size_t at = address(i);
      std::memset(&element_[at], 1, size_of(dtype));
      std::memset(&bytes_[at], 0xff, size_of(dtype));
    }
  }
  /// Checks that all bytes outside the elements are unchanged.
  ~TestArray() {
    const std::uint8_t *byte = bytes_.data(), *element = element_.data();  // tests are not optimized
    for (std::size_t i = 0, size = bytes_.size(); i < size; ++i) {
      if (element[i] != 0 || byte[i] == canary) continue;
      ADD_FAILURE() << "wrote outside of the array, at byte " << i << " of " << bytes_.size();
      break;
    }
  }
  TestArray(const TestArray&) = delete;
  TestArray& operator=(const TestArray&) = delete;

  const View& view() const { return view_; }
  operator View() const { return view_; }
  std::int64_t count() const { return view_.count(); }
  DType dtype() const { return view_.dtype; }

  /// Takes a row-major index.
  double operator[](std::int64_t i) const {
    const void* p = bytes_.data() + address(i);
    const auto read = [p]<class T>(T value) {
      std::memcpy(&value, p, sizeof(value));
      return value;
    };
    switch (view_.dtype) {
      case DType::f64: return read(double{});
      case DType::f32: return read(float{});
      case DType::f16: return static_cast<float>(read(Half{}));
      case DType::bf16: return static_cast<float>(read(BFloat16{}));
      case DType::i64: return static_cast<double>(read(std::int64_t{}));
      case DType::i32: return read(std::int32_t{});
      default: return read(std::uint8_t{});
    }
  }
  void set(std::int64_t i, double value) {
    void* p = bytes_.data() + address(i);
    const auto write = [p](auto x) { std::memcpy(p, &x, sizeof(x)); };
    switch (view_.dtype) {
      case DType::f64: return write(value);
      case DType::f32: return write(static_cast<float>(value));
      case DType::f16: return write(narrowed<Half>(value));
      case DType::bf16: return write(narrowed<BFloat16>(value));
      case DType::i64: return write(static_cast<std::int64_t>(value));
      case DType::i32: return write(static_cast<std::int32_t>(value));
      case DType::u8: return write(static_cast<std::uint8_t>(value));
      default: return write(static_cast<std::uint8_t>(value != 0));
    }
  }
  template <class F>
  TestArray& fill(const F& f) {
    for (std::int64_t i = 0; i < count(); ++i) set(i, f(i));
    return *this;
  }
  /// Uniform in [low, high); whole numbers for integer dtypes.
  TestArray& random(std::mt19937_64& generator, double low = -2, double high = 2) {
    std::uniform_real_distribution<double> uniform(low, high);
    return fill(
        [&](std::int64_t) { return is_floating(dtype()) ? uniform(generator) : std::floor(uniform(generator)); });
  }
  TestArray& zero() {
    return fill([](std::int64_t) { return 0.0; });
  }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  static constexpr std::int64_t margin = 64;  // elements
  static constexpr std::uint8_t canary = 0xa5;

  std::size_t address(std::int64_t i) const {
    const auto* element =
        view_.as<const std::uint8_t>() + view_.offset(i) * static_cast<std::int64_t>(size_of(dtype()));
    return static_cast<std::size_t>(element - bytes_.data());
  }

  View view_;
  bool dense_ = false;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint8_t> element_;  // 1 for each byte of an element
};

/// Every element is within its dtype's tolerance of expected(i), or infinite if that exceeds the dtype's range. i is
/// the row-major index. `absolute` is added for results that cancel.
template <class F>
void expect_elements(const TestArray& actual, const F& expected, double relative, double absolute = 0.0) {
  for (std::int64_t i = 0; i < actual.count(); ++i) {
    const double exact = expected(i);
    const double wanted = std::abs(exact) >= overflow(actual.dtype()) ? std::copysign(infinity, exact) : exact;
    if (close(actual[i], wanted, relative, absolute)) continue;
    ADD_FAILURE() << "element " << i << " of " << actual.count() << " " << to_string(actual.dtype()) << ": "
                  << actual[i] << ", expected " << wanted << "; seed " << test_seed();
    return;
  }
}
template <class F>
void expect_elements(const TestArray& actual, const F& expected) {
  expect_elements(actual, expected, tolerance(actual.dtype()));
}

/// ||actual - expected|| <= relative * ||expected||, for results that are sums. NaN never passes.
template <class F>
void expect_norm(const TestArray& actual, const F& expected, double relative) {
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < actual.count(); ++i) {
    const double wanted = expected(i);
    difference += (actual[i] - wanted) * (actual[i] - wanted);
    norm += wanted * wanted;
  }
  EXPECT_TRUE(std::sqrt(difference) <= relative * std::sqrt(norm))
      << "relative error " << std::sqrt(difference / norm) << " of " << actual.count() << " "
      << to_string(actual.dtype()) << ", allowed " << relative << "; seed " << test_seed();
}
template <class F>
void expect_norm(const TestArray& actual, const F& expected) {
  expect_norm(actual, expected, tolerance(actual.dtype()));
}

/// `run` gives the same bytes in `out` on one thread and on several.
template <class Run>
void expect_same_bits_for_any_thread_count(const TestArray& out, const Run& run) {
  const int before = num_threads();
  set_num_threads(1);
  run();
  const std::vector<std::uint8_t> expected = out.bytes();
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    run();
    EXPECT_EQ(out.bytes(), expected) << threads << " threads";
  }
  set_num_threads(before);
}

}  // namespace poolgrad::kernels::testing
