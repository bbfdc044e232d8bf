#include "autograd/functional.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "allocator/base/number.h"
#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad {

namespace {

using Tensors = std::vector<Tensor>;

/// A function's outputs and its arguments.
struct Derivable {
  Tensors arguments, outputs;

  /// Returns the outputs for the caller.
  Tensors results(bool differentiable) const {
    Tensors all;
    for (const Tensor& output : outputs) all.push_back(differentiable ? output : output.detach());
    return all;
  }
};

void check_all_floating(const char* op, const char* what, const Tensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) throw ValueError(fmt::format("[{}] {} {} is undefined", op, what, i));
    if (!is_floating(tensors[i].dtype()))
      throw DTypeError(fmt::format("[{}] {} {} has no derivative: {}", op, what, i, describe(tensors[i])));
  }
}

void check_vectors(const char* op, const Tensors& vectors, const char* what, const Tensors& like) {
  if (vectors.size() != like.size())
    throw ValueError(
        fmt::format("[{}] {} for {}", op, plural(std::ssize(vectors), "vector"), plural(std::ssize(like), what)));
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    if (vectors[i].defined() && TensorMeta(like[i]).matches(vectors[i])) continue;
    const std::string text = fmt::format("[{}] the vector is unlike {} {}: vector {}, {} {}", op, what, i,
                                         describe(vectors[i]), what, describe(like[i]));
    if (!vectors[i].defined()) throw ValueError(text);
    if (vectors[i].shape() != like[i].shape()) throw ShapeError(text);
    if (vectors[i].dtype() != like[i].dtype()) throw DTypeError(text);
    throw DeviceError(text);
  }
}

/// Calls f on views of the inputs if results must be differentiable, otherwise on new leaves.
Derivable evaluate(const char* op, const TensorFunction& f, const Tensors& inputs, bool create_graph) {
  check_all_floating(op, "input", inputs);
  const EnableGradGuard recording;
  Derivable result;
  for (const Tensor& input : inputs)
    result.arguments.push_back(create_graph && input.requires_grad() ? expand(input, input.shape())
                                                                     : input.detach().set_requires_grad());
  result.outputs = f(result.arguments);
  check_all_floating(op, "output", result.outputs);
  return result;
}

Tensor one_number(const char* op, const Derivable& of) {
  if (of.outputs.size() != 1 || of.outputs[0].numel() != 1) {
    std::string found;
    for (const Tensor& output : of.outputs) found += (found.empty() ? "" : ", ") + describe(output);
    throw ShapeError(fmt::format("[{}] the function must give one tensor of one element: {}", op, found));
  }
  return of.outputs[0];
}

/// Returns the derivatives of every element of `output` by each input, one row per element.
Tensors jacobian_of(const Tensor& output, const Tensors& inputs, bool differentiable) {
  std::vector<Tensors> rows(inputs.size());
  for (std::int64_t k = 0; k < output.numel(); ++k) {
    const Tensor one = zeros_like(output);
    one.alias({.shape = {}, .strides = {}, .offset = k}).fill(1.0);
    const Tensors gradients =
        gradients_or_zeros({output}, inputs, {one}, {.retain_graph = true, .create_graph = differentiable});
    for (std::size_t j = 0; j < inputs.size(); ++j) rows[j].push_back(gradients[j]);
  }
  Tensors result;
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    Shape shape = output.shape();
    for (const std::int64_t size : inputs[j].shape()) shape.append(size);
    const GradModeGuard mode(differentiable);
    for (Tensor& row : rows[j]) row = reshape(row, {row.numel()});  // within the limit of dimensions
    result.push_back(rows[j].empty() ? zeros(shape, inputs[j].options()) : reshape(stack(rows[j]), shape));
  }
  return result;
}

/// Returns a scalar function's value and its differentiable gradient.
std::pair<Tensor, Tensors> value_and_gradient(const char* op, const Derivable& of) {
  const Tensor value = one_number(op, of);
  return {value, gradients_or_zeros({value}, of.arguments, {ones_like(value)}, {.create_graph = true})};
}

TensorFunction of_one(const UnaryFunction& f) {
  return [&f](const Tensors& x) { return Tensors{f(x[0])}; };
}

std::pair<Tensor, Tensor> first_of(const std::pair<Tensors, Tensors>& results) {
  return {results.first[0], results.second[0]};
}

}  // namespace

std::pair<Tensors, Tensors> vjp(const TensorFunction& f, const Tensors& inputs, const Tensors& vectors,
                                bool create_graph, CallSite) {
  const Derivable of = evaluate("vjp", f, inputs, create_graph);
  check_vectors("vjp", vectors, "output", of.outputs);
  return {of.results(create_graph),
          gradients_or_zeros(of.outputs, of.arguments, vectors, {.create_graph = create_graph})};
}

std::pair<Tensors, Tensors> jvp(const TensorFunction& f, const Tensors& inputs, const Tensors& vectors,
                                bool create_graph, CallSite) {
  check_all_floating("jvp", "input", inputs);
  check_vectors("jvp", vectors, "input", inputs);
  const Derivable of = evaluate("jvp", f, inputs, create_graph);
  Tensors weights;  // u: its values do not matter, because the result is linear in it
  for (const Tensor& output : of.outputs) weights.push_back(zeros_like(output).set_requires_grad());
  const Tensors products = gradients_or_zeros(of.outputs, of.arguments, weights, {.create_graph = true});
  return {of.results(create_graph), gradients_or_zeros(products, weights, vectors, {.create_graph = create_graph})};
}

std::vector<Tensors> jacobian(const TensorFunction& f, const Tensors& inputs, bool create_graph, CallSite) {
  const Derivable of = evaluate("jacobian", f, inputs, create_graph);
  std::vector<Tensors> result;
  for (const Tensor& output : of.outputs) result.push_back(jacobian_of(output, of.arguments, create_graph));
  return result;
}

std::vector<Tensors> hessian(const TensorFunction& f, const Tensors& inputs, bool create_graph, CallSite) {
  const Derivable of = evaluate("hessian", f, inputs, create_graph);
  std::vector<Tensors> result;
  for (const Tensor& gradient : value_and_gradient("hessian", of).second)
    result.push_back(jacobian_of(gradient, of.arguments, create_graph));
  return result;
}

std::pair<Tensor, Tensors> hessian_vector_product(const TensorFunction& f, const Tensors& inputs,
                                                  const Tensors& vectors, bool create_graph, CallSite) {
  const char* const op = "hessian_vector_product";
  check_all_floating(op, "input", inputs);
  check_vectors(op, vectors, "input", inputs);
  const Derivable of = evaluate(op, f, inputs, create_graph);
  const auto [value, gradient] = value_and_gradient(op, of);
  return {of.results(create_graph)[0],
          gradients_or_zeros(gradient, of.arguments, vectors, {.create_graph = create_graph})};
}

std::pair<Tensor, Tensor> vjp(const UnaryFunction& f, const Tensor& x, const Tensor& vector, bool create_graph,
                              CallSite) {
  return first_of(vjp(of_one(f), Tensors{x}, Tensors{vector}, create_graph));
}

std::pair<Tensor, Tensor> jvp(const UnaryFunction& f, const Tensor& x, const Tensor& vector, bool create_graph,
                              CallSite) {
  return first_of(jvp(of_one(f), Tensors{x}, Tensors{vector}, create_graph));
}

Tensor jacobian(const UnaryFunction& f, const Tensor& x, bool create_graph, CallSite) {
  return jacobian(of_one(f), Tensors{x}, create_graph)[0][0];
}

Tensor hessian(const UnaryFunction& f, const Tensor& x, bool create_graph, CallSite) {
  return hessian(of_one(f), Tensors{x}, create_graph)[0][0];
}

std::pair<Tensor, Tensor> hessian_vector_product(const UnaryFunction& f, const Tensor& x, const Tensor& vector,
                                                 bool create_graph, CallSite) {
  const auto [value, products] = hessian_vector_product(of_one(f), Tensors{x}, Tensors{vector}, create_graph);
  return {value, products[0]};
}

Tensors vmap(const TensorFunction& f, const Tensors& inputs, std::int64_t dim, std::int64_t out_dim, CallSite) {
  std::int64_t slices = -1;
  std::string found;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) throw ValueError(fmt::format("[vmap] input {} is undefined", i));
    found += fmt::format("{}input {} {}", i == 0 ? "" : ", ", i, describe(inputs[i]));
    const std::int64_t own = inputs[i].shape()[normalize_dim("vmap", dim, inputs[i].shape())];
    slices = i == 0 || own == slices ? own : 0;
  }
  if (slices < 1)
    throw ShapeError(fmt::format("[vmap] inputs need the same number of slices, at least one, along dimension {}: {}",
                                 dim, inputs.empty() ? "no inputs" : found));
  std::vector<Tensors> outputs;
  for (std::int64_t i = 0; i < slices; ++i) {
    Tensors arguments;
    for (const Tensor& input : inputs) arguments.push_back(select(input, dim, i));
    const Tensors results = f(arguments);
    if (i == 0) outputs.resize(results.size());
    if (results.size() != outputs.size())
      throw ValueError(fmt::format("[vmap] the function returned {} outputs for slice {}, and {} for slice 0",
                                   results.size(), i, outputs.size()));
    for (std::size_t k = 0; k < results.size(); ++k) outputs[k].push_back(results[k]);
  }
  Tensors stacked;
  for (const Tensors& output : outputs) stacked.push_back(stack(output, out_dim));
  return stacked;
}

Tensor vmap(const UnaryFunction& f, const Tensor& x, std::int64_t dim, std::int64_t out_dim, CallSite) {
  return vmap(of_one(f), Tensors{x}, dim, out_dim)[0];
}

}  // namespace poolgrad
