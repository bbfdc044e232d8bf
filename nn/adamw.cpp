#include "nn/adamw.h"

#include "allocator/error.h"
#include "kernels/optimizer.h"

namespace poolgrad::nn {

AdamW::AdamW(NamedTensors parameters, AdamWOptions options)
    : Optimizer(std::move(parameters), options.learning_rate), options_(options) {
  if (options.learning_rate < 0 || options.epsilon < 0 || options.weight_decay < 0)
    throw ValueError("[adamw] learning rate, epsilon and weight decay must not be negative: " +
                     std::to_string(options.learning_rate) + ", " + std::to_string(options.epsilon) + ", " +
                     std::to_string(options.weight_decay));
  if (!(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1))
    throw ValueError("[adamw] betas must be in [0, 1): " + std::to_string(options.beta1) + ", " +
                     std::to_string(options.beta2));
  for (std::size_t i = 0; i < this->parameters().size(); ++i) {
    first_.push_back(add_state(i, "first_moment"));
    second_.push_back(add_state(i, "second_moment"));
  }
}

void AdamW::update(std::size_t index, std::int64_t step, const Tensor& parameter, const Tensor& gradient,
                   double gradient_scale) {
  const bool decays = !options_.decay_matrices_only || parameter.rank() > 1;
  kernels::adamw(current_stream(parameter.device()),
                 {.learning_rate = learning_rate(),
                  .beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .epsilon = options_.epsilon,
                  .weight_decay = decays ? options_.weight_decay : 0.0,
                  .step = step,
                  .gradient_scale = gradient_scale},
                 parameter.view(), gradient.view(), first_[index].view(), second_[index].view());
}

}  // namespace poolgrad::nn
