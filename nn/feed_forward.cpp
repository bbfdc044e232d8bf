#include "nn/feed_forward.h"

#include "autograd/unary.h"

namespace poolgrad::nn {

FeedForward::FeedForward(std::int64_t width, std::int64_t hidden, FeedForwardOptions options,
                         const ParameterOptions& parameters)
    : kind_(options.kind),
      up_(width, hidden, {.bias = options.bias}, parameters),
      down_(hidden, width, {.bias = options.bias, .deviation = options.down_deviation}, parameters) {
  add_module("up", up_);
  if (kind_ == FeedForwardKind::swiglu)
    add_module("gate", gate_.emplace(width, hidden, LinearOptions{.bias = options.bias}, parameters));
  add_module("down", down_);
}

Tensor FeedForward::forward(const Tensor& x) {
  if (kind_ == FeedForwardKind::swiglu) return down_(silu_mul((*gate_)(x), up_(x)));
  return down_(gelu(up_(x), kind_ == FeedForwardKind::gelu ? GeluKind::tanh : GeluKind::exact));
}

}  // namespace poolgrad::nn
