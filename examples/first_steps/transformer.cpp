// A custom transformer block with a custom attention pattern. The task is to reverse a row of digits: each output
// position attends to itself and to the one position it needs, out of 64.
//
// Expected: an accuracy of 0.1 at first, and 1 after 300 steps.
#include <iostream>

#include <poolgrad/poolgrad.h>

using namespace poolgrad;

struct Block : nn::Layer {
  static constexpr std::int64_t width = 64, heads = 4;
  attention::Pattern pattern;
  nn::RMSNorm before{width}, between{width};
  nn::Linear project{width, 3 * width, {.bias = false}}, output{width, width, {.bias = false}};
  nn::FeedForward feed_forward{width, 4 * width};

  explicit Block(attention::Pattern own) : pattern(std::move(own)) {
    add_module("before", before);
    add_module("between", between);
    add_module("project", project);
    add_module("output", output);
    add_module("feed_forward", feed_forward);
  }
  Tensor forward(const Tensor& x) override {
    const auto packed = split(reshape(project(before(x)), {x.size(0), x.size(1), 3 * heads, width / heads}), 3, 2);
    const Tensor seen = attention::attend(packed[0], packed[1], packed[2], pattern).out;
    const Tensor y = x + output(reshape(seen, x.shape()));
    return y + feed_forward(between(y));
  }
};

int main() {
  manual_seed(1);
  constexpr std::int64_t digits = 32, length = 2 * digits;
  Block block(attention::Pattern::where(length, [](auto i, auto j) { return i == j || i + j == length - 1; }));
  nn::Embedding tokens(11, Block::width), places(length, Block::width);
  nn::Linear head(Block::width, 10);
  nn::NamedTensors parameters;
  const std::pair<const char*, nn::Module*> parts[] = {
      {"block.", &block}, {"tokens.", &tokens}, {"places.", &places}, {"head.", &head}};
  for (const auto& [name, part] : parts)
    for (const auto& [own, tensor] : part->named_parameters()) parameters.emplace_back(name + own, tensor);
  nn::AdamW optimizer(parameters, {.learning_rate = 3e-3});

  for (int step = 1; step <= 300; ++step) {
    const Tensor question = randint(0, 10, {16, digits});
    const Tensor answer = flip(question, 1);
    const Tensor x = cat({question, full({16, digits}, 10, {DType::i64})}, 1);
    const Tensor logits = head(block(tokens(x) + places(arange(0, length, 1, {DType::i64})))[{slice(), slice(digits)}]);
    const Tensor loss = cross_entropy(logits, answer);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step == 1 || step % 100 == 0)
      std::cout << "step " << step << "  loss " << loss.item() << "  accuracy "
                << sum(argmax(logits, -1) == answer).item() / (16 * digits) << '\n';
  }
}
