// Tensor: a cheap handle to storage + shape + strides + dtype + an optional gradient record. Copies of a handle share
// all of that. Operators are free functions (autograd/*.h); what a tensor *is* is here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "allocator/memory_scope.h"
#include "allocator/stream.h"
#include "tensor/geometry.h"
#include "tensor/grad_mode.h"

namespace poolgrad {

class Argument;
class CachingAllocator;

/// A reference-counted block of memory from the pool of its device.
class Storage {
 public:
  /// `bytes` from allocator_for(device) on the current stream, 64-byte aligned, tagged by the scopes alive; not
  /// initialised. `location` is what a trace shows, see CallSite. Throws OutOfMemoryError, DeviceError.
  Storage(Device device, std::size_t bytes, std::source_location location = std::source_location::current());
  /// Hands the block back to the pool, in order with the stream it was made on. While a step is recorded, the recording
  /// keeps what is not its own.
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return stream_.device; }
  /// Where it comes from: allocator_for(device()), or the pool of a Graph.
  CachingAllocator& pool() const { return pool_; }
  /// On which it was made, and to which its block is given back.
  Stream stream() const { return stream_; }

  /// Counts in-place writes; a saved tensor whose version has moved on cannot be used for a gradient.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Stream stream_;
  std::size_t bytes_;
  CachingAllocator& pool_;
  void* data_;
  std::atomic<std::uint64_t> version_{0};
};

/// dtype and device of a new tensor: `zeros({2, 3}, {.dtype = DType::f64})`.
struct TensorOptions {
  DType dtype = DType::f32;
  Device device = cpu;
};

class Tensor {
 public:
  /// An undefined tensor: no storage, defined() is false.
  Tensor() = default;
  /// Uninitialised memory from the pool of the device. In traces the function that calls it, an operator as a rule, has
  /// made the tensor. Throws ShapeError, OutOfMemoryError.
  static Tensor empty(const Shape& shape, TensorOptions options = {},
                      std::source_location location = std::source_location::current());
  /// The same shape, dtype and device as `like` (row-major).
  static Tensor empty_like(const Tensor& like, std::source_location location = std::source_location::current());

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  const Strides& strides() const;
  /// Size of one dimension; negative counts from the end.
  std::int64_t size(std::int64_t dim) const;
  int rank() const { return shape().rank(); }
  std::int64_t count() const;
  DType dtype() const;
  Device device() const;
  TensorOptions options() const { return {dtype(), device()}; }
  bool is_contiguous() const;
  const Geometry& geometry() const;
  const std::shared_ptr<Storage>& storage() const;
  /// True if both handles share storage.
  bool shares_storage_with(const Tensor& other) const;
  /// True for two handles of the very same tensor.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  /// True if this handle is the only one and the storage has no other owner: its memory may be reused in place.
  bool is_sole_owner() const;
  /// The tensor itself if it is row-major on the CPU, else a row-major copy there (zeros from sim). No gradient record.
  Tensor on_host(CallSite = {}) const;

  /// What kernels take: pointer to the first element, shape and strides. On sim the pointer must not be read.
  View view() const;
  /// Pointer to the first element; throws DTypeError if T is not the dtype, DeviceError off the CPU.
  template <class T>
  T* data() const;
  /// The value of a one-element tensor (0 on sim), converted as by to_vector(): x.item(), x.item<std::int64_t>().
  /// Throws ShapeError otherwise.
  template <class T = double>
  T item(CallSite = {}) const;
  /// All elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector(CallSite = {}) const;

  /// Another tensor on the same storage; no gradient record. The primitive under every view operator. Throws ShapeError
  /// if the geometry reaches beyond the storage.
  Tensor alias(const Geometry& geometry) const;
  /// The same data without a gradient record: alias of all.
  Tensor detach() const;
  /// A fresh row-major copy, without a gradient record (autograd: clone()).
  Tensor copy(CallSite = {}) const;

  // In-place writes: they advance the version counter, and throw Error if a gradient would be lost
  // (the tensor requires grad and grad mode is on; use NoGradGuard).
  /// Broadcasts, converts dtype, moves between devices (no bytes move to or from sim; what is read from there is 0).
  /// Source and destination may overlap. No gradient flows through it: a source that requires one is refused with Error
  /// in grad mode (pass source.detach(), or use a NoGradGuard). Throws ShapeError where the shapes do not fit or the
  /// destination is itself a broadcast.
  Tensor& copy_from(const Tensor& source, CallSite = {});
  /// Throws ValueError where the dtype is one of integers or bools and `value` is none of them.
  Tensor& fill(double value);
  /// Advances the version counter by hand, after writing through data().
  void bump_version();

  /// x[i] and x[-1], x[slice(2)], x[{0, slice(1, 5)}], x[{ellipsis, new_axis, -1}]: views, with a gradient. Throws
  /// IndexError. Const, since `x[0] = y` would change nothing but a handle that nobody has. An operator that has to be
  /// a member: autograd/operators/views.cpp defines it.
  const Tensor operator[](const Indices& indices) const;
  /// x[index] with i64 indices of any shape into dimension 0, negative ones counted from the end: shape (index's shape,
  /// rest of x's). x[mask] with a bool mask of the shape of x's leading dimensions: (number of true, rest of x's), in
  /// row-major order; the host waits for the mask, and on a simulated device none is true. Copies, with a gradient.
  /// Throws IndexError, ShapeError, DTypeError.
  const Tensor operator[](Argument index) const;

  // Gradients; the work is done by autograd/.
  bool requires_grad() const;
  /// Only floating leaves; throws DTypeError / Error otherwise. Returns *this.
  Tensor& set_requires_grad(bool value = true);
  bool is_leaf() const;
  /// The accumulated gradient; undefined where there is none.
  Tensor grad() const;
  void set_grad(const Tensor& grad);
  /// Accumulates the gradient of this tensor into every leaf that requires one. `gradient` has the shape of this tensor
  /// and may be left out for one element (then 1). The graph is freed unless `retain_graph`; `create_graph` makes the
  /// gradients differentiable.
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false, CallSite = {}) const;

  const std::shared_ptr<GradRecord>& grad_record() const;
  void set_grad_record(std::shared_ptr<GradRecord> record);

 private:
  friend void swap_tensors(const Tensor& a, const Tensor& b);
  struct Impl;
  const Impl& checked(const char* op) const;
  explicit Tensor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

/// A tensor that an operator is called with, and the line of that call, which the operator's memory is put down to (see
/// CallSite). Made where a tensor is passed and gone with the call; so an operator that takes it can be passed around
/// as a function of a tensor.
class Argument {
 public:
  Argument(const Tensor& tensor, std::source_location line = std::source_location::current())  // NOLINT: made from it
      : tensor_(tensor), site_(line) {}
  Argument(const Argument&) = delete;
  Argument& operator=(const Argument&) = delete;

  operator const Tensor&() const { return tensor_; }  // NOLINT: taken for it
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }

 private:
  const Tensor& tensor_;
  CallSite site_;
};

/// Exchanges what two tensors are, for all handles of either: memory, geometry, dtype and gradient record. Graphs that
/// were made with them stay as they are. Both must be defined (Error). Not while another thread uses either.
void swap_tensors(const Tensor& a, const Tensor& b);

/// "(4, 8) f32 on cpu": how error messages show an operand.
std::string describe(const Tensor& tensor);
/// Of its elements, one after another.
std::size_t bytes_of(const Tensor& tensor);
/// (n): all elements that the tensor's storage holds; no gradient record.
Tensor whole_storage(const Tensor& tensor);

/// Returns once the device has done what this thread's operators have asked of it, on its current stream: for measuring
/// times. Whoever reads a result waits anyway. Throws CudaError or IndexError of work before.
void synchronize(Device device);

}  // namespace poolgrad
