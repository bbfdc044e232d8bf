// Defines a custom operator and checks its gradient.
//
// soft_cap(x) = cap * tanh(x / cap) keeps values within (-cap, cap). The program compares its first and second
// derivatives with finite differences, then those of a backward with a common mistake (the square is missing).
//
// Expected: the correct one passes gradcheck and gradgradcheck; for the wrong one the report names the worst element.
#include <iostream>

#include <poolgrad/poolgrad.h>

using namespace poolgrad;

/// d/dx cap * tanh(x / cap) = 1 - (y / cap)^2: the backward needs only the output, so it saves only that.
class SoftCap : public Function {
 public:
  explicit SoftCap(double cap) : cap_(cap) {}

  Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    const Tensor y = cap_ * tanh(inputs[0] / cap_);
    context.save(y);
    return y;
  }
  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    const Tensor t = context.saved(0) / cap_;
    return {gradient * (1.0 - t * t)};  // differentiable operators, so second derivatives work
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

int main() {
  Generator generator(1);
  const Tensor x = randn({3, 4}, {.dtype = DType::f64}, generator).set_requires_grad();
  const auto right = [](const Tensor& a) { return apply<SoftCap>("soft_cap", {a}, 2.0); };
  const auto wrong = [](const Tensor& a) { return apply<WrongSoftCap>("soft_cap", {a}, 2.0); };

  const GradcheckReport first = gradcheck(right, x), second = gradgradcheck(right, x);
  std::cout << "a right backward\n" << first << '\n' << second << "\n\n";
  const GradcheckReport mistake = gradcheck(wrong, x);
  std::cout << "a wrong backward\n" << mistake << '\n';
  return first && second && !mistake ? 0 : 1;
}
