// Elementwise kernels on strided views. Operands broadcast by stride 0: every view already has the shape of the output.
// Floating dtypes compute in f32 (f64 for f64), integer and bool dtypes in i64.
#pragma once

#include <cstdint>
#include <string_view>

#include "allocator/stream.h"
#include "kernels/functors/arithmetic_sequence.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

// clang-format off
/// Every operation and its functor in kernels/functors/elementwise.h. Parameters: leaky_relu has the negative slope
/// a, elu the factor a, clamp the bounds a and b, power the exponent a. affine is a * x + b. quotient is x / a, for
/// integers as BinaryOp::div.
#define POOLGRAD_UNARY_OPS(OP) \
  OP(neg, Neg) OP(abs, Abs) OP(sign, Sign) OP(square, Square) OP(sqrt, Sqrt) OP(rsqrt, Rsqrt) \
  OP(reciprocal, Reciprocal) OP(exp, Exp) OP(expm1, Expm1) OP(log, Log) OP(log1p, Log1p) OP(log2, Log2) OP(log10, Log10) OP(exp2, Exp2) \
  OP(sin, Sin) OP(cos, Cos) \
  OP(tan, Tan) OP(asin, Asin) OP(acos, Acos) OP(atan, Atan) OP(sinh, Sinh) OP(cosh, Cosh) \
  OP(tanh, Tanh) OP(sigmoid, Sigmoid) OP(erf, Erf) OP(relu, Relu) OP(gelu, Gelu) OP(gelu_tanh, GeluTanh) \
  OP(silu, Silu) OP(mish, Mish) OP(elu, Elu) OP(softplus, Softplus) OP(floor, Floor) OP(ceil, Ceil) OP(round, Round) \
  OP(logical_not, LogicalNot) OP(isnan, IsNan) OP(isfinite, IsFinite) \
  OP(leaky_relu, LeakyRelu) OP(clamp, Clamp) OP(power, Power) OP(affine, Affine) OP(quotient, Quotient) \
  OP(power_of_two, PowerOfTwo)
/// Comparisons, logical_and and logical_or give bool, all others the dtype of the operands. maximum_share is the share
/// of a in the gradient of maximum(a, b).
#define POOLGRAD_BINARY_OPS(OP) \
  OP(add, Add) OP(sub, Sub) OP(mul, Mul) OP(div, Div) OP(fmod, Fmod) OP(remainder, Remainder) OP(pow, Pow) OP(atan2, Atan2) \
  OP(maximum, Maximum) OP(minimum, Minimum) \
  OP(eq, Equal) OP(ne, NotEqual) OP(lt, Less) OP(le, LessEqual) OP(gt, Greater) OP(ge, GreaterEqual) \
  OP(logical_and, LogicalAnd) OP(logical_or, LogicalOr) OP(mul_no_nan, MulNoNan) \
  OP(maximum_share, MaximumShare) OP(minimum_share, MinimumShare)

#define POOLGRAD_ENUMERATOR(name, functor) name,
enum class UnaryOp : std::uint8_t { POOLGRAD_UNARY_OPS(POOLGRAD_ENUMERATOR) };
enum class BinaryOp : std::uint8_t { POOLGRAD_BINARY_OPS(POOLGRAD_ENUMERATOR) };
#undef POOLGRAD_ENUMERATOR
// clang-format on

/// "neg", "isnan", ...: the names of the enumerators.
std::string_view to_string(UnaryOp op);
std::string_view to_string(BinaryOp op);

/// out = op(x). out has the dtype of x, or bool for logical_not, isnan and isfinite. Throws DTypeError for integers
/// if op needs real numbers (exp, tanh, ...).
void unary(Stream stream, UnaryOp op, const View& out, const View& x, double a = 0.0, double b = 0.0);
/// dx = grad * op'(x), and 0 for piecewise constant ops; `y` is op(x). An op reads x or y only if needs_input() or
/// needs_output() says so. The other view may have data == nullptr.
void unary_backward(Stream stream, UnaryOp op, const View& dx, const View& grad, const View& x, const View& y,
                    double a = 0.0, double b = 0.0);
/// Whether the derivative of `op` reads its input, or its output.
bool needs_input(UnaryOp op);
bool needs_output(UnaryOp op);

/// out = op(a, b); a and b share a dtype. Integer division truncates towards zero, and x / 0 is 0. Throws DTypeError
/// for atan2 of integers.
void binary(Stream stream, BinaryOp op, const View& out, const View& a, const View& b);
/// out = a * x + b * y in one pass; all of one dtype. out may be x or y.
void axpby(Stream stream, const View& out, double a, const View& x, double b, const View& y);
/// out = silu(gate) * up (SwiGLU, Shazeer 2020). Backward: dgate = grad * silu'(gate) * up, dup = grad * silu(gate).
void silu_mul(Stream stream, const View& out, const View& gate, const View& up);
void silu_mul_backward(Stream stream, const View& dgate, const View& dup, const View& grad, const View& gate,
                       const View& up);
/// out = cond ? a : b; cond is bool.
void where(Stream stream, const View& out, const View& cond, const View& a, const View& b);
/// out = x, converting dtype and layout; narrowed() in dtype.h defines the conversion.
void copy(Stream stream, const View& out, const View& x);
void fill(Stream stream, const View& out, double value);
/// out[i] = numbers.at(i), rounded once; out is one-dimensional.
void arange(Stream stream, const View& out, const ArithmeticSequence& numbers);

}  // namespace poolgrad::kernels
