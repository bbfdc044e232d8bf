// Anomaly mode names the operator that made the first number that is not finite.
#include "autograd/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using namespace local;

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor logarithm(const Tensor& x) {
  Tensor out = Tensor::empty_like(x);
  kernels::unary({}, kernels::UnaryOp::log, out.view(), x.view());
  if (wants_gradient({x}))
    record("logarithm", {x}, {out}, [x = SavedTensor(x)](const BackwardCall& call) -> Gradients {
      return {run_binary(kernels::BinaryOp::div, call.gradient(), x.unpack())};
    });
  return out;
}

Tensor matrix(std::initializer_list<double> values) {
  return from_data<double>(values, {2, static_cast<std::int64_t>(values.size()) / 2}).set_requires_grad();
}

TEST(AnomalyMode, NamesTheForwardOperatorAndTheFirstBadIndex) {
  Tensor x = matrix({1, 2, 3, 4, -5, -6});
  AnomalyMode anomaly;
  EXPECT_EQ(message_of([&] { total(logarithm(scaled(x, 1))); }),
            "[logarithm] forward produced nan in output 0 (2, 3) f64 on cpu at (1, 1); inputs (2, 3) f64 on cpu");
  EXPECT_EQ(message_of([&] { exponential(scaled(x, 1000)); }),
            "[exponential] forward produced inf in output 0 (2, 3) f64 on cpu at (0, 0); inputs (2, 3) f64 on cpu");
}

TEST(AnomalyMode, NamesTheOperatorWithTheBadGradient) {
  Tensor x = matrix({1, 2, 3, 4, 0, 6});
  AnomalyMode anomaly;
  Tensor y = total(exponential(logarithm(x)));  // log 0 = -infinity is a legal mask; its derivative is not finite
  EXPECT_EQ(message_of([&] { y.backward(); }),
            "[logarithm] backward produced nan in the gradient of input 0 (2, 3) f64 on cpu at (1, 1); "
            "forward inputs (2, 3) f64 on cpu");
}

TEST(AnomalyMode, AcceptsInfinityInMasks) {
  Tensor x = matrix({-infinity, 1, 2, 3});
  AnomalyMode anomaly;
  EXPECT_EQ(message_of([&] { total(exponential(x)).backward(); }), "");
}

TEST(AnomalyMode, EndsWithItsGuard) {
  Tensor x = matrix({-1, 1});
  EXPECT_FALSE(anomaly_mode_enabled());
  {
    AnomalyMode outer;
    { AnomalyMode inner; }
    EXPECT_TRUE(anomaly_mode_enabled());
  }
  EXPECT_FALSE(anomaly_mode_enabled());
  EXPECT_NO_THROW(logarithm(x));
}

TEST(AnomalyMode, FreesTheGraphItStops) {
  Tensor x = matrix({-1, 1});
  const std::int64_t nodes = live_node_count();
  {
    AnomalyMode anomaly;
    EXPECT_THROW(logarithm(scaled(x, 2)), Error);
  }
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(AnomalyMode, ReadsNothingOnTheSimulatedDevice) {
  Tensor x = ones({8}, {.device = {DeviceType::sim, 0}}).set_requires_grad();
  AnomalyMode anomaly;
  EXPECT_NO_THROW(total(times(x, x)).backward());
}

}  // namespace
}  // namespace poolgrad
