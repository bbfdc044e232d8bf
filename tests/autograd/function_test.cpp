// Custom operators.
#include "autograd/engine/function.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/gradcheck.h"
#include "tensor/print.h"
#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using namespace local;
using testing::ElementsAre;

/// x^3; saves its input.
struct Cube : Function {
  Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    EXPECT_FALSE(grad_enabled());
    context.save(inputs[0]);
    return times(times(inputs[0], inputs[0]), inputs[0]);
  }
  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    const Tensor x = context.saved(0);
    return {times(scaled(gradient, 3), times(x, x))};
  }
};

/// exp(rate * x); saves its output and has a parameter.
struct Growth : Function {
  explicit Growth(double rate) : rate_(rate) {}
  Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    Tensor y = exponential(scaled(inputs[0], rate_));
    context.save(y);
    return y;
  }
  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    return {times(scaled(gradient, rate_), context.saved(0))};
  }
  double rate_;
};

/// a * b, with a gradient of b only if it is required.
struct Product : Function {
  Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    context.save(inputs[0]);
    context.save(inputs[1]);
    return times(inputs[0], inputs[1]);
  }
  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    Gradients result(2);
    if (context.needs(0)) result[0] = times(gradient, context.saved(1));
    if (context.needs(1)) result[1] = times(gradient, context.saved(0));
    return result;
  }
};

/// 2 x; keeps its last result, as a cache would.
struct Remembering : Function {
  Tensor forward(FunctionContext&, const std::vector<Tensor>& inputs) override { return last_ = scaled(inputs[0], 2); }
  Gradients backward(FunctionContext&, const Tensor& gradient) override { return {scaled(gradient, 2)}; }
  Tensor last_;
};

/// a + b; records needs() of its inputs.
struct Asking : Function {
  Asking(std::vector<bool>* forwards, std::vector<bool>* backwards) : forwards_(forwards), backwards_(backwards) {}
  Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    *forwards_ = {context.needs(0), context.needs(1)};
    return plus(inputs[0], inputs[1]);
  }
  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    *backwards_ = {context.needs(0), context.needs(1)};
    context.needs(2);
    return {gradient, gradient};
  }
  std::vector<bool>*forwards_, *backwards_;
};

/// Returns its input, and the given number of gradients.
struct Odd : Function {
  explicit Odd(std::size_t gradients) : gradients_(gradients) {}
  Tensor forward(FunctionContext&, const std::vector<Tensor>& inputs) override { return inputs[0]; }
  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    if (gradients_ == 99) context.saved(0);
    return Gradients(gradients_, gradient);
  }
  std::size_t gradients_;
};

/// (exp(a) + b, exp(a), the index 7): saves its second output.
struct GrowthAndSum : MultiFunction {
  explicit GrowthAndSum(std::vector<bool>* contributed = nullptr) : contributed_(contributed) {}
  std::vector<Tensor> forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    EXPECT_FALSE(grad_enabled());
    const Tensor growth = exponential(inputs[0]);
    context.save(growth);
    return {plus(growth, inputs[1]), growth, full({1}, 7, {.dtype = DType::i64})};
  }
  Gradients backward(FunctionContext& context, const Gradients& gradients) override {
    if (contributed_ != nullptr) *contributed_ = {gradients[0].defined(), gradients[1].defined()};
    Tensor of_growth = gradients[1].defined() ? gradients[1] : gradients[0];
    if (gradients[0].defined() && gradients[1].defined()) of_growth = plus(gradients[0], gradients[1]);
    return {times(of_growth, context.saved(0)), gradients[0]};
  }
  std::vector<bool>* contributed_;
};

/// Returns the given outputs.
struct Returning : MultiFunction {
  explicit Returning(std::vector<Tensor> outputs) : outputs_(std::move(outputs)) {}
  std::vector<Tensor> forward(FunctionContext&, const std::vector<Tensor>&) override { return outputs_; }
  Gradients backward(FunctionContext&, const Gradients& gradients) override { return {gradients[0]}; }
  std::vector<Tensor> outputs_;
};

TEST(MultiFunction, HasSeveralOutputsAndOneBackward) {
  Tensor a = leaf({0, 0}), b = leaf({3, 4});
  std::vector<bool> contributed;
  const std::vector<Tensor> y = apply<GrowthAndSum>("growth_and_sum", {a, b}, &contributed);
  ASSERT_EQ(y.size(), 3u);
  EXPECT_THAT(values(y[0]), ElementsAre(4, 5));
  EXPECT_THAT(values(y[1]), ElementsAre(1, 1));
  EXPECT_EQ(y[2].item(), 7);
  EXPECT_FALSE(y[2].requires_grad()) << "an index";
  EXPECT_EQ(y[1].grad_record()->made_by(), "growth_and_sum");
  total(plus(y[0], scaled(y[1], 10))).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(11, 11));
  EXPECT_THAT(values(b.grad()), ElementsAre(1, 1));
  EXPECT_THAT(contributed, ElementsAre(true, true));
}

TEST(MultiFunction, ReportsTheOutputsThatContributed) {
  Tensor a = leaf({0, 0}), b = leaf({3, 4});
  std::vector<bool> contributed;
  total(apply<GrowthAndSum>("growth_and_sum", {a, b}, &contributed)[1]).backward();
  EXPECT_THAT(contributed, ElementsAre(false, true));
  EXPECT_THAT(values(a.grad()), ElementsAre(1, 1));
  EXPECT_FALSE(b.grad().defined());
}

TEST(MultiFunction, PassesGradcheckAndGradgradcheck) {
  const TensorFunction function = [](const auto& inputs) { return apply<GrowthAndSum>("growth_and_sum", inputs); };
  const std::vector<Tensor> inputs{leaf({0.3, -1.2}), leaf({2.0, 0.7})};
  const GradcheckReport first = gradcheck(function, inputs), second = gradgradcheck(function, inputs);
  EXPECT_TRUE(first) << first.text;
  EXPECT_TRUE(second) << second.text;
}

TEST(MultiFunction, LeaksNoSavedOrReturnedTensor) {
  const std::int64_t nodes = live_node_count();
  {
    Tensor a = leaf({1, 2});
    const std::vector<Tensor> y = apply<GrowthAndSum>("growth_and_sum", {a, a});
    EXPECT_EQ(live_node_count(), nodes + 2);
    const auto same = std::make_shared<Returning>(std::vector<Tensor>{a, a});
    const std::vector<Tensor> z = apply("twice", std::static_pointer_cast<MultiFunction>(same), {a});
    EXPECT_TRUE(a.is_leaf());
    total(plus(z[0], z[1])).backward();
    EXPECT_THAT(values(a.grad()), ElementsAre(1, 1)) << "the function's own rule";
  }
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(MultiFunction, NamesTheErrorOfItsForward) {
  Tensor a = leaf({1, 2});
  const auto returning = [&](std::vector<Tensor> outputs) {
    return message_of([&] { apply<Returning>("returning", {a}, outputs); });
  };
  EXPECT_EQ(returning({}), "[returning] forward returned no tensor");
  EXPECT_EQ(returning({a, Tensor()}), "[returning] forward returned an undefined tensor");
}

TEST(Function, RejectsANullFunction) {
  const std::string text = "[nothing] there is no function to apply";
  EXPECT_EQ(message_of<ValueError>([] { apply("nothing", std::shared_ptr<Function>(), {leaf({1})}); }), text);
  EXPECT_EQ(message_of<ValueError>([] { apply("nothing", std::shared_ptr<MultiFunction>(), {leaf({1})}); }), text);
}

TEST(Function, ComputesItsForwardAndItsOwnBackward) {
  Tensor x = leaf({1, 2, -3});
  Tensor y = apply<Cube>("cube", {x});
  EXPECT_THAT(values(y), ElementsAre(1, 8, -27));
  EXPECT_EQ(y.grad_record()->made_by(), "cube");
  total(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(3, 12, 27));
}

TEST(Function, RecordsOnlyItself) {
  Tensor x = leaf({1, 2, -3});
  const std::int64_t nodes = live_node_count();
  Tensor y = apply<Cube>("cube", {x});
  EXPECT_EQ(live_node_count(), nodes + 2);  // cube and the leaf
}

TEST(Function, PassesGradcheckAndGradgradcheck) {
  Tensor x = leaf({0.3, -1.2, 2.0});
  for (const TensorFunction& function :
       {TensorFunction([](const auto& inputs) { return std::vector{apply<Cube>("cube", inputs)}; }),
        TensorFunction([](const auto& inputs) { return std::vector{apply<Growth>("growth", inputs, 0.7)}; })}) {
    const GradcheckReport first = gradcheck(function, {x}), second = gradgradcheck(function, {x});
    EXPECT_TRUE(first);
    EXPECT_TRUE(second);
  }
}

TEST(Function, ASavedOutputLeaksNothing) {
  const std::int64_t nodes = live_node_count();
  { Tensor y = apply<Growth>("growth", {leaf({1, 2})}, 2.0); }
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(Function, KnowsWhichInputsNeedGradients) {
  Tensor a = leaf({1, 2}), constant = from_data<double>({3, 4}, {2});
  total(apply<Product>("product", {a, constant})).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(3, 4));
  EXPECT_FALSE(constant.grad().defined());
}

TEST(Function, KnowsInForwardWhichInputsMayNeedGradients) {
  Tensor a = leaf({1, 2}), constant = from_data<double>({3, 4}, {2});
  std::vector<bool> forwards, backwards;
  apply<Asking>("asking", {constant, a}, &forwards, &backwards);
  EXPECT_THAT(forwards, ElementsAre(false, true));
  apply<Asking>("asking", {constant, constant}, &forwards, &backwards);
  EXPECT_THAT(forwards, ElementsAre(false, false));
  NoGradGuard guard;
  apply<Asking>("asking", {a, a}, &forwards, &backwards);
  EXPECT_THAT(forwards, ElementsAre(false, false));
}

TEST(Function, RejectsAnInputIndexOutOfRange) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  std::vector<bool> forwards, backwards;
  const Tensor y = apply<Asking>("asking", {a, b}, &forwards, &backwards);
  EXPECT_EQ(message_of<IndexError>([&] { grad({total(y)}, {b}); }), "[asking] needs() reads input 2 of 2");
  EXPECT_THAT(forwards, ElementsAre(true, true));
  EXPECT_THAT(backwards, ElementsAre(false, true));
}

TEST(Function, LeaksNothingWhenItKeepsItsOutput) {
  const std::int64_t nodes = live_node_count();
  {
    Tensor x = leaf({1, 2});
    const auto function = std::make_shared<Remembering>();
    const Tensor y = apply("remembering", function, {x});
    EXPECT_TRUE(y.shares_storage_with(function->last_));
    EXPECT_FALSE(function->last_.requires_grad());
    total(y).backward();
    EXPECT_THAT(values(x.grad()), ElementsAre(2, 2));
    total(apply<Remembering>("remembering", {x}));
  }
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(Function, RecordsNothingWithoutRequiresGrad) {
  Tensor x = from_data<double>({1, 2}, {2});
  const std::int64_t nodes = live_node_count();
  EXPECT_FALSE(apply<Cube>("cube", {x}).requires_grad());
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(Function, LeavesAReturnedInputUnchanged) {
  Tensor x = leaf({1, 2});
  Tensor y = apply<Odd>("odd", {x}, 1u);
  EXPECT_TRUE(x.is_leaf());
  EXPECT_TRUE(y.shares_storage_with(x));
  total(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(1, 1));
}

TEST(Function, NamesTheErrorOfItsBackward) {
  Tensor x = leaf({1, 2});
  EXPECT_EQ(message_of([&] { total(apply<Odd>("odd", {x}, 2u)).backward(); }),
            "[odd] backward returned 2 gradients for 1 input");
  EXPECT_EQ(message_of<IndexError>([&] { total(apply<Odd>("odd", {x}, 99u)).backward(); }),
            "[odd] backward reads saved tensor 0 of 0");
}

TEST(Function, DetectsAWriteToASavedInput) {
  Tensor x = leaf({1, 2});
  Tensor y = total(apply<Cube>("cube", {x}));
  {
    NoGradGuard guard;
    x.fill(5.0);
  }
  EXPECT_EQ(message_of([&] { y.backward(); }),
            "[cube] a saved tensor (2,) f64 on cpu was written in place: saved at version 0, now at version 1");
}

TEST(Function, RunsAgainOnARetainedGraph) {
  Tensor x = leaf({2});
  Tensor y = apply<Cube>("cube", {x});
  y.backward({}, true);
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(24));
  EXPECT_THROW(y.backward(), Error);
}

}  // namespace
}  // namespace poolgrad
