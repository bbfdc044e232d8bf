#include "examples/support/sampler.h"

#include <algorithm>
#include <cmath>

#include "allocator/memory_scope.h"
#include "autograd/views.h"
#include "examples/support/random.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

/// Draws an index with probability proportional to exp(logit / temperature).
std::size_t draw(const std::vector<double>& logits, double temperature, double unit) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  double total = 0;
  for (const double logit : logits) total += weights.emplace_back(std::exp((logit - largest) / temperature));
  double rest = unit * total;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if ((rest -= weights[i]) < 0) return i;
  return weights.size() - 1;
}

}  // namespace

std::string sample_text(nn::LanguageModel& model, const std::string& prompt, std::int64_t bytes, double temperature,
                        std::uint64_t seed, Device device) {
  const NoGradGuard no_grad;
  auto state = model.new_state();
  const auto room = model.config().context - static_cast<std::int64_t>(prompt.size());
  std::vector<std::int64_t> next(prompt.begin(), prompt.end());
  for (std::int64_t& token : next) token &= 0xff;
  std::string text;
  for (std::int64_t i = 0; i < std::min(bytes, room); ++i) {
    const auto length = static_cast<std::int64_t>(next.size());
    Tensor tokens;
    {
      const MemoryScope scope("sample", Category::input);
      tokens = from_data(next, {1, length}, device);
    }
    const Tensor logits = model.logits(tokens, &state);
    const auto row = select(select(logits, 1, length - 1), 0, 0).to_vector<double>();
    const std::size_t byte = draw(row, temperature, random_unit(seed, static_cast<std::uint64_t>(i)));
    next = {static_cast<std::int64_t>(byte)};
    text += static_cast<char>(byte);
  }
  return text;
}

}  // namespace poolgrad::examples
