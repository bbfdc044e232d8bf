// Mixed precision by scope, as PyTorch's autocast. Products and attention compute in a half type, sums and fast-growing
// functions in f32, and all others in the dtype of their operands. Parameters keep their dtype; their casts are
// differentiable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// The casts of an operator's floating operands in a scope. An operator with an f64 operand is not cast.
enum class AutocastClass {
  low,       // cast to the scope's dtype: products, attention
  wide,      // f16 and bf16 cast to f32: sums, norms, softmax, losses, exponentials and powers
  widest,    // if dtypes differ, cast to f32: operators with several tensors
  as_given,  // not cast
};
/// Returns the class of an operator, by its name on the tape or the name of its function. Throws ValueError for an
/// unknown name.
AutocastClass autocast_class(std::string_view op);

/// f16 or bf16.
constexpr bool is_half(DType dtype) { return is_floating(dtype) && dtype != compute_dtype(dtype); }

inline constexpr std::nullopt_t autocast_off = std::nullopt;

/// While alive, operators called on this thread cast their operands by autocast_class(). Scopes nest and the innermost
/// counts; `AutocastScope(autocast_off)` turns casts off. A parameter is a leaf that requires a gradient, or belongs to
/// a layer. It is cast once, until the scope ends or a write changes it. The gradient of each use is cast to the dtype
/// of the parameter and added there. A backward pass uses the casts of the forward pass. checkpoint() recomputes under
/// the scope of the first run.
///
///   {
///     const AutocastScope scope(DType::bf16);
///     loss = model.loss(tokens, targets);
///   }
///   loss.backward();
class AutocastScope {
 public:
  /// Accepts f16, bf16 and autocast_off. Throws DTypeError for other dtypes.
  explicit AutocastScope(std::optional<DType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

  /// Returns the dtype of the innermost scope on this thread.
  static std::optional<DType> current();

 private:
  friend Tensor autocast_to(const Tensor& x, DType dtype, bool frozen_parameter);
  /// A parameter's cast, without a gradient record.
  struct Cast {
    std::weak_ptr<Storage> source;
    Geometry geometry;
    std::uint64_t version = 0;
    Tensor data;
  };

  std::optional<DType> dtype_;
  AutocastScope* outer_;
  /// In the order of creation, so that the pool always sees them end in the same order.
  std::vector<Cast> casts_;
  /// By memory, first element and dtype: packed weights are used by their slices.
  std::map<std::tuple<const Storage*, std::int64_t, DType>, std::size_t> place_;
};

// For operators and layers.

/// Returns x cast to `dtype`, differentiable; x itself if nothing changes. For a parameter, returns the cast of the
/// scope. With `frozen_parameter`, a leaf without a gradient is a parameter, too.
Tensor autocast_to(const Tensor& x, DType dtype, bool frozen_parameter = false);

/// Returns the operands cast for `op` in the innermost scope; undefined and integer operands are unchanged. Returns an
/// empty list without a scope, or if no operand changes:
///   if (const auto cast = autocast("matmul", {a, b}); !cast.empty()) return matmul(cast[0], cast[1]);
std::vector<Tensor> autocast(const char* op, std::initializer_list<std::reference_wrapper<const Tensor>> operands);
std::vector<Tensor> autocast(const char* op, const std::vector<Tensor>& operands);

/// Returns a layer's parameter for use with x in `op`: cast by autocast(), or, without a scope, to the dtype of x. So
/// f32 parameters serve activations of a half type. An undefined parameter stays undefined.
Tensor parameter_for(const char* op, const Tensor& parameter, const Tensor& x);

}  // namespace poolgrad
