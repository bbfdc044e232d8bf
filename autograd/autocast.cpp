#include "autograd/autocast.h"

#include <algorithm>
#include <string>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "tensor/grad_mode.h"

namespace poolgrad {
namespace {

thread_local constinit AutocastScope* innermost = nullptr;

constexpr std::string_view low_operators[] = {
    "attend", "conv2d",      "gated_delta_rule", "linear",           "linear_cross_entropy",
    "matmul", "ring_attend", "ring_attend_all",  "short_convolution"};

constexpr std::string_view wide_operators[] = {"acos",       "asin",         "binary_cross_entropy_with_logits",
                                               "cosh",       "cumprod",      "cumsum",
                                               "exp",        "exp2",         "expm1",
                                               "huber_loss", "kl_div",       "l1_loss",
                                               "layer_norm", "log",          "log10",
                                               "log1p",      "log2",         "log_softmax",
                                               "logsumexp",  "logcumsumexp", "mean",
                                               "mse_loss",   "norm",         "pow",
                                               "power",      "prod",         "reciprocal",
                                               "rms_norm",   "rsqrt",        "sinh",
                                               "softmax",    "softplus",     "square",
                                               "stddev",     "sum",          "tan",
                                               "var"};

constexpr std::string_view widest_operators[] = {
    "add",           "atan2",     "cat",     "div",         "equal",          "fmod",     "greater",
    "greater_equal", "index_add", "less",    "less_equal",  "maximum",        "minimum",  "mul",
    "not_equal",     "remainder", "scatter", "scatter_add", "scatter_reduce", "silu_mul", "stack",
    "sub",           "where"};

/// cross_entropy computes in f32 for logits of any dtype. The others only move elements, or are as exact as their
/// dtype.
constexpr std::string_view operators_as_given[] = {"abs",
                                                   "affine",
                                                   "all",
                                                   "any",
                                                   "argmax",
                                                   "argmin",
                                                   "atan",
                                                   "cast",
                                                   "ceil",
                                                   "checkpoint",
                                                   "checkpoint_tiled",
                                                   "clamp",
                                                   "clone",
                                                   "cos",
                                                   "cross_entropy",
                                                   "diagonal",
                                                   "dropout",
                                                   "elu",
                                                   "embedding",
                                                   "erf",
                                                   "expand",
                                                   "floor",
                                                   "fold",
                                                   "gather",
                                                   "gelu",
                                                   "index_select",
                                                   "isfinite",
                                                   "isnan",
                                                   "joined_tiles",
                                                   "leaf",
                                                   "leaky_relu",
                                                   "logical_and",
                                                   "logical_not",
                                                   "logical_or",
                                                   "masked_fill",
                                                   "max",
                                                   "min",
                                                   "mish",
                                                   "move",
                                                   "neg",
                                                   "pad",
                                                   "permute",
                                                   "place",
                                                   "place_on_diagonal",
                                                   "relu",
                                                   "reshape",
                                                   "rope",
                                                   "round",
                                                   "select",
                                                   "sigmoid",
                                                   "sign",
                                                   "silu",
                                                   "sin",
                                                   "slice",
                                                   "split",
                                                   "split_heads",
                                                   "sqrt",
                                                   "tanh",
                                                   "tiles",
                                                   "transpose",
                                                   "unfold"};

template <std::size_t N>
bool has(const std::string_view (&operators)[N], std::string_view op) {
  return std::find(std::begin(operators), std::end(operators), op) != std::end(operators);
}

/// The target dtypes for the operands of one call.
class Target {
 public:
  Target(const char* op, DType low) : class_(autocast_class(op)), low_(low) {}

  void see(const Tensor& x) {
    if (!x.defined() || !is_floating(x.dtype())) return;
    has_f64_ |= x.dtype() == DType::f64;
    is_mixed_ |= seen_ && *seen_ != x.dtype();
    seen_ = x.dtype();
  }
  DType of(const Tensor& x) const {
    if (!is_floating(x.dtype()) || has_f64_) return x.dtype();
    switch (class_) {
      case AutocastClass::low: return low_;
      case AutocastClass::wide: return DType::f32;
      case AutocastClass::widest: return is_mixed_ ? DType::f32 : x.dtype();
      default: return x.dtype();
    }
  }

 private:
  AutocastClass class_;
  DType low_;
  std::optional<DType> seen_;
  bool has_f64_ = false, is_mixed_ = false;
};

template <class Operands>
std::vector<Tensor> cast_all(const char* op, const Operands& operands) {
  const std::optional<DType> low = AutocastScope::current();
  if (!low) return {};
  Target target(op, *low);
  for (const Tensor& x : operands) target.see(x);
  const auto changes = [&](const Tensor& x) { return x.defined() && target.of(x) != x.dtype(); };
  if (std::none_of(operands.begin(), operands.end(), changes)) return {};
  std::vector<Tensor> cast;
  for (const Tensor& x : operands) cast.push_back(x.defined() ? autocast_to(x, target.of(x)) : x);
  return cast;
}

}  // namespace

AutocastClass autocast_class(std::string_view op) {
  if (has(low_operators, op)) return AutocastClass::low;
  if (has(wide_operators, op)) return AutocastClass::wide;
  if (has(widest_operators, op)) return AutocastClass::widest;
  if (has(operators_as_given, op)) return AutocastClass::as_given;
  throw ValueError("[autocast] no autocast class for the operator " + std::string(op));
}

AutocastScope::AutocastScope(std::optional<DType> dtype) : dtype_(dtype) {
  if (dtype && !is_half(*dtype))
    throw DTypeError("[autocast] products can be cast to f16 or bf16, not to " + std::string(to_string(*dtype)));
  outer_ = std::exchange(innermost, this);
}

AutocastScope::~AutocastScope() { innermost = outer_; }

std::optional<DType> AutocastScope::current() { return innermost == nullptr ? std::nullopt : innermost->dtype_; }

Tensor autocast_to(const Tensor& x, DType dtype, bool frozen_parameter) {
  if (x.dtype() == dtype) return x;
  const MemoryScope scope("autocast");
  const bool is_parameter = x.is_leaf() && (x.requires_grad() || frozen_parameter);
  if (!AutocastScope::current() || !is_parameter) return to(x, dtype);
  AutocastScope& here = *innermost;
  const auto [place, is_new] =
      here.place_.try_emplace({x.storage().get(), x.geometry().offset, dtype}, here.casts_.size());
  if (is_new) here.casts_.emplace_back();
  AutocastScope::Cast& cast = here.casts_[place->second];
  const std::uint64_t version = x.storage()->version();
  if (cast.source.lock() != x.storage() || cast.version != version || !(cast.geometry == x.geometry())) {
    cast.data = {};  // freed first, so that only one is in memory
    cast = {x.storage(), x.geometry(), version, to(x.detach(), dtype)};
  }
  // Each use gets its own node: a cast may outlive the graph of its first use, or be made while nothing is recorded.
  return recorded_cast(x, cast.data.detach());
}

std::vector<Tensor> autocast(const char* op, std::initializer_list<std::reference_wrapper<const Tensor>> operands) {
  return cast_all(op, operands);
}
std::vector<Tensor> autocast(const char* op, const std::vector<Tensor>& operands) { return cast_all(op, operands); }

Tensor parameter_for(const char* op, const Tensor& parameter, const Tensor& x) {
  if (!parameter.defined()) return parameter;
  const std::optional<DType> low = AutocastScope::current();
  if (!low || x.dtype() == DType::f64) return to(parameter, x.dtype());
  Target target(op, *low);
  target.see(parameter);
  return autocast_to(parameter, target.of(parameter), true);
}

}  // namespace poolgrad
