// Gradients work in a program that calls no operator: the linker must keep the tape.
#include <gtest/gtest.h>

#include "tensor/creation.h"

namespace poolgrad {
namespace {

TEST(Linking, GradientsWorkInAProgramWithoutOperatorCalls) {
  Tensor x = ones({3}).set_requires_grad();
  x.backward(full({3}, 2.0));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{2, 2, 2}));
}

}  // namespace
}  // namespace poolgrad
