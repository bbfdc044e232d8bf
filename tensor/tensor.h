// Tensor: a cheap handle to storage, shape, strides, dtype and an optional gradient record. Copies of a handle share
// all of it. Operators are free functions (autograd/*.h); this header defines the handle.
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

class TensorArg;
class CachingAllocator;

/// A reference-counted block of memory from the pool of its device.
class Storage {
 public:
  /// Allocates `bytes` from allocator_for(device) on the current stream, 64-byte aligned, uninitialized, tagged by the
  /// current scopes. Traces show `location`, see CallSite. Throws OutOfMemoryError, DeviceError.
  Storage(Device device, std::size_t bytes, std::source_location location = std::source_location::current());
  /// Frees the block in order with its stream. A recording in progress keeps blocks that it did not allocate.
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return stream_.device; }
  /// The pool of the block: allocator_for(device()), or the pool of a Graph.
  CachingAllocator& pool() const { return pool_; }
  /// The stream on which the block was allocated and is freed.
  Stream stream() const { return stream_; }

  /// Counts in-place writes. A saved tensor whose version has changed cannot be used for a gradient.
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
  /// Returns an uninitialized tensor from the pool of the device. Traces attribute it to the calling function, usually
  /// an operator. Throws ShapeError, OutOfMemoryError.
  static Tensor empty(const Shape& shape, TensorOptions options = {},
                      std::source_location location = std::source_location::current());
  /// Returns a row-major tensor with the shape, dtype and device of `like`.
  static Tensor empty_like(const Tensor& like, std::source_location location = std::source_location::current());

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  const Strides& strides() const;
  /// Size of one dimension; negative counts from the end.
  std::int64_t size(std::int64_t dim) const;
  int dim() const { return shape().rank(); }
  std::int64_t numel() const;
  DType dtype() const;
  Device device() const;
  TensorOptions options() const { return {dtype(), device()}; }
  bool is_contiguous() const;
  const Geometry& geometry() const;
  const std::shared_ptr<Storage>& storage() const;
  /// Returns whether both handles share storage.
  bool shares_storage_with(const Tensor& other) const;
  /// Returns whether both are handles of the same tensor.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  /// Returns whether this is the only handle and the only owner of the storage: its memory may be reused in place.
  bool is_sole_owner() const;
  /// Returns the tensor itself if it is row-major on the CPU, else a row-major copy there (zeros from sim). No gradient
  /// record.
  Tensor on_host(CallSite = {}) const;

  /// Returns the view for kernels: pointer to the first element, shape and strides. On sim the pointer must not be
  /// read.
  View view() const;
  /// Returns a pointer to the first element. Throws DTypeError if T is not the dtype, DeviceError off the CPU.
  template <class T>
  T* data() const;
  /// Returns the value of a one-element tensor (0 on sim), converted as by to_vector(): x.item(),
  /// x.item<std::int64_t>(). Throws ShapeError for other counts.
  template <class T = double>
  T item(CallSite = {}) const;
  /// Returns all elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector(CallSite = {}) const;

  /// Returns another tensor on the same storage without a gradient record; the base of every view operator. Throws
  /// ShapeError if the geometry exceeds the storage.
  Tensor alias(const Geometry& geometry) const;
  /// Returns the same data without a gradient record.
  Tensor detach() const;
  /// Returns a new row-major copy without a gradient record (autograd: clone()).
  Tensor copy(CallSite = {}) const;

  // In-place writes advance the version counter. They throw Error if a gradient would be lost: the tensor requires
  // grad and grad mode is on (use NoGradGuard).
  /// Broadcasts, converts the dtype and moves between devices. No bytes move to or from sim; reads from it give 0.
  /// Source and destination may overlap. No gradient flows through it: throws Error in grad mode for a source that
  /// requires one (pass source.detach(), or use a NoGradGuard). Throws ShapeError if the shapes do not fit or the
  /// destination is itself a broadcast.
  Tensor& copy_from(const Tensor& source, CallSite = {});
  /// Throws ValueError for a value that an integer or bool dtype cannot represent.
  Tensor& fill(double value);
  /// Advances the version counter after a write through data().
  void bump_version();

  /// x[i] and x[-1], x[slice(2)], x[{0, slice(1, 5)}], x[{ellipsis, new_axis, -1}]: views, with a gradient. Throws
  /// IndexError. The result is const, since `x[0] = y` would only change a temporary handle. C++ requires a member
  /// here; autograd/operators/views.cpp defines it.
  const Tensor operator[](const Indices& indices) const;
  /// x[index] with i64 indices of any shape into dimension 0 (negative counts from the end): shape (index's shape, rest
  /// of x's). x[mask] with a bool mask of the shape of x's leading dimensions: (number of true, rest of x's), in
  /// row-major order. The host waits for the mask; on a simulated device no element is true. Both copy, with a
  /// gradient. Throws IndexError, ShapeError, DTypeError.
  const Tensor operator[](TensorArg index) const;

  // Gradients, computed by autograd/.
  bool requires_grad() const;
  /// Only for floating leaves. Throws DTypeError for other dtypes, Error for non-leaves. Returns *this.
  Tensor& set_requires_grad(bool value = true);
  bool is_leaf() const;
  /// Returns the accumulated gradient, or an undefined tensor.
  Tensor grad() const;
  void set_grad(const Tensor& grad);
  /// Accumulates the gradient of this tensor into every leaf that requires one. `gradient` has the shape of this
  /// tensor; for one element it defaults to 1. Frees the graph unless `retain_graph`. `create_graph` makes the
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

/// A tensor argument of an operator, with the line of the call. Traces attribute the operator's memory to that line
/// (see CallSite). Constructed for each argument and gone after the call. An operator that takes it still converts to a
/// function of a tensor.
class TensorArg {
 public:
  TensorArg(const Tensor& tensor, std::source_location line = std::source_location::current())  // NOLINT: made from it
      : tensor_(tensor), site_(line) {}
  TensorArg(const TensorArg&) = delete;
  TensorArg& operator=(const TensorArg&) = delete;

  operator const Tensor&() const { return tensor_; }  // NOLINT: taken for it
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }

 private:
  const Tensor& tensor_;
  CallSite site_;
};

/// Exchanges two tensors for all handles of either: memory, geometry, dtype and gradient record. Existing graphs stay
/// unchanged. Both must be defined (Error). No other thread may use either meanwhile.
void swap_tensors(const Tensor& a, const Tensor& b);

/// Returns "(4, 8) f32 on cpu", the form of an operand in error messages.
std::string describe(const Tensor& tensor);
/// Returns the bytes of its elements without gaps.
std::size_t bytes_of(const Tensor& tensor);
/// Returns (n): all elements of the tensor's storage; no gradient record.
Tensor whole_storage(const Tensor& tensor);

/// Waits for the work of this thread's operators on the device's current stream, for timing. Reading a result waits
/// anyway. Throws CudaError or IndexError of earlier work.
void synchronize(Device device);

}  // namespace poolgrad
