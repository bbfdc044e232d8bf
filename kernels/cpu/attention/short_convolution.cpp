// Causal convolutions of single channels, row by row: every row of x is read while it is in the first-level cache.
#include <algorithm>
#include <cstddef>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/reduction_plan.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/workspace.h"
#include "kernels/parallel.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using simd::Compute;
using simd::Vec;

/// Elements of scratch: the weight by taps, and the sums of its gradient in each chunk of rows.
std::int64_t elements(const View& x, const View& weight, bool sums) {
  return weight.count() * (1 + (sums ? RowChunks(Rows(x).rows).count : 0));
}

template <class S>
class ShortConvolution {
 public:
  using T = Compute<S>;

  ShortConvolution(const View& x, const View& weight, const View& before, T* scratch)
      : batch_(x.shape[0]),
        length_(x.shape[1]),
        channels_(x.shape[2]),
        taps_(weight.shape[1]),
        x_(x.as<const S>()),
        before_(before.as<const S>()),
        weight_(scratch),
        sums_(scratch + weight.count()) {
    for (std::int64_t c = 0; c < channels_; ++c)
      for (std::int64_t i = 0; i < taps_; ++i)
        scratch[i * channels_ + c] = static_cast<T>(weight.as<const S>()[c * taps_ + i]);
  }

  void forward(S* out) const {
    parallel_ranges(batch_ * length_, rows_at_a_time, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        for_inputs(row, [&](std::int64_t first, const auto& input) {
          add_products(out + row * channels_, first, taps_, input);
        });
    });
  }

  void input_gradient(const S* grad, S* dx) const {
    parallel_ranges(batch_ * length_, rows_at_a_time, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        add_products(dx + row * channels_, std::max<std::int64_t>(0, row % length_ + taps_ - length_), taps_,
                     [&](std::int64_t i) { return grad + (row + taps_ - 1 - i) * channels_; });
    });
  }

  void before_gradient(const S* grad, S* dbefore) const {
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t r = 0; r + 1 < taps_; ++r)
        add_products(dbefore + (b * (taps_ - 1) + r) * channels_, std::max<std::int64_t>(0, r + 1 - length_), r + 1,
                     [&](std::int64_t i) { return grad + (b * length_ + r - i) * channels_; });
  }

  /// Sums chunks of rows, then the chunks, in a fixed order.
  void weight_gradient(const S* grad, S* dweight) const {
    const RowChunks chunks(batch_ * length_);
    const std::int64_t size = taps_ * channels_;
    parallel_ranges(chunks.count, 1, [&](std::int64_t chunk, std::int64_t) {
      T* const sums = sums_ + chunk * size;
      std::fill_n(sums, size, T{});
      for (std::int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row)
        for_inputs(row, [&](std::int64_t first, const auto& input) {
          for_each_vector<T>(channels_, [&](std::int64_t c, std::int64_t count) {
            const Vec<T> g = simd::load_partial<T>(grad + row * channels_ + c, count);
            for (std::int64_t i = first; i < taps_; ++i) {
              T* const sum = sums + i * channels_ + c;
              simd::store_partial(
                  sum, simd::load_partial<T>(sum, count) + g * simd::load_partial<T>(input(i) + c, count), count);
            }
          });
        });
    });
    combine_partial_rows(sums_, chunks.count, size, [](T a, T b) { return a + b; });
    for (std::int64_t c = 0; c < channels_; ++c)
      for (std::int64_t i = 0; i < taps_; ++i) dweight[c * taps_ + i] = static_cast<S>(sums_[i * channels_ + c]);
  }

 private:
  static constexpr std::int64_t rows_at_a_time = 32;

  /// to = sum over taps [first, end) of weight * line(tap).
  template <class Line>
  void add_products(S* to, std::int64_t first, std::int64_t end, const Line& line) const {
    for_each_vector<T>(channels_, [&](std::int64_t c, std::int64_t count) {
      Vec<T> sum{};
      for (std::int64_t i = first; i < end; ++i)
        sum += simd::load_partial<T>(weight_ + i * channels_ + c, count) * simd::load_partial<T>(line(i) + c, count);
      simd::store_partial(to + c, sum, count);
    });
  }

  /// Calls body(first tap with an input, its inputs by tap) for a row of the output.
  template <class Body>
  void for_inputs(std::int64_t row, const Body& body) const {
    const std::int64_t b = row / length_, t = row % length_;
    const S* const inside = x_ + (row - taps_ + 1) * channels_;
    if (t >= taps_ - 1) return body(0, [&](std::int64_t i) { return inside + i * channels_; });
    const S* const before = before_ ? before_ + (b * (taps_ - 1) + t) * channels_ : nullptr;
    body(before ? 0 : taps_ - 1 - t,
         [&](std::int64_t i) { return (t + i < taps_ - 1 ? before : inside) + i * channels_; });
  }

  std::int64_t batch_, length_, channels_, taps_;
  const S *x_, *before_;
  const T* weight_;
  T* sums_;
};

template <class Body>
void with_convolution(Stream stream, const View& x, const View& weight, const View& before, bool sums,
                      const Body& body) {
  with_floating_type(x.dtype, [&]<class S>(S s) {
    const Workspace<Compute<S>> scratch(stream, "short_convolution", elements(x, weight, sums));
    body(ShortConvolution<S>(x, weight, before, scratch.data()), s);
  });
}

}  // namespace

std::int64_t on_cpu::short_convolution_scratch(const View& x, const View& weight, bool sums) {
  return elements(x, weight, sums) * static_cast<std::int64_t>(size_of(compute_dtype(x.dtype)));
}

void on_cpu::short_convolution(Stream stream, const View& x, const View& weight, const View& before, const View& out) {
  with_convolution(stream, x, weight, before, false,
                   [&]<class S>(const ShortConvolution<S>& of, S) { of.forward(out.as<S>()); });
}

void on_cpu::short_convolution_backward(Stream stream, const View& x, const View& weight, const View& before,
                                        const View& grad_out, const View& dx, const View& dweight,
                                        const View& dbefore) {
  with_convolution(stream, x, weight, before, dweight.data != nullptr, [&]<class S>(const ShortConvolution<S>& of, S) {
    const S* const grad = grad_out.as<const S>();
    if (dx.data) of.input_gradient(grad, dx.as<S>());
    if (dweight.data) of.weight_gradient(grad, dweight.as<S>());
    if (dbefore.data) of.before_gradient(grad, dbefore.as<S>());
  });
}

}  // namespace poolgrad::kernels
