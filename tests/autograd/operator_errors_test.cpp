// Error messages of operators: the same text on every device, before any allocation.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/operators.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

constexpr Device sim{DeviceType::sim, 0};

/// The text of the E that `call` throws.
template <class E, class Call>
std::string text_of(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

Tensor f32(const Shape& shape, Device device = cpu) { return zeros(shape, {.device = device}); }
Tensor zeros_f64(const Shape& shape) { return zeros(shape, {.dtype = DType::f64}); }
Tensor i64(const Shape& shape, Device device = cpu) { return zeros(shape, {.dtype = DType::i64, .device = device}); }
Tensor boolean(const Shape& shape) { return zeros(shape, {.dtype = DType::boolean}); }

TEST(OperatorErrors, NameTheOperatorTheReasonAndEveryOperand) {
  EXPECT_EQ(text_of<ShapeError>([] {
              matmul(f32({4, 8}), f32({9, 2}));
            }),
            "[matmul] inner dimensions differ: lhs (4, 8) f32 on cpu, rhs (9, 2) f32 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] {
              f32({2, 3}) + f32({4});
            }),
            "[add] shapes do not broadcast: lhs (2, 3) f32 on cpu, rhs (4,) f32 on cpu");
  EXPECT_EQ(text_of<DTypeError>([] { f32({2}) * zeros_f64({2}); }),
            "[mul] operands differ in dtype: lhs (2,) f32 on cpu, rhs (2,) f64 on cpu");
  EXPECT_EQ(text_of<DeviceError>([] { f32({2}) - f32({2}, sim); }),
            "[sub] operands live on different devices: lhs (2,) f32 on cpu, rhs (2,) f32 on sim:0");
  EXPECT_EQ(text_of<DTypeError>([] { exp(i64({3})); }), "[exp] needs a floating dtype: x (3,) i64 on cpu");
  EXPECT_EQ(text_of<ValueError>([] { add(f32({3}), {}); }), "[add] rhs is undefined: lhs (3,) f32 on cpu");
}

TEST(OperatorErrors, AreTheSameOnASimulatedDevice) {
  EXPECT_EQ(text_of<ShapeError>([] {
              matmul(f32({4, 8}, sim), f32({9, 2}, sim));
            }),
            "[matmul] inner dimensions differ: lhs (4, 8) f32 on sim:0, rhs (9, 2) f32 on sim:0");
  EXPECT_EQ(text_of<ShapeError>([] {
              layer_norm(f32({2, 5}, sim), f32({4}, sim));
            }),
            "[layer_norm] weight and bias must be as long as the last dimension of x: x (2, 5) f32 on sim:0, "
            "weight (4,) f32 on sim:0");
}

TEST(OperatorErrors, NameBadProducts) {
  EXPECT_EQ(text_of<ShapeError>([] {
              matmul(f32({2, 3, 4}), f32({5, 4, 2}));
            }),
            "[matmul] batch dimensions do not broadcast: lhs (2, 3, 4) f32 on cpu, rhs (5, 4, 2) f32 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] { matmul(f32({4}), f32({3})); }),
            "[matmul] inner dimensions differ: lhs (4,) f32 on cpu, rhs (3,) f32 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] { matmul(f32({}), f32({3})); }),
            "[matmul] an operand has no dimensions: lhs () f32 on cpu, rhs (3,) f32 on cpu");
  EXPECT_EQ(text_of<DTypeError>([] {
              matmul(i64({2, 2}), i64({2, 2}));
            }),
            "[matmul] needs a floating dtype: lhs (2, 2) i64 on cpu, rhs (2, 2) i64 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] {
              linear(f32({2, 3}), f32({5, 4}), f32({5}));
            }),
            "[linear] inner dimensions differ: x (2, 3) f32 on cpu, weight (5, 4) f32 on cpu, bias (5,) f32 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] {
              linear(f32({2, 4}), f32({5, 4}), f32({4}));
            }),
            "[linear] bias is not (out): x (2, 4) f32 on cpu, weight (5, 4) f32 on cpu, bias (4,) f32 on cpu");
}

TEST(OperatorErrors, NameTheFirstBadIndexAndItsPosition) {
  const Tensor targets = i64({1, 20});
  targets.data<std::int64_t>()[17] = 300;
  EXPECT_EQ(text_of<IndexError>([&] {
              cross_entropy(f32({1, 20, 256}), targets);
            }),
            "[cross_entropy] target 300 at position (0, 17) is outside [0, 256)");
  EXPECT_EQ(text_of<IndexError>([&] {
              linear_cross_entropy(f32({1, 20, 8}), f32({256, 8}), targets);
            }),
            "[linear_cross_entropy] target 300 at position (0, 17) is outside [0, 256)");
  const Tensor index = from_data<std::int64_t>({0, 2, -1, 7}, {2, 2});
  EXPECT_EQ(text_of<IndexError>([&] {
              embedding(f32({5, 3}), index);
            }),
            "[embedding] index -1 at position (1, 0) is outside [0, 5)");
  EXPECT_EQ(text_of<IndexError>([&] {
              gather(f32({2, 2}), 1, index);
            }),
            "[gather] index 2 at position (0, 1) is outside [0, 2)");
  EXPECT_EQ(text_of<IndexError>([&] {
              index_select(f32({2, 2}), 0, from_data<std::int64_t>({1, 9}, {2}));
            }),
            "[index_select] index 9 at position (1,) is outside [0, 2)");
  EXPECT_EQ(flatten(f32({}), 0, -1).shape(), Shape{1});
  EXPECT_EQ(text_of<IndexError>([&] { flatten(f32({}), 0, 1); }),
            "[flatten] dimension 1 is out of range for shape (1,)");
  EXPECT_EQ(text_of<IndexError>([&] { softmax(f32({2, 2}), 2); }).substr(0, 9), "[softmax]");
}

TEST(OperatorErrors, NameAnIndexInATransposedTensor) {
  const Tensor index = transpose(from_data<std::int64_t>({0, 1, 9, 8, 2, 3}, {3, 2}), 0, 1);
  EXPECT_EQ(text_of<IndexError>([&] {
              embedding(f32({5, 3}), index);
            }),
            "[embedding] index 9 at position (0, 1) is outside [0, 5)");
}

TEST(OperatorErrors, IgnoreTargetsAtIgnoreIndex) {
  const Tensor targets = from_data<std::int64_t>({1, -100, 2}, {3});
  EXPECT_NO_THROW(cross_entropy(f32({3, 4}), targets));
  EXPECT_EQ(text_of<IndexError>([&] {
              cross_entropy(f32({3, 4}), targets, {.ignore_index = -1});
            }),
            "[cross_entropy] target -100 at position (1,) is outside [0, 4)");
}

TEST(OperatorErrors, NameBadLossOperands) {
  EXPECT_EQ(
      text_of<ShapeError>([] {
        cross_entropy(f32({3, 4}), i64({4}));
      }),
      "[cross_entropy] needs logits (..., V) and targets (...): logits (3, 4) f32 on cpu, targets (4,) i64 on cpu");
  EXPECT_EQ(text_of<DTypeError>([] {
              cross_entropy(f32({3, 4}), f32({3}));
            }),
            "[cross_entropy] targets must be i64: logits (3, 4) f32 on cpu, targets (3,) f32 on cpu");
  EXPECT_EQ(text_of<ValueError>([] {
              cross_entropy(f32({3, 4}), i64({3}), {.label_smoothing = 1.5});
            }),
            "[cross_entropy] label smoothing is outside [0, 1]: logits (3, 4) f32 on cpu, targets (3,) i64 on cpu");
  EXPECT_EQ(
      text_of<ValueError>([] {
        linear_cross_entropy(f32({3, 4}), f32({5, 4}), i64({3}), {.reduction = Reduction::none});
      }),
      "[linear_cross_entropy] has no losses per row; use mean or sum: x (3, 4) f32 on cpu, weight (5, 4) f32 on cpu, "
      "targets (3,) i64 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] {
              mse_loss(f32({3, 4}), f32({4}));
            }),
            "[mse_loss] shapes differ: a (3, 4) f32 on cpu, b (4,) f32 on cpu");
}

TEST(OperatorErrors, NameBadCatAndStackOperands) {
  EXPECT_EQ(text_of<ShapeError>([] {
              cat({f32({2, 3}), f32({3, 3})}, 1);
            }),
            "[cat] sizes differ outside dimension 1: tensor 0 (2, 3) f32 on cpu, tensor 1 (3, 3) f32 on cpu");
  EXPECT_EQ(text_of<DTypeError>([] {
              cat({f32({2}), zeros_f64({2})});
            }),
            "[cat] tensors differ in dtype: tensor 0 (2,) f32 on cpu, tensor 1 (2,) f64 on cpu");
  EXPECT_EQ(text_of<ValueError>([] { cat({}); }), "[cat] no tensors given");
  EXPECT_EQ(text_of<ShapeError>([] {
              stack({f32({2}), f32({3})});
            }),
            "[stack] shapes differ: tensor 0 (2,) f32 on cpu, tensor 1 (3,) f32 on cpu");
  EXPECT_EQ(text_of<IndexError>([] { stack({f32({2})}, 9); }),
            "[stack] dimension 9 is out of range: tensor 0 (2,) f32 on cpu");
  EXPECT_EQ(stack({f32({2})}, -2).shape(), (Shape{1, 2}));
  for (const auto& [before, after] : {std::pair{INT64_MAX, INT64_MAX}, {INT64_MAX, std::int64_t{0}}})
    EXPECT_EQ(text_of<ShapeError>([&, b = before, a = after] { pad(f32({6}), 0, b, a); }),
              "[pad] " + std::to_string(before) + " and " + std::to_string(after) +
                  " more elements make a dimension of more than 2^63 - 1: x (6,) f32 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] {
              split(f32({2, 7}), 3, 1);
            }),
            "[split] dimension 1 does not divide into 3 equal parts: x (2, 7) f32 on cpu");
}

TEST(OperatorErrors, NameBadDtypesAndOptions) {
  EXPECT_EQ(text_of<DTypeError>([] { boolean({2}) + boolean({2}); }),
            "[add] bool is not a numeric dtype: lhs (2,) bool on cpu, rhs (2,) bool on cpu");
  EXPECT_EQ(text_of<DTypeError>([] { where(f32({2}), f32({2}), f32({2})); }),
            "[where] the condition must be bool: cond (2,) f32 on cpu, a (2,) f32 on cpu, b (2,) f32 on cpu");
  EXPECT_EQ(text_of<DTypeError>([] { mean(i64({2})); }), "[mean] needs a floating dtype: x (2,) i64 on cpu");
  const auto refused = [](const std::function<void(const Tensor&)>& f) {
    return text_of<ValueError>([&] { f(i64({2})); });
  };
  const std::string whole = "integers take whole numbers only, not 1.5: x (2,) i64 on cpu";
  EXPECT_EQ(refused([](const Tensor& x) { x + 1.5; }), "[add] " + whole);
  EXPECT_EQ(refused([](const Tensor& x) { 1.5 + x; }), "[add] " + whole);
  EXPECT_EQ(refused([](const Tensor& x) { x - 1.5; }), "[sub] " + whole);
  EXPECT_EQ(refused([](const Tensor& x) { 1.5 - x; }), "[sub] " + whole);
  EXPECT_EQ(refused([](const Tensor& x) { x * 1.5; }), "[mul] " + whole);
  EXPECT_EQ(refused([](const Tensor& x) { 1.5 * x; }), "[mul] " + whole);
  EXPECT_EQ(refused([](const Tensor& x) { x / 1.5; }), "[div] " + whole);
  EXPECT_EQ(refused([](const Tensor& x) { clamp(x, 0.0, 1.5); }), "[clamp] " + whole);
  EXPECT_EQ(refused([](const Tensor& x) { x + INFINITY; }),
            "[add] integers take whole numbers only, not inf: x (2,) i64 on cpu");
  EXPECT_EQ(refused([](const Tensor& x) { x * 1e30; }),
            "[mul] integers take whole numbers only, not 1e+30: x (2,) i64 on cpu");
  const std::string none = "1.5 does not fit into i64: x (2,) i64 on cpu";
  EXPECT_EQ(refused([](const Tensor& x) { x > 1.5; }), "[greater] " + none);
  EXPECT_EQ(refused([](const Tensor& x) { masked_fill(x, x > 0.0, 1.5); }), "[masked_fill] " + none);
  EXPECT_EQ(refused([](const Tensor& x) { pad(x, 0, 1, 1, 1.5); }), "[pad] " + none);
  EXPECT_EQ(text_of<ValueError>([] { ones({2}, {DType::u8}).fill(-1.0); }),
            "[fill] -1 does not fit into u8: (2,) u8 on cpu");
  EXPECT_EQ(text_of<ValueError>([] { full({2}, 0.5, {DType::i32}); }), "[full] 0.5 does not fit into i32");
  EXPECT_EQ(text_of<DTypeError>([] { boolean({2}) + 1.0; }), "[add] bool is not a numeric dtype: x (2,) bool on cpu");
  EXPECT_EQ(text_of<ValueError>([] { Tensor() * 2.0; }), "[mul] x is undefined");
  EXPECT_EQ(text_of<Error>([] { Tensor().item(); }), "[item] the tensor is undefined");
  EXPECT_EQ(text_of<ValueError>([] { dropout(f32({2}), 1.0); }),
            "[dropout] probability 1 is outside [0, 1): x (2,) f32 on cpu");
  EXPECT_EQ(text_of<ValueError>([] { clamp(f32({2}), 1.0, 0.0); }),
            "[clamp] the lower bound 1 is above the upper 0: x (2,) f32 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] {
              rope(f32({1, 2, 3, 5}));
            }),
            "[rope] needs (B, T, H, D) with even D: x (1, 2, 3, 5) f32 on cpu");
  EXPECT_EQ(text_of<ValueError>([] {
              rope_first_heads(f32({1, 2, 3, 4}), 4);
            }),
            "[rope] cannot rotate 4 heads: x (1, 2, 3, 4) f32 on cpu");
  EXPECT_EQ(text_of<ValueError>([] {
              rope(f32({1, 2, 3, 4}), 0, {100.0, RopeScaling::linear, 0.5});
            }),
            "[rope] factor is below 1: x (1, 2, 3, 4) f32 on cpu");
  EXPECT_EQ(text_of<ValueError>([] {
              rope(f32({1, 2, 3, 4}), 0, {100.0, RopeScaling::yarn, 4.0});
            }),
            "[rope] yarn needs trained_context: x (1, 2, 3, 4) f32 on cpu");
  EXPECT_EQ(text_of<ShapeError>([] { max(f32({0})); }),
            "[max] there are no elements to choose from: x (0,) f32 on cpu");
  EXPECT_EQ(text_of<ValueError>([] { norm(f32({2}), -1.0); }),
            "[norm] p -1 is neither 0, positive nor inf: x (2,) f32 on cpu");
  EXPECT_EQ(text_of<IndexError>([] {
              sum(f32({2, 3}), {1, -1});
            }),
            "[sum] dimension 1 is named twice: x (2, 3) f32 on cpu");
}

TEST(OperatorErrors, LeaveThePoolUnchanged) {
  const Tensor a = f32({4, 8}), b = f32({9, 2}), logits = f32({3, 4}),
               targets = from_data<std::int64_t>({0, 9, 1}, {3});
  const auto live = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  const std::uint64_t before = live();
  EXPECT_THROW(matmul(a, b), ShapeError);
  EXPECT_THROW(cross_entropy(logits, targets), IndexError);
  EXPECT_EQ(live(), before);
  EXPECT_EQ(matmul(a, f32({8, 1})).shape(), (Shape{4, 1}));
}

TEST(OperatorErrors, NameBadSortOperands) {
  EXPECT_EQ(text_of<ValueError>([] {
              topk(f32({3, 2}), 4, 0);
            }),
            "[topk] k 4 is out of range for dimension 0: x (3, 2) f32 on cpu");
  EXPECT_EQ(text_of<ValueError>([] {
              topk(f32({3, 2}, sim), -1);
            }),
            "[topk] k -1 is out of range for dimension 1: x (3, 2) f32 on sim:0");
  EXPECT_EQ(text_of<DTypeError>([] { logcumsumexp(i64({3}), 0); }),
            "[logcumsumexp] needs a floating dtype: x (3,) i64 on cpu");
}

TEST(ClassLosses, AcceptAnIgnoreIndexBeyondDoublePrecision) {
  constexpr std::int64_t even = std::int64_t{1} << 53;
  const Tensor scores = ones({2, 3});
  const auto loss = [&](std::int64_t target, std::int64_t ignored) {
    const Tensor targets = from_data<std::int64_t>({0, target}, {2});
    EXPECT_EQ(nll_loss(scores, targets, {.ignore_index = ignored}).item(), -1.0);
    return cross_entropy(scores, targets, {.ignore_index = ignored}).item();
  };
  for (const std::int64_t ignored : {even + 1, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_NEAR(loss(ignored, ignored), std::log(3.0), 1e-6);
    EXPECT_THROW(loss(even, ignored), IndexError);
  }
}

}  // namespace
}  // namespace poolgrad
