// Mixed precision by scope, as PyTorch's autocast: products and attention in a half type, sums and fast-growing
// functions in f32, all others in the dtype of their operands. Parameters keep their dtype; their casts are
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
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// How a scope casts the floating operands of an operator. An operator with an f64 operand is not cast.
enum class AutocastClass {
  low,       // cast to the scope's dtype: products, attention
  wide,      // f16 and bf16 cast to f32: sums, norms, softmax, losses, exponentials and powers
  widest,    // where they differ, cast to f32: operators of several tensors
  as_given,  // left alone
};
/// Of an operator by its name on the tape, or of the function. Throws ValueError where there is none.
AutocastClass autocast_class(std::string_view op);

/// f16 or bf16.
constexpr bool is_half(DType dtype) { return is_floating(dtype) && dtype != compute_dtype(dtype); }

inline constexpr std::nullopt_t autocast_off = std::nullopt;

/// While alive, operators that this thread calls cast their operands as autocast_class() says. Scopes nest, and the
/// innermost counts; `AutocastScope(autocast_off)` is one in which nothing is cast. The cast of a parameter (a leaf
/// that requires a gradient) is made once for the scope and kept until the scope ends or the parameter is written.
/// Gradients of each use are cast to the parameter's dtype and added there. A backward pass reads the casts of the
/// forward pass and makes none. checkpoint() computes again under the scope's dtype of the first time.
///
///   {
///     const AutocastScope scope(DType::bf16);
///     loss = model.loss(tokens, targets);
///   }
///   loss.backward();
class AutocastScope {
 public:
  /// f16, bf16, or off. Throws DTypeError for others.
  explicit AutocastScope(std::optional<DType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

  /// Of the innermost scope of this thread.
  static std::optional<DType> current();

 private:
  friend Tensor autocast_to(const Tensor& x, DType dtype);
  /// A parameter's cast, without a gradient record.
  struct Cast {
    std::weak_ptr<Storage> source;
    Geometry geometry;
    std::uint64_t version = 0;
    Tensor data;
  };

  std::optional<DType> dtype_;
  AutocastScope* outer_;
  /// In the order in which they were made, so that the pool sees them end in the same order each time.
  std::vector<Cast> casts_;
  std::map<std::pair<const Storage*, DType>, std::size_t> place_;
};

// How operators and layers take part.

/// x in `dtype`, differentiable; of a parameter, the scope's own cast. x itself where nothing changes.
Tensor autocast_to(const Tensor& x, DType dtype);

/// The operands as `op` wants them in the innermost scope, undefined and integer ones as they are; nothing where there
/// is no scope or they are that already:
///   if (const auto cast = autocast("matmul", {a, b}); !cast.empty()) return matmul(cast[0], cast[1]);
std::vector<Tensor> autocast(const char* op, std::initializer_list<std::reference_wrapper<const Tensor>> operands);
std::vector<Tensor> autocast(const char* op, const std::vector<Tensor>& operands);

/// A layer's parameter as `op` wants it beside x: as autocast() makes it, or, without a scope, in the dtype of x, so
/// that f32 parameters serve activations of a half type. An undefined one stays undefined.
Tensor parameter_for(const char* op, const Tensor& parameter, const Tensor& x);

}  // namespace poolgrad
