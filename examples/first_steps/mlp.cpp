// Classifies two interleaved spirals with a small perceptron: a model, a loss, an optimizer and a loop.
//
// Expected: an accuracy of about 0.5 at first, and above 0.97 after 1000 steps.
#include <iostream>
#include <numbers>

#include <poolgrad/poolgrad.h>

using namespace poolgrad;

int main() {
  manual_seed(1);
  // Points of two arms, half a turn apart, with some noise: x (n, 2), arm (n).
  constexpr std::int64_t n = 512;
  const Tensor arm = randint(0, 2, {n}), turn = sqrt(rand({n}));
  const Tensor angle = turn * (3 * std::numbers::pi) + to(arm, DType::f32) * std::numbers::pi;
  const Tensor x = stack({turn * cos(angle), turn * sin(angle)}, 1) + randn({n, 2}) * 0.02;

  nn::Sequential model(std::make_unique<nn::Linear>(2, 64), relu, std::make_unique<nn::Linear>(64, 64), relu,
                       std::make_unique<nn::Linear>(64, 2));
  nn::AdamW optimizer(model.named_parameters(), {.learning_rate = 3e-3});
  for (int step = 1; step <= 1000; ++step) {
    const Tensor logits = model(x);
    const Tensor loss = cross_entropy(logits, arm);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step == 1 || step % 250 == 0)
      std::cout << "step " << step << "  loss " << loss.item() << "  accuracy "
                << sum(argmax(logits, -1) == arm).item() / n << '\n';
  }
}
