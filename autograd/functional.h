// Derivatives of functions: products with a Jacobian from either side, whole Jacobians and Hessians. Like PyTorch's
// autograd.functional, they use the tape backwards.
//
//   const auto [y, slope] = jvp([](const Tensor& x) { return tanh(x); }, x, direction);
//   const Tensor h = hessian([](const Tensor& x) { return sum(exp(x) * x); }, x);
//
// Functions run once, with grad mode on, on their own handles: no .grad() changes. Inputs and outputs are floating
// (DTypeError). An output that does not depend on an input gives zeros. Captured tensors count as constants. With
// `create_graph`, results are differentiable by captured tensors and by inputs that require a gradient; otherwise they
// have no gradient record. A vector that does not match its input or output throws ShapeError, DTypeError or
// DeviceError. Exceptions of the function pass through.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "autograd/gradcheck.h"
#include "tensor/tensor.h"

namespace poolgrad {

using UnaryFunction = std::function<Tensor(const Tensor&)>;

/// Returns f(inputs) and v^T J: the gradients of sum_i <vectors_i, f(inputs)_i> with respect to the inputs. `vectors`
/// match the outputs. Takes one forward and one backward pass.
std::pair<std::vector<Tensor>, std::vector<Tensor>> vjp(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                                        const std::vector<Tensor>& vectors, bool create_graph = false,
                                                        CallSite = {});
std::pair<Tensor, Tensor> vjp(const UnaryFunction& f, const Tensor& x, const Tensor& vector, bool create_graph = false,
                              CallSite = {});

/// Returns f(inputs) and J v: the derivatives of the outputs along `vectors`, which match the inputs. Uses double
/// backward: u^T J is linear in u, and its own vjp with v is J v (Townsend 2017). Costs a forward and about two
/// backward passes, and needs a second derivative of every operator.
std::pair<std::vector<Tensor>, std::vector<Tensor>> jvp(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                                        const std::vector<Tensor>& vectors, bool create_graph = false,
                                                        CallSite = {});
std::pair<Tensor, Tensor> jvp(const UnaryFunction& f, const Tensor& x, const Tensor& vector, bool create_graph = false,
                              CallSite = {});

/// Returns [i][j]: the derivative of output i by input j, with shape (shape of the output..., shape of the input...)
/// and the dtype of the input. Takes a backward pass for each element of each output.
std::vector<std::vector<Tensor>> jacobian(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                          bool create_graph = false, CallSite = {});
Tensor jacobian(const UnaryFunction& f, const Tensor& x, bool create_graph = false, CallSite = {});

/// Returns [i][j]: the second derivatives by inputs i and j, with shape (shape of input i..., shape of input j...). The
/// function must have one output of one element (ShapeError). Takes a backward pass for each element of each input.
std::vector<std::vector<Tensor>> hessian(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                         bool create_graph = false, CallSite = {});
Tensor hessian(const UnaryFunction& f, const Tensor& x, bool create_graph = false, CallSite = {});

/// Returns f(inputs), one output of one element (ShapeError), and its Hessian times `vectors`, which match the inputs.
/// It is the gradient of <gradient, v> (Pearlmutter 1994), without the Hessian itself.
std::pair<Tensor, std::vector<Tensor>> hessian_vector_product(const TensorFunction& f,
                                                              const std::vector<Tensor>& inputs,
                                                              const std::vector<Tensor>& vectors,
                                                              bool create_graph = false, CallSite = {});
std::pair<Tensor, Tensor> hessian_vector_product(const UnaryFunction& f, const Tensor& x, const Tensor& vector,
                                                 bool create_graph = false, CallSite = {});

/// Applies f to every slice of the inputs along `dim`, in order, and stacks the outputs along `out_dim`. For functions
/// without a batch dimension, such as the gradient of one example. It is a loop, as fast as one, and differentiable
/// like f. Inputs may have any dtype; f captures operands that all slices share. Throws ShapeError if the inputs have
/// different numbers of slices or none, and ValueError if f returns different numbers of outputs.
std::vector<Tensor> vmap(const TensorFunction& f, const std::vector<Tensor>& inputs, std::int64_t dim = 0,
                         std::int64_t out_dim = 0, CallSite = {});
Tensor vmap(const UnaryFunction& f, const Tensor& x, std::int64_t dim = 0, std::int64_t out_dim = 0, CallSite = {});

}  // namespace poolgrad
