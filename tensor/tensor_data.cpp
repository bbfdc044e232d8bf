// The functions of Tensor that move data.
#include <cstring>
#include <memory>
#include <string>

#include "allocator/error.h"
#include "kernels/elementwise.h"
#include "kernels/with_type.h"
#include "tensor/grad_mode.h"
#include "tensor/tensor.h"

namespace poolgrad {

namespace {

/// destination = source, of one shape and without overlap. No bytes move to or from sim.
void transfer(const View& destination, Device to, const View& source, Device from) {
  if (from.is_sim() && to.is_cpu())
    kernels::fill(current_stream(to), destination, 0.0);
  else
    kernels::copy(current_stream(to.is_cpu() ? from : to), destination, source);
}

void check_writable(const char* op, const Tensor& tensor) {
  if (grad_enabled() && tensor.requires_grad())
    throw Error("[" + std::string(op) +
                "] an in-place write to a tensor that requires grad needs a NoGradGuard: " + describe(tensor));
  if (repeats_elements(tensor.geometry()))
    throw ShapeError("[" + std::string(op) +
                     "] several elements of the destination share one place: " + describe(tensor));
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (!a.shares_storage_with(b)) return false;
  const Extent x = extent(a.geometry()), y = extent(b.geometry());
  return x.first <= y.last && y.first <= x.last;
}

}  // namespace

Tensor Tensor::copy(CallSite) const {
  Tensor out = empty_like(*this);
  transfer(out.view(), device(), view(), device());
  return out;
}

Tensor Tensor::on_host() const {
  if (device().is_cpu()) return is_contiguous() ? detach() : copy();
  Tensor out = empty(shape(), {dtype(), cpu});
  transfer(out.view(), cpu, view(), device());
  return out;
}

Tensor& Tensor::copy_from(const Tensor& source) {
  check_writable("copy_from", *this);
  if (!source.defined()) throw Error("[copy_from] the source is undefined: destination " + describe(*this));
  if (grad_enabled() && source.requires_grad())
    throw Error("[copy_from] the gradient of the source would be lost; detach() it or use a NoGradGuard: destination " +
                describe(*this) + ", source " + describe(source));
  Geometry from;
  try {
    from = expanded(source.geometry(), shape());
  } catch (const ShapeError&) {
    throw ShapeError("[copy_from] the source does not broadcast to the destination: destination " + describe(*this) +
                     ", source " + describe(source));
  }
  const bool overlapping = overlap(*this, source);
  if (!overlapping || from != geometry()) {
    const Tensor read = overlapping ? source.copy() : source;
    if (overlapping) from = expanded(read.geometry(), shape());
    transfer(view(), device(), view_at(read.storage()->data(), read.dtype(), from), read.device());
  }
  bump_version();
  return *this;
}

Tensor& Tensor::fill(double value) {
  check_writable("fill", *this);
  kernels::fill(current_stream(device()), view(), value);
  bump_version();
  return *this;
}

void Tensor::bump_version() { storage()->bump_version(); }

double Tensor::item() const {
  if (count() != 1) throw ShapeError("[item] needs exactly one element: " + describe(*this));
  if (device().is_sim()) return 0.0;
  const Tensor host = device().is_cpu() ? *this : on_host();
  return with_type(dtype(), [&]<class T>(T) { return as_double(*host.data<T>()); });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  // Straight into the vector: reading a tensor leaves no trace in the pool.
  const auto elements = static_cast<std::size_t>(count());
  std::vector<T> out;
  const Geometry dense{shape(), contiguous_strides(shape()), 0};
  if constexpr (std::is_same_v<T, bool>) {  // packed: has no array of bool inside
    const auto buffer = std::make_unique<bool[]>(elements);
    if (elements) transfer(view_at(buffer.get(), DType::boolean, dense), cpu, view(), device());
    out.assign(buffer.get(), buffer.get() + elements);
  } else {
    out.resize(elements);
    if (elements) transfer(view_at(out.data(), dtype_of<T>, dense), cpu, view(), device());
  }
  return out;
}

template std::vector<double> Tensor::to_vector<double>() const;
template std::vector<float> Tensor::to_vector<float>() const;
template std::vector<Half> Tensor::to_vector<Half>() const;
template std::vector<BFloat16> Tensor::to_vector<BFloat16>() const;
template std::vector<std::int64_t> Tensor::to_vector<std::int64_t>() const;
template std::vector<std::int32_t> Tensor::to_vector<std::int32_t>() const;
template std::vector<std::uint8_t> Tensor::to_vector<std::uint8_t>() const;
template std::vector<bool> Tensor::to_vector<bool>() const;

}  // namespace poolgrad
