// Derivatives of functions rather than of tensors: products with a Jacobian from either side, whole Jacobians and
// Hessians. As in PyTorch's autograd.functional, and by the same means: the tape, backwards.
//
//   const auto [y, slope] = jvp([](const Tensor& x) { return tanh(x); }, x, direction);
//   const Tensor h = hessian([](const Tensor& x) { return sum(exp(x) * x); }, x);
//
// Functions are called once, with grad mode on, on handles of their own: no .grad() changes. Inputs and outputs are
// floating (DTypeError). An output that does not depend on an input gives zeros. Tensors that a function captures count
// as constants. With `create_graph` results are differentiable by inputs that require a gradient and by captured
// tensors; otherwise they have no gradient record. A vector unlike its input or output throws ShapeError, DTypeError or
// DeviceError that shows both. Exceptions of the function pass through.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "autograd/gradcheck.h"
#include "tensor/tensor.h"

namespace poolgrad {

using UnaryFunction = std::function<Tensor(const Tensor&)>;

/// f(inputs), and the gradients of sum_i <vectors_i, f(inputs)_i> with respect to the inputs: v^T J, one forward and
/// one backward pass. `vectors` are like the outputs.
std::pair<std::vector<Tensor>, std::vector<Tensor>> vjp(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                                        const std::vector<Tensor>& vectors, bool create_graph = false,
                                                        CallSite = {});
std::pair<Tensor, Tensor> vjp(const UnaryFunction& f, const Tensor& x, const Tensor& vector, bool create_graph = false,
                              CallSite = {});

/// f(inputs), and the derivatives of the outputs along `vectors`, which are like the inputs: J v. Forward mode by
/// double backward: u^T J is linear in u, and its own vjp with v is J v (Townsend 2017). It costs a forward and about
/// two backward passes, and needs a second derivative of every operator, as create_graph does.
std::pair<std::vector<Tensor>, std::vector<Tensor>> jvp(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                                        const std::vector<Tensor>& vectors, bool create_graph = false,
                                                        CallSite = {});
std::pair<Tensor, Tensor> jvp(const UnaryFunction& f, const Tensor& x, const Tensor& vector, bool create_graph = false,
                              CallSite = {});

/// [i][j]: the derivative of output i by input j, of shape (shape of the output..., shape of the input...), in the
/// dtype of the input. A backward pass for each element of each output.
std::vector<std::vector<Tensor>> jacobian(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                          bool create_graph = false, CallSite = {});
Tensor jacobian(const UnaryFunction& f, const Tensor& x, bool create_graph = false, CallSite = {});

/// [i][j]: the second derivatives of a function with one output of one element (ShapeError), by inputs i and j, of
/// shape (shape of input i..., shape of input j...). A backward pass for each element of each input.
std::vector<std::vector<Tensor>> hessian(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                         bool create_graph = false, CallSite = {});
Tensor hessian(const UnaryFunction& f, const Tensor& x, bool create_graph = false, CallSite = {});

/// f(inputs), one element of one output (ShapeError), and its Hessian times `vectors`, which are like the inputs: the
/// gradient of <gradient, v> (Pearlmutter 1994), without the Hessian itself.
std::pair<Tensor, std::vector<Tensor>> hessian_vector_product(const TensorFunction& f,
                                                              const std::vector<Tensor>& inputs,
                                                              const std::vector<Tensor>& vectors,
                                                              bool create_graph = false, CallSite = {});
std::pair<Tensor, Tensor> hessian_vector_product(const UnaryFunction& f, const Tensor& x, const Tensor& vector,
                                                 bool create_graph = false, CallSite = {});

/// f of every slice of the inputs along `dim`, in order, with outputs stacked along `out_dim`: for functions without a
/// batch dimension, such as the gradient of one example. A loop, and as fast as one; differentiable as f is. Inputs of
/// any dtype; f captures operands that all slices share. ShapeError if the inputs have unequal numbers of slices, or
/// none; ValueError if f gives unequal numbers of outputs.
std::vector<Tensor> vmap(const TensorFunction& f, const std::vector<Tensor>& inputs, std::int64_t dim = 0,
                         std::int64_t out_dim = 0, CallSite = {});
Tensor vmap(const UnaryFunction& f, const Tensor& x, std::int64_t dim = 0, std::int64_t out_dim = 0, CallSite = {});

}  // namespace poolgrad
