#include "autograd/operators/convolution.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"

namespace poolgrad {
namespace {

/// The windows along one dimension.
struct Window {
  std::int64_t size, stride, padding, dilation, count;
};

/// The arguments of a call, also for its errors.
struct Request {
  const char* op;
  Operands operands;
  Dims stride, padding, dilation;

  /// Returns the windows of `size` along dimension d (0 or 1), which has `length` elements.
  Window window(int d, std::int64_t length, std::int64_t size) const {
    const auto pick = [d](const Dims& list) { return list[std::min(d, list.rank() - 1)]; };
    Window window{size, pick(stride), pick(padding), pick(dilation), 0};
    if (size < 1 || window.stride < 1 || window.dilation < 1 || window.padding < 0)
      fail<ValueError>(op, "a size, stride or dilation is below 1, or a padding negative", operands);
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    std::int64_t room = 0, reach = 0;
    if (__builtin_mul_overflow(window.padding, 2, &room) || __builtin_add_overflow(room, length, &room))
      fail<ShapeError>(
          op, "a padding of " + std::to_string(window.padding) + " makes a dimension of more than 2^63 - 1", operands);
    if (__builtin_mul_overflow(size - 1, window.dilation, &reach) || __builtin_add_overflow(reach, 1, &reach))
      reach = most;
    if (reach > room)
      fail<ShapeError>(op,
                       "a window over " + std::to_string(reach) + " elements does not fit into " + std::to_string(room),
                       operands);
    window.count = (room - reach) / window.stride + 1;
    return window;
  }
  /// Throws ValueError unless each list has one number, or two for two dimensions.
  void check_lists(int dims) const {
    for (const Dims& list : {stride, padding, dilation})
      if (list.rank() < 1 || list.rank() > dims)
        fail<ValueError>(op,
                         dims == 1 ? "a size, stride, padding or dilation is not one number"
                                   : "a size, stride, padding or dilation is not one number or two",
                         operands);
  }
};

/// Returns the windows of x (N, C, H, W): (N, C, rows, columns, KH, KW), differentiable.
Tensor windows_of(const Tensor& x, const Window& rows, const Window& columns, double padding) {
  Tensor padded = x;
  if (rows.padding > 0) padded = pad(padded, 2, rows.padding, rows.padding, padding);
  if (columns.padding > 0) padded = pad(padded, 3, columns.padding, columns.padding, padding);
  return unfold(unfold(padded, 2, rows.size, rows.stride, rows.dilation), 3, columns.size, columns.stride,
                columns.dilation);
}

/// The sizes of a convolution and its three products.
struct Convolution {
  Window rows, columns;
  std::int64_t images, channels, height, width, groups, outputs;  // outputs: O / groups

  std::int64_t inner() const { return channels / groups * rows.size * columns.size; }
  std::int64_t places() const { return rows.count * columns.count; }
  /// Returns the number of images with windows in memory at one time: about 4 M elements. It depends only on the shape,
  /// and so does the order of sums.
  std::int64_t images_per_chunk() const {
    const std::int64_t each = std::max<std::int64_t>(groups * inner() * places(), 1);
    return std::clamp<std::int64_t>((std::int64_t{1} << 22) / each, 1, std::max<std::int64_t>(images, 1));
  }
  /// Calls body(begin, end) for each chunk of images.
  template <class Body>
  void for_chunks(const Body& body) const {
    for (std::int64_t begin = 0; begin < images; begin += images_per_chunk())
      body(begin, std::min(images, begin + images_per_chunk()));
  }

  /// Returns the windows of some images as (n, G, inner, places). For windows of one element, these are the images.
  Tensor unrolled(const Tensor& x) const {
    const Tensor windows = permute(windows_of(x, rows, columns, 0.0), {0, 1, 4, 5, 2, 3});
    return reshape(dense(windows), {x.size(0), groups, inner(), places()});
  }
  Tensor filters(const Tensor& weight) const { return reshape(dense(weight), {groups, outputs, inner()}); }
  /// Returns (n, O, OH, OW) as (n, G, O / G, places).
  Tensor results(const Tensor& out) const { return reshape(out, {out.size(0), groups, outputs, places()}); }

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
    const Stream stream = current_stream(x.device());
    Tensor out = Tensor::empty({images, groups * outputs, rows.count, columns.count}, x.options());
    if (bias.defined())
      kernels::copy(stream, out.view(), broadcast_view(reshape(bias, {groups * outputs, 1, 1}), out.shape()));
    const MemoryScope scope(Category::workspace);
    const Tensor table = filters(weight);
    for_chunks([&](std::int64_t begin, std::int64_t end) {
      product(results(slice(out, 0, begin, end)), table, unrolled(slice(x, 0, begin, end)), bias.defined() ? 1.0 : 0.0);
    });
    return out;
  }

  /// Sums image after image, in f32 for half types.
  Tensor weight_gradient(const Tensor& grad, const Tensor& x, const Tensor& weight) const {
    Tensor out = Tensor::empty_like(weight);
    const MemoryScope scope(Category::workspace);
    const Tensor sums = Tensor::empty({groups, outputs, inner()}, {compute_dtype(x.dtype()), x.device()});
    if (images == 0) kernels::fill(current_stream(x.device()), sums.view(), 0.0);
    for_chunks([&](std::int64_t begin, std::int64_t end) {
      const Tensor windows = transpose(unrolled(slice(x, 0, begin, end)), -2, -1);
      const Tensor weights = results(slice(grad, 0, begin, end));
      for (std::int64_t i = begin; i < end; ++i)
        product(sums, select(weights, 0, i - begin), select(windows, 0, i - begin), i == 0 ? 0.0 : 1.0);
    });
    kernels::copy(current_stream(x.device()), out.view(), reshape(sums, weight.shape()).view());
    return out;
  }

  /// Sums the gradients of overlapping windows, in f32 for half types.
  Tensor input_gradient(const Tensor& grad, const Tensor& weight) const {
    Tensor out = Tensor::empty({images, channels, height, width}, grad.options());
    const MemoryScope scope(Category::workspace);
    const Tensor table = transpose(filters(weight), -2, -1);
    const DType wide = compute_dtype(grad.dtype());
    for_chunks([&](std::int64_t begin, std::int64_t end) {
      const Tensor windows = Tensor::empty({end - begin, groups, inner(), places()}, {wide, grad.device()});
      product(windows, table, results(slice(grad, 0, begin, end)));
      const Tensor apart =
          permute(reshape(windows, {end - begin, channels, rows.size, columns.size, rows.count, columns.count}),
                  {0, 1, 2, 4, 5, 3});
      const Tensor lines = fold(apart, width + 2 * columns.padding, 4, columns.stride, columns.dilation, wide);
      const Tensor whole =
          fold(permute(lines, {0, 1, 3, 4, 2}), height + 2 * rows.padding, 2, rows.stride, rows.dilation, wide);
      const Tensor inside =
          slice(slice(whole, 2, rows.padding, rows.padding + height), 3, columns.padding, columns.padding + width);
      kernels::copy(current_stream(grad.device()), slice(out, 0, begin, end).view(), inside.view());
    });
    return out;
  }

  /// The definition in differentiable operators.
  Tensor definition(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
    const Tensor windows = permute(windows_of(x, rows, columns, 0.0), {0, 1, 4, 5, 2, 3});
    const Tensor out = reshape(
        matmul(reshape(weight, {groups, outputs, inner()}), reshape(windows, {images, groups, inner(), places()})),
        {images, groups * outputs, rows.count, columns.count});
    return bias.defined() ? out + reshape(bias, {groups * outputs, 1, 1}) : out;
  }
};

Tensor convolved(const Convolution& plan, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const NoGradGuard no_grad;
  return plan.forward(x, weight, bias);
}

/// Returns the convolution of x (N, C, H, W) with weight (O, C / groups, KH, KW). `request` has `dims` dimensions; for
/// one dimension x is (N, C, 1, L).
Tensor convolution(const Request& request, int dims, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   std::int64_t groups) {
  const char* const layout = dims == 1 ? "needs x (N, C, L), weight (O, C / groups, K) and bias (O)"
                                       : "needs x (N, C, H, W), weight (O, C / groups, KH, KW) and bias (O)";
  if (groups < 1) fail<ValueError>(request.op, "the number of groups is below 1", request.operands);
  if (!x.defined() || !weight.defined() || x.dim() != 4 || weight.dim() != 4 || weight.size(1) * groups != x.size(1) ||
      weight.size(0) % groups != 0 || (bias.defined() && bias.shape() != Shape{weight.size(0)}))
    fail<ShapeError>(request.op,
                     layout + (groups > 1 ? ", both in " + std::to_string(groups) + " groups" : std::string()),
                     request.operands);
  request.check_lists(dims);
  const Convolution plan{.rows = dims == 1 ? Window{1, 1, 0, 1, 1} : request.window(0, x.size(2), weight.size(2)),
                         .columns = request.window(1, x.size(3), weight.size(3)),
                         .images = x.size(0),
                         .channels = x.size(1),
                         .height = x.size(2),
                         .width = x.size(3),
                         .groups = groups,
                         .outputs = weight.size(0) / groups};
  Tensor out = convolved(plan, x, weight, bias);
  if (wants_gradient({x, weight, bias}))
    record("conv2d", {x, weight, bias}, {out},
           recipe([plan](const Tensor& images, const Tensor& filters,
                         const Tensor& shift) { return convolved(plan, images, filters, shift); },
                  flops(out, plan.inner())),
           [plan, x = SavedTensor(x), weight = SavedTensor(weight),
            bias = SavedTensor(bias)](const BackwardCall& call) -> Gradients {
             const Tensor images = x.unpack(), filters = weight.unpack(), shift = bias.unpack();
             if (grad_enabled())
               return differentiable_gradients(
                   [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                     return {plan.definition(in[0], in[1], in[2])};
                   },
                   {images, filters, shift}, {call.gradient()});
             const Tensor grad = dense(call.gradient());
             Gradients gradients(3);
             if (call.needs(0)) gradients[0] = plan.input_gradient(grad, filters);
             if (call.needs(1)) gradients[1] = plan.weight_gradient(grad, images, filters);
             if (call.needs(2)) gradients[2] = sum(grad, {0, 2, 3});
             return gradients;
           });
  return out;
}

void check_floats(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (bias.defined())
    check_floating(op, {{"x", x}, {"weight", weight}, {"bias", bias}});
  else
    check_floating(op, {{"x", x}, {"weight", weight}});
}

/// Returns the windows (N, C, OH, OW, KH, KW) of x (N, C, H, W), or of (N, C, L) for one dimension.
Tensor pooling_windows(const char* op, int dims, const Tensor& x, const Dims& size, const Dims& stride,
                       const Dims& padding, double filling) {
  const Request request{op, {{"x", x}}, stride.empty() ? size : stride, padding, size};
  check_floating(op, request.operands);
  if (x.dim() != 2 + dims)
    fail<ShapeError>(op, dims == 1 ? "needs x (N, C, L)" : "needs x (N, C, H, W)", request.operands);
  request.check_lists(dims);
  const Request dense_windows{op, request.operands, request.stride, padding, 1};
  const Window columns = dense_windows.window(1, x.size(-1), size.back());
  const Window rows = dims == 1 ? Window{1, 1, 0, 1, 1} : dense_windows.window(0, x.size(2), size[0]);
  if (2 * rows.padding > rows.size || 2 * columns.padding > columns.size)
    fail<ValueError>(op, "the padding is more than half of the window", request.operands);
  return windows_of(dims == 1 ? unsqueeze(x, 2) : x, rows, columns, filling);
}

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

}  // namespace

Tensor conv2d(TensorArg x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  if (const auto cast = autocast("conv2d", {x, weight, bias}); !cast.empty())
    return conv2d(cast[0], cast[1], cast[2], options);
  check_floats("conv2d", x, weight, bias);
  return convolution(
      {"conv2d", {{"x", x}, {"weight", weight}, {"bias", bias}}, options.stride, options.padding, options.dilation}, 2,
      x, weight, bias, options.groups);
}

Tensor conv1d(TensorArg x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  if (const auto cast = autocast("conv2d", {x, weight, bias}); !cast.empty())
    return conv1d(cast[0], cast[1], cast[2], options);
  check_floats("conv1d", x, weight, bias);
  const auto flat = [](const Tensor& of_lines) { return of_lines.dim() == 3 ? unsqueeze(of_lines, 2) : Tensor(); };
  return squeeze(
      convolution(
          {"conv1d", {{"x", x}, {"weight", weight}, {"bias", bias}}, options.stride, options.padding, options.dilation},
          1, flat(x), flat(weight), bias, options.groups),
      2);
}

Tensor max_pool2d(TensorArg x, const Dims& size, const Dims& stride, const Dims& padding) {
  return max(pooling_windows("max_pool2d", 2, x, size, stride, padding, minus_infinity), {-2, -1});
}
Tensor avg_pool2d(TensorArg x, const Dims& size, const Dims& stride, const Dims& padding) {
  return mean(pooling_windows("avg_pool2d", 2, x, size, stride, padding, 0.0), {-2, -1});
}
Tensor max_pool1d(TensorArg x, const Dims& size, const Dims& stride, const Dims& padding) {
  return max(pooling_windows("max_pool1d", 1, x, size, stride, padding, minus_infinity), {2, -2, -1});
}
Tensor avg_pool1d(TensorArg x, const Dims& size, const Dims& stride, const Dims& padding) {
  return mean(pooling_windows("avg_pool1d", 1, x, size, stride, padding, 0.0), {2, -2, -1});
}

}  // namespace poolgrad
