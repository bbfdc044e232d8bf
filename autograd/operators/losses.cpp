#include "autograd/operators/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/rows.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/rows.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

/// Returns rows != number, exact even if a double cannot hold the number.
Tensor not_class(const Tensor& rows, std::int64_t number) {
  constexpr std::int64_t exact = std::int64_t{1} << 53;
  if (-exact <= number && number <= exact) return rows != static_cast<double>(number);
  return not_equal(rows, from_data<std::int64_t>({number}, {}, rows.device()));
}

/// The targets of a classification loss, and the flags of counted ones.
struct ClassTargets {
  Tensor rows;     // i64, row-major; saved by backward to recompute the others
  Tensor counted;  // bool: not ignored
  Tensor safe;     // rows with 0 for ignored targets

  /// Checks dtype, range (IndexError) and options (ValueError). Targets equal to options.ignore_index may have any
  /// value.
  ClassTargets(const char* op, const Tensor& targets, std::int64_t classes, const CrossEntropyOptions& options,
               Operands operands);
  /// Returns 1 / number of counted targets, 0-dimensional; 1 without counted targets. Computed on the device, without a
  /// wait.
  Tensor inverse_count(DType dtype) const;
};

ClassTargets::ClassTargets(const char* op, const Tensor& targets, std::int64_t classes,
                           const CrossEntropyOptions& options, Operands operands) {
  check_dtype(op, targets, DType::i64, "targets must be i64", operands);
  if (!(options.label_smoothing >= 0.0 && options.label_smoothing <= 1.0))
    fail<ValueError>(op, "label smoothing is outside [0, 1]", operands);
  if (options.softcap != 0.0 && !(options.softcap >= 1e-30 && options.softcap <= 1e30))  // it and its inverse in f32
    fail<ValueError>(op, fmt::format("the softcap must be 0 or from 1e-30 to 1e30, but is {}", options.softcap),
                     operands);
  rows = dense(targets);
  counted = not_class(rows, options.ignore_index);
  safe = where(counted, rows, 0.0);
  check_index_range(op, "target", safe, classes);
}

Tensor ClassTargets::inverse_count(DType dtype) const {
  return reciprocal(clamp(to(sum(counted), dtype), 1.0, std::numeric_limits<double>::infinity()));
}

/// Returns the loss of every row in primitive operators: `normaliser`, its log-sum-exp, minus the score of its target.
/// An undefined normaliser counts as 0.
Tensor target_losses(const Tensor& scores, const Tensor& normaliser, const ClassTargets& targets,
                     const CrossEntropyOptions& options) {
  const Tensor picked = squeeze(gather(scores, -1, unsqueeze(targets.safe, -1)), -1);
  const double smoothing = options.label_smoothing;
  Tensor losses = picked * (smoothing - 1.0);
  if (normaliser.defined()) losses = normaliser + losses;
  if (smoothing != 0.0) losses = losses - mean(scores, -1) * smoothing;
  return masked_fill(losses, logical_not(targets.counted), 0.0);
}

Tensor reduced(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::none: return losses;
    case Reduction::sum: return sum(losses);
    default: return mean(losses);
  }
}

/// Checks for two floating tensors of one shape.
void check_pair(const char* op, Operands operands) {
  check_floating(op, operands);
  if (operands.begin()[0].tensor.shape() != operands.begin()[1].tensor.shape())
    fail<ShapeError>(op, "shapes differ", operands);
}

}  // namespace

Tensor cross_entropy(TensorArg logits, const Tensor& targets, CrossEntropyOptions options) {
  const Operands operands = {{"logits", logits}, {"targets", targets}};
  check_devices("cross_entropy", operands);
  if (!is_floating(logits->dtype())) fail<DTypeError>("cross_entropy", "logits need a floating dtype", operands);
  if (logits->dim() == 0 || targets.shape() != row_shape(logits))
    fail<ShapeError>("cross_entropy", "needs logits (..., V) and targets (...)", operands);
  const ClassTargets wanted("cross_entropy", targets, logits->shape().back(), options, operands);
  if (const double cap = std::exchange(options.softcap, 0.0); cap > 0)
    return cross_entropy(tanh(to(*logits, compute_dtype(logits->dtype())) / cap) * cap, targets, options);

  const TensorOptions statistics{compute_dtype(logits->dtype()), logits->device()};
  Tensor losses = Tensor::empty(targets.shape(), statistics);
  const Tensor lse = Tensor::empty(targets.shape(), statistics);
  kernels::cross_entropy(current_stream(logits->device()), losses.view(), lse.view(), dense(logits).view(),
                         wanted.rows.view(), options.ignore_index, options.label_smoothing);
  if (wants_gradient({logits}))
    record("cross_entropy", {logits}, {losses},
           [logits = SavedTensor(logits), lse = SavedTensor(lse), rows = SavedTensor(wanted.rows),
            options](const BackwardCall& call) -> Gradients {
             const Tensor scores = logits.unpack(), classes = rows.unpack(), &grad = call.gradient();
             if (grad_enabled())
               return differentiable_gradients(
                   [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                     const ClassTargets again("cross_entropy", classes, scores.shape().back(), options,
                                              {{"logits", scores}, {"targets", classes}});
                     return {to(target_losses(in[0], logsumexp(in[0], -1), again, options), grad.dtype())};
                   },
                   {scores}, {grad});
             Tensor dlogits = Tensor::empty_like(scores);
             kernels::cross_entropy_backward(current_stream(grad.device()), dlogits.view(), grad.view(),
                                             dense(scores).view(), lse.unpack().view(), classes.view(),
                                             options.ignore_index, options.label_smoothing);
             return {dlogits};
           });
  if (options.reduction == Reduction::mean) return sum(losses) * wanted.inverse_count(statistics.dtype);
  return reduced(losses, options.reduction);
}

Tensor nll_loss(TensorArg log_probabilities, const Tensor& targets, CrossEntropyOptions options) {
  const Operands operands = {{"log_probabilities", log_probabilities}, {"targets", targets}};
  check_devices("nll_loss", operands);
  if (!is_floating(log_probabilities->dtype()))
    fail<DTypeError>("nll_loss", "log_probabilities need a floating dtype", operands);
  if (log_probabilities->dim() == 0 || targets.shape() != row_shape(log_probabilities))
    fail<ShapeError>("nll_loss", "needs log_probabilities (..., V) and targets (...)", operands);
  const ClassTargets wanted("nll_loss", targets, log_probabilities->shape().back(), options, operands);
  if (options.softcap != 0) fail<ValueError>("nll_loss", "probabilities take no softcap", operands);
  const DType wide = compute_dtype(log_probabilities->dtype());
  const Tensor losses = target_losses(to(*log_probabilities, wide), {}, wanted, options);
  if (options.reduction == Reduction::mean) return sum(losses) * wanted.inverse_count(wide);
  return reduced(losses, options.reduction);
}

Tensor binary_cross_entropy_with_logits(TensorArg logits, const Tensor& targets, Reduction reduction) {
  if (const auto cast = autocast("binary_cross_entropy_with_logits", {logits, targets}); !cast.empty())
    return binary_cross_entropy_with_logits(cast[0], cast[1], reduction);
  check_pair("binary_cross_entropy_with_logits", {{"logits", logits}, {"targets", targets}});
  const DType wide = compute_dtype(logits->dtype());
  const Tensor x = to(*logits, wide), t = to(targets, wide);
  return reduced(t * softplus(-x) + (1.0 - t) * softplus(x), reduction);
}

Tensor kl_div(TensorArg log_q, const Tensor& p, Reduction reduction) {
  if (const auto cast = autocast("kl_div", {log_q, p}); !cast.empty()) return kl_div(cast[0], cast[1], reduction);
  check_pair("kl_div", {{"log_q", log_q}, {"p", p}});
  if (p.dim() == 0) fail<ShapeError>("kl_div", "needs rows (..., V)", {{"log_q", log_q}, {"p", p}});
  const DType wide = compute_dtype(p.dtype());
  const Tensor weights = to(p, wide), none = weights == 0.0;  // ignores both logarithms there, even infinite ones
  const Tensor ratio = log(masked_fill(weights, none, 1.0)) - masked_fill(to(*log_q, wide), none, 0.0);
  return reduced(sum(weights * ratio, -1), reduction);
}

Tensor mse_loss(TensorArg a, const Tensor& b, Reduction reduction) {
  if (const auto cast = autocast("mse_loss", {a, b}); !cast.empty()) return mse_loss(cast[0], cast[1], reduction);
  check_pair("mse_loss", {{"a", a}, {"b", b}});
  return reduced(square(*a - b), reduction);
}

Tensor l1_loss(TensorArg a, const Tensor& b, Reduction reduction) {
  if (const auto cast = autocast("l1_loss", {a, b}); !cast.empty()) return l1_loss(cast[0], cast[1], reduction);
  check_pair("l1_loss", {{"a", a}, {"b", b}});
  return reduced(abs(*a - b), reduction);
}

Tensor huber_loss(TensorArg a, const Tensor& b, double delta, Reduction reduction) {
  if (const auto cast = autocast("huber_loss", {a, b}); !cast.empty())
    return huber_loss(cast[0], cast[1], delta, reduction);
  check_pair("huber_loss", {{"a", a}, {"b", b}});
  if (!(delta > 0.0))
    fail<ValueError>("huber_loss", fmt::format("delta {} is not positive", delta), {{"a", a}, {"b", b}});
  const Tensor difference = *a - b, bounded = clamp(difference, -delta, delta);
  return reduced(bounded * (difference - bounded * 0.5), reduction);
}

namespace {

/// Returns the number of rows with logits in memory at one time: about 4 M logits. Logits of a half type take 6 bytes
/// each, f32 and their gradient. So their chunks have half as many rows, with at least two chunks from 128 rows on.
/// Depends only on shape and dtype, and so does the order of sums.
std::int64_t rows_per_chunk(std::int64_t rows, std::int64_t classes, DType dtype) {
  const auto chunk = [&](std::int64_t logits, std::int64_t most) {
    return std::clamp<std::int64_t>(logits / std::max<std::int64_t>(classes, 1) / 64 * 64, 64, most);
  };
  constexpr std::int64_t logits = std::int64_t{1} << 22;
  return std::min(rows, is_half(dtype) ? chunk(logits / 2, std::clamp<std::int64_t>(rows / 128 * 64, 64, 512))
                                       : chunk(logits, 1024));
}

struct LossAndGradients {
  Tensor losses, dx, dweight;  // losses (N)
};

/// Sums products for a gradient in the compute dtype: in the gradient itself if it has that dtype, else in f32 memory.
/// A half type is then rounded once.
class WideGradient {
 public:
  WideGradient(const Tensor& result, const Tensor& room) : result_(result), sum_(room.defined() ? room : result) {}
  /// Computes sum = a b if `first`, else sum += a b.
  void add(const Tensor& a, const Tensor& b, bool first) const { product(sum_, a, b, first ? 0.0 : 1.0); }
  /// Computes result = sum * scale (0-dimensional).
  void finish(Stream stream, const Tensor& scale) const {
    kernels::binary(stream, kernels::BinaryOp::mul, sum_.view(), sum_.view(), broadcast_view(scale, sum_.shape()));
    if (!sum_.is_same(result_)) kernels::copy(stream, result_.view(), sum_.view());
  }

 private:
  Tensor result_, sum_;
};

/// The gradients wanted from run_chunks(), with their dtypes; absent: not wanted.
struct WantedGradients {
  std::optional<DType> dx, dweight;
  bool any() const { return dx || dweight; }
};

/// x (N, C), weight (V, C). Logits have the compute dtype, because a half type is too coarse for the loss of logits
/// near 100. Their gradients have x's dtype, for the products. The gradients of x and weight are multiplied by `scale`
/// (0-dimensional) last. A half-type dx is not scaled, because a row's share of a mean would underflow.
LossAndGradients run_chunks(const Tensor& x, const Tensor& weight, const Tensor& targets, const Tensor& scale,
                            const CrossEntropyOptions& options, const WantedGradients& want) {
  const Stream stream = current_stream(x.device());
  const std::int64_t rows = x.shape()[0], classes = weight.shape()[0];
  const std::int64_t chunk = rows_per_chunk(rows, classes, x.dtype());
  const TensorOptions statistics{compute_dtype(x.dtype()), x.device()};
  const Tensor transposed_weight = transpose(weight, 0, 1);
  LossAndGradients result{.losses = Tensor::empty({rows}, statistics), .dx = {}, .dweight = {}};
  {
    const MemoryScope gradients(Category::gradient);
    if (want.dx) result.dx = Tensor::empty(x.shape(), {*want.dx, x.device()});
    const TensorOptions of_weight{want.dweight.value_or(weight.dtype()), x.device()};
    if (want.dweight)
      result.dweight = rows ? Tensor::empty(weight.shape(), of_weight) : zeros(weight.shape(), of_weight);
  }
  if (rows == 0) return result;

  const MemoryScope scope(Category::workspace);
  const auto room = [&](const std::optional<DType>& gradient, const Shape& shape) {
    return gradient && *gradient != statistics.dtype ? Tensor::empty(shape, statistics) : Tensor();
  };
  const Tensor logits = Tensor::empty({chunk, classes}, statistics), lse = Tensor::empty({chunk}, statistics);
  const Tensor bounded = want.any() && options.softcap > 0 ? Tensor::empty(logits.shape(), statistics) : logits;
  const Tensor dlogits = want.any() && is_half(x.dtype()) ? Tensor::empty(logits.shape(), x.options()) : logits;
  const Tensor one = ones({}, statistics);
  const Tensor dx_room = room(want.dx, {chunk, x.shape()[1]}), dx_scale = want.dx && is_half(*want.dx) ? one : scale;
  const WideGradient dweight(result.dweight, room(want.dweight, weight.shape()));
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const std::int64_t end = std::min(rows, begin + chunk);
    const auto part = [&](const Tensor& of_all) { return slice(of_all, 0, begin, end); };
    const auto head = [&](const Tensor& of_chunk) { return slice(of_chunk, 0, 0, end - begin); };
    const Tensor scores = head(logits), sums = head(lse);
    product(scores, part(x), transposed_weight);
    const View tanh_of = head(bounded).view();
    if (options.softcap > 0) {
      kernels::unary(stream, kernels::UnaryOp::affine, tanh_of, scores.view(), 1.0 / options.softcap);
      kernels::unary(stream, kernels::UnaryOp::tanh, tanh_of, tanh_of);
      kernels::unary(stream, kernels::UnaryOp::affine, scores.view(), tanh_of, options.softcap);
    }
    kernels::cross_entropy(stream, part(result.losses).view(), sums.view(), scores.view(), part(targets).view(),
                           options.ignore_index, options.label_smoothing);
    if (!want.any()) continue;
    kernels::cross_entropy_backward(stream, scores.view(), broadcast_view(one, sums.shape()), scores.view(),
                                    sums.view(), part(targets).view(), options.ignore_index, options.label_smoothing);
    if (options.softcap > 0)
      kernels::unary_backward(stream, kernels::UnaryOp::tanh, scores.view(), scores.view(), scores.view(), tanh_of);
    const Tensor dscores = head(dlogits);
    if (!dlogits.is_same(logits)) kernels::copy(stream, dscores.view(), scores.view());
    if (want.dx) {
      const WideGradient dx(part(result.dx), dx_room.defined() ? head(dx_room) : dx_room);
      dx.add(dscores, weight, true);
      dx.finish(stream, dx_scale);
    }
    if (want.dweight) dweight.add(transpose(dscores, 0, 1), part(x), begin == 0);
  }
  if (want.dweight) dweight.finish(stream, scale);
  return result;
}

/// The gradients made by the forward pass. The first backward on any thread takes them.
class MadeGradients {
 public:
  explicit MadeGradients(const LossAndGradients& made) : dx_(made.dx), dweight_(made.dweight) {}

  /// Returns undefined SavedTensors from the second call on.
  std::pair<SavedTensor, SavedTensor> take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(dx_, {}), std::exchange(dweight_, {})};
  }

 private:
  std::mutex mutex_;
  SavedTensor dx_, dweight_;
};

/// Computes x *= scale for one-element scale. The CPU skips a scale of 1; a device is not synchronized to check it.
void scale_in_place(const Tensor& x, const Tensor& scale) {
  if (!x.defined() || (x.device().is_cpu() && scale.item() == 1.0)) return;
  kernels::binary(current_stream(x.device()), kernels::BinaryOp::mul, x.view(), x.view(),
                  broadcast_view(scale, x.shape()));
}

}  // namespace

Tensor linear_cross_entropy(TensorArg x, const Tensor& weight, const Tensor& targets, CrossEntropyOptions options) {
  const char* const op = "linear_cross_entropy";
  const Operands operands = {{"x", x}, {"weight", weight}, {"targets", targets}};
  check_devices(op, operands);
  check_floating(op, {{"x", x}});
  const std::optional<DType> low = x->dtype() == DType::f64 ? std::nullopt : AutocastScope::current();
  const bool fits = weight.dtype() == x->dtype() || weight.dtype() == compute_dtype(x->dtype()) ||
                    (low && (weight.dtype() == DType::f32 || is_half(weight.dtype())));
  if (!fits) fail<DTypeError>(op, "operands differ in dtype", operands);
  if (x->dim() == 0 || weight.dim() != 2 || weight.shape()[1] != x->shape().back() || targets.shape() != row_shape(x))
    fail<ShapeError>(op, "needs x (..., C), weight (V, C) and targets (...)", operands);
  if (options.reduction == Reduction::none) fail<ValueError>(op, "has no losses per row; use mean or sum", operands);
  const ClassTargets wanted(op, targets, weight.shape()[0], options, operands);

  const DType dtype = compute_dtype(x->dtype());
  const Tensor scale =
      options.reduction == Reduction::sum ? ones({}, {dtype, x->device()}) : wanted.inverse_count(dtype);
  const bool recording = wants_gradient({x, weight});
  WantedGradients want;
  if (recording && x->requires_grad()) want.dx = x->dtype();
  if (recording && weight.requires_grad()) want.dweight = weight.dtype();
  const DType products = low.value_or(x->dtype());
  const auto run = [=](const Tensor& input, const Tensor& table, const Tensor& classes, const Tensor& each) {
    const NoGradGuard no_grad;
    const Shape flat{classes.numel(), table.shape()[1]};
    return run_chunks(reshape(dense(to(input, products)), flat), autocast_to(table, products),
                      reshape(classes, {classes.numel()}), each, options, want);
  };
  const LossAndGradients first = run(x, weight, wanted.rows, scale);
  Tensor loss = sum(first.losses) * scale;
  if (recording)
    record(
        "linear_cross_entropy", {x, weight}, {loss},
        [x = SavedTensor(x), weight = SavedTensor(weight), rows = SavedTensor(wanted.rows), scale = SavedTensor(scale),
         options, run, want, products, made = std::make_shared<MadeGradients>(first)](const BackwardCall& call) {
          const Tensor input = x.unpack(), table = weight.unpack(), classes = rows.unpack();
          const Tensor& grad = call.gradient();
          if (grad_enabled())
            return differentiable_gradients(
                [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                  return {cross_entropy(linear(to(in[0], products), to(in[1], products)), classes, options)};
                },
                {input, table}, {grad});
          // The first backward takes the gradients of the forward pass; a later one recomputes them.
          const auto [saved_dx, saved_dweight] = made->take();
          Tensor dx = saved_dx.unpack(), dweight = saved_dweight.unpack();
          if ((want.dx && !dx.defined()) || (want.dweight && !dweight.defined())) {
            LossAndGradients again = run(input, table, classes, scale.unpack());
            dx = again.dx, dweight = again.dweight;
          }
          scale_in_place(dx, want.dx && is_half(*want.dx) ? grad * scale.unpack() : grad);
          scale_in_place(dweight, grad);
          if (want.dx) dx = reshape(dx, input.shape());
          return Gradients{dx, dweight};
        });
  return loss;
}

}  // namespace poolgrad
