#include "tensor/tensor.h"

#include <limits>
#include <utility>

#include "allocator/error.h"
#include "tensor/internal/tensor_impl.h"

namespace poolgrad {

Tensor Tensor::empty(const Shape& shape, TensorOptions options, std::source_location location) {
  const std::int64_t elements = poolgrad::count(shape);
  const auto size = static_cast<std::int64_t>(size_of(options.dtype));
  if (elements > std::numeric_limits<std::int64_t>::max() / size)
    throw ShapeError("[empty] more than 2^63 - 1 bytes: " + to_string(shape) + " " +
                     std::string(to_string(options.dtype)));
  auto storage = std::make_shared<Storage>(options.device, static_cast<std::size_t>(elements * size), location);
  return Tensor(std::make_shared<Impl>(std::move(storage), Geometry{shape, contiguous_strides(shape), 0}, options.dtype,
                                       elements, true));
}

Tensor Tensor::empty_like(const Tensor& like, std::source_location location) {
  return empty(like.shape(), like.options(), location);
}

const Tensor::Impl& Tensor::checked(const char* op) const {
  if (!impl_) throw Error("[" + std::string(op) + "] the tensor is undefined");
  return *impl_;
}

const Shape& Tensor::shape() const { return checked("shape").geometry.shape; }
const Strides& Tensor::strides() const { return checked("strides").geometry.strides; }
std::int64_t Tensor::size(std::int64_t dim) const {
  const Shape& sizes = checked("size").geometry.shape;
  return sizes[normalize_dim("size", dim, sizes)];
}
std::int64_t Tensor::count() const { return checked("count").count; }
DType Tensor::dtype() const { return checked("dtype").dtype; }
Device Tensor::device() const { return checked("device").storage->device(); }
bool Tensor::is_contiguous() const { return checked("is_contiguous").contiguous; }
const Geometry& Tensor::geometry() const { return checked("geometry").geometry; }
const std::shared_ptr<Storage>& Tensor::storage() const { return checked("storage").storage; }

bool Tensor::shares_storage_with(const Tensor& other) const {
  return checked("shares_storage_with").storage == other.checked("shares_storage_with").storage;
}

bool Tensor::is_sole_owner() const { return impl_ && impl_.use_count() == 1 && impl_->storage.use_count() == 1; }

View Tensor::view() const {
  const Impl& x = checked("view");
  return view_at(x.storage->data(), x.dtype, x.geometry);
}

template <class T>
T* Tensor::data() const {
  const Impl& x = checked("data");
  if (x.dtype != dtype_of<T>)
    throw DTypeError("[data] read as " + std::string(to_string(dtype_of<T>)) + ": " + describe(*this));
  if (!device().is_cpu()) throw DeviceError("[data] memory outside the CPU cannot be read: " + describe(*this));
  return static_cast<T*>(x.storage->data()) + x.geometry.offset;
}

Tensor Tensor::alias(const Geometry& geometry) const {
  const Impl& x = checked("alias");
  const std::int64_t elements = poolgrad::count(geometry.shape);
  const Extent touched = extent(geometry);
  const auto available = static_cast<std::int64_t>(x.storage->bytes() / size_of(x.dtype));
  if (elements > 0 && (touched.first < 0 || touched.last >= available))
    throw ShapeError("[alias] shape " + to_string(geometry.shape) + " with strides " + to_string(geometry.strides) +
                     " from " + std::to_string(geometry.offset) + " reaches beyond the storage of " + describe(*this));
  return Tensor(std::make_shared<Impl>(x.storage, geometry, x.dtype, elements, geometry.contiguous()));
}

Tensor Tensor::detach() const {
  const Impl& x = checked("detach");
  return Tensor(std::make_shared<Impl>(x.storage, x.geometry, x.dtype, x.count, x.contiguous));
}

bool Tensor::requires_grad() const {
  const Impl& x = checked("requires_grad");
  return x.record && x.record->requires_grad();
}

Tensor& Tensor::set_requires_grad(bool value) {
  checked("set_requires_grad");
  if (value && !is_floating(dtype()))
    throw DTypeError("[set_requires_grad] only floating dtypes have gradients: " + describe(*this));
  if (!is_leaf())
    throw Error("[set_requires_grad] only for leaves; this is the result of " + impl_->record->made_by() + ": " +
                describe(*this));
  if (!impl_->record && value) impl_->record = make_grad_record();
  if (impl_->record) impl_->record->set_requires_grad(value);
  return *this;
}

bool Tensor::is_leaf() const {
  const Impl& x = checked("is_leaf");
  return !x.record || x.record->is_leaf();
}

Tensor Tensor::grad() const {
  const Impl& x = checked("grad");
  return x.record ? x.record->grad() : Tensor();
}

void Tensor::set_grad(const Tensor& grad) {
  checked("set_grad");
  if (grad.defined() && (grad.shape() != shape() || grad.dtype() != dtype() || grad.device() != device()))
    throw ShapeError("[set_grad] the gradient differs from its tensor: gradient " + describe(grad) + ", tensor " +
                     describe(*this));
  if (!impl_->record) {
    if (!grad.defined()) return;
    impl_->record = make_grad_record();
  }
  impl_->record->set_grad(grad);
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph, CallSite) const {
  if (!checked("backward").record || !requires_grad())
    throw Error("[backward] the tensor requires no gradient: " + describe(*this));
  const std::shared_ptr<GradRecord> record = impl_->record;  // alive even if a hook lets go of the tensor
  record->backward(*this, gradient, retain_graph, create_graph);
}

const std::shared_ptr<GradRecord>& Tensor::grad_record() const { return checked("grad_record").record; }

void Tensor::set_grad_record(std::shared_ptr<GradRecord> record) {
  checked("set_grad_record");
  impl_->record = std::move(record);
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return to_string(tensor.shape()) + " " + std::string(to_string(tensor.dtype())) + " on " + to_string(tensor.device());
}

template double* Tensor::data<double>() const;
template float* Tensor::data<float>() const;
template Half* Tensor::data<Half>() const;
template BFloat16* Tensor::data<BFloat16>() const;
template std::int64_t* Tensor::data<std::int64_t>() const;
template std::int32_t* Tensor::data<std::int32_t>() const;
template std::uint8_t* Tensor::data<std::uint8_t>() const;
template bool* Tensor::data<bool>() const;

}  // namespace poolgrad
