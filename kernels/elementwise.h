// Elementwise kernels on strided views. Operands broadcast by stride 0: every view already has the shape of the output.
// Floating dtypes compute in f32 (f64 for f64), integer and bool dtypes in i64.
#pragma once

#include <cstdint>
#include <string_view>

#include "allocator/stream.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

enum class UnaryOp : std::uint8_t {
  neg,
  abs,
  sign,
  square,
  sqrt,
  rsqrt,
  reciprocal,
  exp,
  expm1,
  log,
  log1p,
  sin,
  cos,
  tanh,
  sigmoid,
  erf,
  relu,
  gelu,
  gelu_tanh,
  silu,
  softplus,
  floor,
  ceil,
  round,
  logical_not,
  is_nan,
  is_finite,
  leaky_relu,  // parameter a: negative slope
  clamp,       // parameters a, b: bounds
  power,       // parameter a: exponent
  affine,      // a * x + b
  quotient     // x / a; integers as in BinaryOp::div
};

enum class BinaryOp : std::uint8_t {
  add,
  sub,
  mul,
  div,
  pow,
  maximum,
  minimum,  // out has the dtype of the operands
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  logical_and,
  logical_or  // out is bool
};

/// "neg", "is_nan", ...: the names of the enumerators.
std::string_view to_string(UnaryOp op);
std::string_view to_string(BinaryOp op);

/// out = op(x). out has the dtype of x, or bool for logical_not, is_nan and is_finite. Throws DTypeError for integers
/// where op is defined on real numbers only (exp, tanh, ...).
void unary(Stream stream, UnaryOp op, const View& out, const View& x, double a = 0.0, double b = 0.0);
/// dx = grad * op'(x), 0 for the piecewise constant ops; `y` is op(x). Both x and y are given; an op reads only what it
/// needs, and the one it does not need may have data == nullptr: see needs_input() and needs_output().
void unary_backward(Stream stream, UnaryOp op, const View& dx, const View& grad, const View& x, const View& y,
                    double a = 0.0, double b = 0.0);
/// Whether the derivative of `op` is written in terms of its input, or of its output.
bool needs_input(UnaryOp op);
bool needs_output(UnaryOp op);

/// out = op(a, b); a and b share a dtype. Integer division truncates towards zero, and x / 0 is 0.
void binary(Stream stream, BinaryOp op, const View& out, const View& a, const View& b);
/// out = a * x + b * y in one pass; all of one dtype. out may be x or y.
void axpby(Stream stream, const View& out, double a, const View& x, double b, const View& y);
/// dx = grad * silu'(gate) * up and dup = grad * silu(gate) belong to out = silu(gate) * up (SwiGLU, Shazeer 2020).
void silu_mul(Stream stream, const View& out, const View& gate, const View& up);
void silu_mul_backward(Stream stream, const View& dgate, const View& dup, const View& grad, const View& gate,
                       const View& up);
/// out = cond ? a : b; cond is bool.
void where(Stream stream, const View& out, const View& cond, const View& a, const View& b);
/// out = x, converting dtype and layout. Float to integer truncates towards zero; to bool is x != 0.
void copy(Stream stream, const View& out, const View& x);
void fill(Stream stream, const View& out, double value);
/// out[i] = start + i * step; out is one-dimensional.
void arange(Stream stream, const View& out, double start, double step);

}  // namespace poolgrad::kernels
