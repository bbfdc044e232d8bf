// A user's own differentiable operator, checked.
//
// soft_cap(x) = cap * tanh(x / cap) keeps logits within (-cap, cap). This program writes it as a Function, checks its
// first and second derivatives against finite differences, and then shows what the report looks like for a backward
// with a common mistake in it (the square is missing).
//
//   ./custom_gradient [--rows N] [--columns N] [--cap C] [--seed S]
//
// Expected output (the digits of the errors may differ):
//
//   soft_cap with cap 2 of a (3, 4) f64 tensor; largest |x| 1.2, largest |soft_cap(x)| 1.1
//
//   a right backward
//   gradcheck passed: 12 elements of 1 inputs, largest relative error 7.2e-11 at element (2, 3) of input 0 ...
//   gradgradcheck passed: 24 elements of 2 inputs, largest relative error 3.5e-10 at element (1, 0) of input 0 ...
//
//   a wrong backward
//   gradcheck failed at element (0, 1) of input 0 (3, 4) f64 on cpu
//     analytic        -0.1466741212
//     numeric         -0.0783609284  (central difference, epsilon 1e-06)
//     relative error  0.466  (allowed: 1e-07 + 1e-05 |numeric|)
//     one-sided       -0.07836094681 from the right, -0.07836090998 from the left: they agree, no kink is near
//     wrong elements  12 of 12 of input 0
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "autograd/engine/function.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "tensor/creation.h"

namespace {

using poolgrad::Function;
using poolgrad::FunctionContext;
using poolgrad::Gradients;
using poolgrad::Tensor;

/// d/dx cap * tanh(x / cap) = 1 - (y / cap)^2: the backward needs the output alone, so that is what it saves.
class SoftCap : public Function {
 public:
  explicit SoftCap(double cap) : cap_(cap) {}

  Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    const Tensor y = cap_ * poolgrad::tanh(inputs[0] / cap_);
    context.save(y);
    return y;
  }

  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    const Tensor t = context.saved(0) / cap_;
    return {gradient * (1.0 - t * t)};  // written with differentiable operators: second derivatives come for free
  }

 protected:
  double cap_;
};

class WrongSoftCap : public SoftCap {
 public:
  using SoftCap::SoftCap;
  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    return {gradient * (1.0 - context.saved(0) / cap_)};
  }
};

double largest(const Tensor& x) {
  double result = 0.0;
  for (double value : x.to_vector<double>()) result = std::max(result, std::abs(value));
  return result;
}

int run(std::int64_t rows, std::int64_t columns, double cap, std::uint64_t seed) {
  poolgrad::Generator generator(seed);
  Tensor x = poolgrad::randn({rows, columns}, {.dtype = poolgrad::DType::f64}, generator).set_requires_grad();
  const auto right = [cap](const std::vector<Tensor>& inputs) {
    return std::vector{poolgrad::apply<SoftCap>("soft_cap", inputs, cap)};
  };
  const auto wrong = [cap](const std::vector<Tensor>& inputs) {
    return std::vector{poolgrad::apply<WrongSoftCap>("soft_cap", inputs, cap)};
  };

  fmt::print("soft_cap with cap {:g} of a {} f64 tensor; largest |x| {:.2g}, largest |soft_cap(x)| {:.2g}\n", cap,
             poolgrad::to_string(x.shape()), largest(x), largest(right({x})[0]));
  const poolgrad::GradcheckReport first = poolgrad::gradcheck(right, {x});
  const poolgrad::GradcheckReport second = poolgrad::gradgradcheck(right, {x});
  fmt::print("\na right backward\n{}\n{}\n", first.text, second.text);
  const poolgrad::GradcheckReport mistake = poolgrad::gradcheck(wrong, {x});
  fmt::print("\na wrong backward\n{}\n", mistake.text);
  return first && second && !mistake ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Writes a differentiable operator and checks its gradient"};
  std::int64_t rows = 3, columns = 4;
  double cap = 2.0;
  std::uint64_t seed = 1;
  app.add_option("--rows", rows, "Rows of the input")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--columns", columns, "Columns of the input")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--cap", cap, "Bound of the output")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seed", seed, "Seed of the input")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return run(rows, columns, cap, seed);
}
