#include "nn/sgd.h"

#include "allocator/error.h"
#include "kernels/optimizer.h"

namespace poolgrad::nn {

SGD::SGD(NamedTensors parameters, SGDOptions options)
    : Optimizer(std::move(parameters), options.learning_rate), options_(options) {
  if (options.learning_rate < 0 || options.momentum < 0 || options.weight_decay < 0)
    throw ValueError("[sgd] learning rate, momentum and weight decay must not be negative: " +
                     std::to_string(options.learning_rate) + ", " + std::to_string(options.momentum) + ", " +
                     std::to_string(options.weight_decay));
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    throw ValueError("[sgd] nesterov needs momentum and no dampening: " + std::to_string(options.momentum) + ", " +
                     std::to_string(options.dampening));
  if (options.momentum == 0) return;
  for (std::size_t i = 0; i < this->parameters().size(); ++i) momentum_.push_back(add_state(i, "momentum"));
}

void SGD::update(std::size_t index, std::int64_t step, const Tensor& parameter, const Tensor& gradient,
                 double gradient_scale) {
  kernels::sgd(current_stream(parameter.device()),
               {.learning_rate = learning_rate(),
                .momentum = options_.momentum,
                .weight_decay = options_.weight_decay,
                .dampening = options_.dampening,
                .nesterov = options_.nesterov,
                .first_step = step == 1,
                .gradient_scale = gradient_scale},
               parameter.view(), gradient.view(), momentum_.empty() ? View{} : momentum_[index].view());
}

}  // namespace poolgrad::nn
