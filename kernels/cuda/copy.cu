#include <optional>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/workspace.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

template <class T>
struct Same {
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const { out[0] = in[0]; }
};
template <class T>
struct Constant {
  T value;
  POOLGRAD_HD void operator()(std::int64_t, const T*, T* out) const { out[0] = value; }
};
template <class T>
struct Progress {
  double start, step;
  POOLGRAD_HD void operator()(std::int64_t i, const T*, T* out) const {
    out[0] = static_cast<T>(start + static_cast<double>(i) * step);
  }
};

/// Of one dtype, bits are moved, never values.
void copy_on_device(Stream stream, const View& out, const View& x) {
  if (out.dtype != x.dtype)
    return with_compute_type(x.dtype, [&]<class T>(T) {
      cuda::for_each_element<T, true>("copy", stream, std::array{out}, std::array{x}, Same<T>{});
    });
  with_word(x.dtype, [&]<class Word>(Word) {
    cuda::for_each_element<Word>("copy", stream, std::array{out}, std::array{x}, Same<Word>{});
  });
}

std::int64_t bytes_in(const View& view) { return view.count() * static_cast<std::int64_t>(size_of(view.dtype)); }

/// Row-major memory for the elements of a view; the view itself where it is row-major, of that dtype.
class Dense {
 public:
  Dense(Stream stream, const View& like, DType dtype) : view_(like) {
    if (like.contiguous() && like.dtype == dtype) return;
    view_.dtype = dtype;
    std::int64_t stride = 1;
    for (int d = view_.rank - 1; d >= 0; --d) {
      view_.strides[d] = stride;
      stride *= view_.shape[d];
    }
    view_.data = memory_.emplace(stream, "copy", bytes_in(view_)).data();
  }
  const View& view() const { return view_; }
  bool own() const { return memory_.has_value(); }

 private:
  View view_;
  std::optional<Workspace<std::byte>> memory_;
};

}  // namespace

/// Between host and device, what is not row-major or of another dtype is made so on the side where it is: elements of
/// the destination's dtype are what travels.
void on_cuda::copy(Stream stream, const View& out, const View& x) {
  if (out.count() == 0) return;
  const int to = cuda::device_of(out.data), from = cuda::device_of(x.data);
  if ((to >= 0 && to != stream.device.index) || (from >= 0 && from != stream.device.index))
    throw DeviceError("[copy] between two CUDA devices: from cuda:" + std::to_string(from) +
                      " to cuda:" + std::to_string(to) + " goes through the host");
  if (to >= 0 && from >= 0) return copy_on_device(stream, out, x);
  const auto side = [&](int device) { return device >= 0 ? stream : Stream{cpu}; };
  const auto copy_there = [&](int device, const View& target, const View& source) {
    device >= 0 ? copy_on_device(stream, target, source) : on_cpu::copy(Stream{cpu}, target, source);
  };
  const Dense source(side(from), x, out.dtype), target(side(to), out, out.dtype);
  if (source.own()) copy_there(from, source.view(), x);
  cuda::copy_bytes(stream, target.view().data, source.view().data, static_cast<std::size_t>(bytes_in(out)));
  if (to < 0) cuda::throw_index_fault(stream.device.index);  // the host has waited
  if (target.own()) copy_there(to, out, target.view());
}

void on_cuda::fill(Stream stream, const View& out, double value) {
  with_compute_type(out.dtype, [&]<class T>(T) {
    cuda::for_each_element<T>("fill", stream, std::array{out}, std::array<View, 0>{},
                              Constant<T>{static_cast<T>(value)});
  });
}

void on_cuda::arange(Stream stream, const View& out, double start, double step) {
  with_compute_type(out.dtype, [&]<class T>(T) {
    cuda::for_each_element<T>("arange", stream, std::array{out}, std::array<View, 0>{}, Progress<T>{start, step});
  });
}

}  // namespace poolgrad::kernels
