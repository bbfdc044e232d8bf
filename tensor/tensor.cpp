#include "tensor/tensor.h"

#include <cstring>
#include <limits>
#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/stream_capture.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"
#include "kernels/launch.h"
#include "kernels/with_type.h"
#include "tensor/host_bytes.h"

namespace poolgrad {

namespace {
constexpr std::size_t storage_alignment = 64;
}

Storage::Storage(Device device, std::size_t bytes, std::source_location location)
    : stream_(current_stream(device)),
      bytes_(bytes),
      pool_(allocator_for(device)),
      data_(pool_.allocate(bytes, storage_alignment, stream_, location)) {}

Storage::~Storage() {
  if (StreamCapture* const capture = StreamCapture::current(); capture != nullptr) [[unlikely]]
    if (capture->keep({&pool_, data_, bytes_, storage_alignment, stream_})) return;
  pool_.deallocate(data_, bytes_, storage_alignment, stream_);
}

/// The state that Tensor handles share.
struct Tensor::Impl {
  Impl(std::shared_ptr<Storage> memory, const Geometry& where, DType type, std::int64_t elements, bool row_major)
      : storage(std::move(memory)), geometry(where), count(elements), dtype(type), contiguous(row_major) {}

  std::shared_ptr<Storage> storage;
  std::shared_ptr<GradRecord> record;
  Geometry geometry;
  std::int64_t count;
  DType dtype;
  bool contiguous;
};

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
std::int64_t Tensor::numel() const { return checked("numel").count; }
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
  Geometry inside = geometry;
  if (elements == 0) inside.offset = 0;  // an empty tensor has no position
  return Tensor(std::make_shared<Impl>(x.storage, inside, x.dtype, elements, inside.contiguous()));
}

Tensor whole_storage(const Tensor& tensor) {
  return tensor.alias(
      contiguous_geometry({static_cast<std::int64_t>(tensor.storage()->bytes() / size_of(tensor.dtype()))}));
}

Tensor Tensor::detach() const {
  const Impl& x = checked("detach");
  return Tensor(std::make_shared<Impl>(x.storage, x.geometry, x.dtype, x.count, x.contiguous));
}

bool Tensor::requires_grad() const {
  const Impl& x = checked("requires_grad");
  return x.record && x.record->requires_grad();
}

namespace {

std::shared_ptr<GradRecord> make_grad_record() {
  if (!poolgrad_make_leaf_record)
    throw Error("[set_requires_grad] gradients need the autograd library, which is not linked");
  std::shared_ptr<GradRecord> record;
  poolgrad_make_leaf_record(record);
  return record;
}

}  // namespace

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
    throw Error(
        "[backward] the tensor requires no gradient: none of its inputs does (set_requires_grad()), or a NoGradGuard "
        "was active: " +
        describe(*this));
  const std::shared_ptr<GradRecord> record = impl_->record;  // keeps it alive if a hook releases the tensor
  record->backward(*this, gradient, retain_graph, create_graph);
}

const std::shared_ptr<GradRecord>& Tensor::grad_record() const { return checked("grad_record").record; }

void Tensor::set_grad_record(std::shared_ptr<GradRecord> record) {
  checked("set_grad_record");
  impl_->record = std::move(record);
}

void swap_tensors(const Tensor& a, const Tensor& b) {
  a.checked("swap_tensors");
  b.checked("swap_tensors");
  std::swap(*a.impl_, *b.impl_);
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return to_string(tensor.shape()) + " " + std::string(to_string(tensor.dtype())) + " on " + to_string(tensor.device());
}

std::size_t bytes_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype());
}

template double* Tensor::data<double>() const;
template float* Tensor::data<float>() const;
template Half* Tensor::data<Half>() const;
template BFloat16* Tensor::data<BFloat16>() const;
template std::int64_t* Tensor::data<std::int64_t>() const;
template std::int32_t* Tensor::data<std::int32_t>() const;
template std::uint8_t* Tensor::data<std::uint8_t>() const;
template bool* Tensor::data<bool>() const;

// Functions that move data.

namespace {

/// destination = source, of equal shape and without overlap. No bytes move to or from sim.
void transfer(const View& destination, Device to, const View& source, Device from) {
  if (from.is_sim() != to.is_sim())
    kernels::ask_as_copy_with_host(current_stream(from.is_sim() ? from : to), from.is_sim() ? source : destination,
                                   destination.dtype);
  if (from.is_sim() && !to.is_sim())
    kernels::fill(current_stream(to), destination, 0.0);
  else
    kernels::copy(current_stream(to.is_cpu() ? from : to), destination, source);
}

void check_writable(const char* op, const Tensor& tensor) {
  if (grad_enabled() && tensor.requires_grad())
    throw Error("[" + std::string(op) +
                "] an in-place write to a tensor that requires grad needs a NoGradGuard: " + describe(tensor));
  if (repeats_elements(tensor.geometry()))
    throw ShapeError("[" + std::string(op) + "] several elements of the destination share memory: " + describe(tensor));
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

Tensor Tensor::on_host(CallSite) const {
  if (device().is_cpu()) return is_contiguous() ? detach() : copy();
  Tensor out = empty(shape(), {dtype(), cpu});
  use_on_current_stream(*this, Access::reads);
  transfer(out.view(), cpu, view(), device());
  return out;
}

Tensor& Tensor::copy_from(const Tensor& source, CallSite) {
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
    if (device() != read.device()) {
      use_on_current_stream(read, Access::reads);
      use_on_current_stream(*this, Access::writes);
    }
    transfer(view(), device(), view_at(read.storage()->data(), read.dtype(), from), read.device());
  }
  bump_version();
  return *this;
}

Tensor& Tensor::fill(double value) {
  check_writable("fill", *this);
  if (!has_number(dtype(), value))
    throw ValueError(fmt::format("[fill] {} does not fit into {}: {}", value, to_string(dtype()), describe(*this)));
  kernels::fill(current_stream(device()), view(), value);
  bump_version();
  return *this;
}

void Tensor::bump_version() { storage()->bump_version(); }

template <class T>
T Tensor::item(CallSite) const {
  checked("item");
  if (numel() != 1) throw ShapeError("[item] needs exactly one element: " + describe(*this));
  if (device().is_sim()) return T{};
  const Tensor host = device().is_cpu() ? *this : on_host();
  return with_type(dtype(), [&]<class Own>(Own) { return narrowed<T>(*host.data<Own>()); });
}

template <class T>
std::vector<T> Tensor::to_vector(CallSite) const {
  // Copies straight into the vector: reading a tensor allocates nothing in the pool.
  const auto elements = static_cast<std::size_t>(numel());
  std::vector<T> out;
  const Geometry dense{shape(), contiguous_strides(shape()), 0};
  use_on_current_stream(*this, Access::reads);
  if constexpr (std::is_same_v<T, bool>) {  // bit-packed, without an array of bool
    const auto buffer = std::make_unique<bool[]>(elements);
    if (elements) transfer(view_at(buffer.get(), DType::boolean, dense), cpu, view(), device());
    out.assign(buffer.get(), buffer.get() + elements);
  } else {
    out.resize(elements);
    if (elements) transfer(view_at(out.data(), dtype_of<T>, dense), cpu, view(), device());
  }
  return out;
}

template double Tensor::item<double>(CallSite) const;
template float Tensor::item<float>(CallSite) const;
template Half Tensor::item<Half>(CallSite) const;
template BFloat16 Tensor::item<BFloat16>(CallSite) const;
template std::int64_t Tensor::item<std::int64_t>(CallSite) const;
template std::int32_t Tensor::item<std::int32_t>(CallSite) const;
template std::uint8_t Tensor::item<std::uint8_t>(CallSite) const;
template bool Tensor::item<bool>(CallSite) const;

template std::vector<double> Tensor::to_vector<double>(CallSite) const;
template std::vector<float> Tensor::to_vector<float>(CallSite) const;
template std::vector<Half> Tensor::to_vector<Half>(CallSite) const;
template std::vector<BFloat16> Tensor::to_vector<BFloat16>(CallSite) const;
template std::vector<std::int64_t> Tensor::to_vector<std::int64_t>(CallSite) const;
template std::vector<std::int32_t> Tensor::to_vector<std::int32_t>(CallSite) const;
template std::vector<std::uint8_t> Tensor::to_vector<std::uint8_t>(CallSite) const;
template std::vector<bool> Tensor::to_vector<bool>(CallSite) const;

void synchronize(Device device) { kernels::synchronize(current_stream(device)); }

}  // namespace poolgrad
