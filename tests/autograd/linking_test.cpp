// A program that never calls an operator still has gradients: the linker must not drop the tape.
#include <gtest/gtest.h>

#include "tensor/creation.h"

namespace poolgrad {
namespace {

TEST(Linking, GradientsWorkInAProgramThatCallsNoOperator) {
  Tensor x = ones({3}).set_requires_grad();
  x.backward(full({3}, 2.0));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{2, 2, 2}));
}

}  // namespace
}  // namespace poolgrad
