// A language model in whole passes, under checkpoints and in chunks, for tests of mixers.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "nn/chunked.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/test_seed.h"

namespace poolgrad::attention::testing_support {

/// Adds random numbers to all parameters: heads and feed-forward layers start at 0.
inline void disturb_parameters(nn::LanguageModel& model, Generator& generator) {
  const NoGradGuard guard;
  for (Tensor& parameter : model.parameters())
    parameter.copy_from(parameter + randn(parameter.shape(), parameter.options(), generator) * 0.2);
}

/// Expects the loss and the gradients of 40 positions under checkpoints, bit for bit, and in chunks of 7. The model
/// computes in f64 and knows 11 tokens.
inline void expect_same_loss_in_chunks_and_under_checkpoints(nn::LanguageModel& model, Generator& generator) {
  const Tensor tokens = randint(0, 11, {2, 40}, {.dtype = DType::i64}, generator),
               targets = randint(0, 11, {2, 40}, {.dtype = DType::i64}, generator);
  const auto gradients = [&](const Tensor& loss) {
    model.zero_grad();
    loss.backward();
    std::vector<Tensor> all;
    for (const Tensor& parameter : model.parameters()) all.push_back(parameter.grad().copy());
    return all;
  };
  const Tensor loss = model.loss(tokens, targets, true);
  const std::vector<Tensor> expected = gradients(loss);
  model.set_checkpointing(nn::Checkpointing::parse("block"));
  const Tensor again = model.loss(tokens, targets, true);
  const std::vector<Tensor> checkpointed = gradients(again);
  EXPECT_TRUE(bit_equal(again, loss));
  model.set_checkpointing({});
  const Tensor chunked = nn::chunked_loss(model, tokens, targets, {.chunk = 7});
  const std::vector<Tensor> by_chunks = gradients(chunked);
  EXPECT_TRUE(allclose(chunked, loss, 1e-12, 1e-12)) << "seed " << test_seed();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(bit_equal(checkpointed[i], expected[i])) << i;
    EXPECT_TRUE(allclose(by_chunks[i], expected[i], 1e-9, 1e-9)) << i << " seed " << test_seed();
  }
}

}  // namespace poolgrad::attention::testing_support
