// State, groups, scaling, errors; clipping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "allocator/caching_allocator.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/nn/optimizer_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using optimizer_support::gradient, optimizer_support::start, optimizer_support::vector;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::error_of;

TEST(ParameterGroups, HaveARateAndADecayOfTheirOwn) {
  const auto is = [](const char* wanted) {
    return [wanted](const std::string& name, const Tensor&) { return name == wanted; };
  };
  const std::vector<ParameterGroup> groups{{.applies = is("slow"), .rate = 0.5},
                                           {.applies = is("free"), .weight_decay = 0.0},
                                           {.applies = is("slow"), .rate = 100}};  // the first match counts
  const auto moved = [&](const auto& make) {
    std::vector<Tensor> p;
    for (int i = 0; i < 3; ++i) p.push_back(ones({2, 2}, {.dtype = DType::f64}).set_requires_grad());
    const auto optimizer = make(NamedTensors{{"plain", p[0]}, {"slow", p[1]}, {"free", p[2]}});
    for (Tensor& each : p) each.set_grad(zeros({2, 2}, {.dtype = DType::f64}));
    optimizer->step();
    std::vector<double> values;
    for (const Tensor& each : p) values.push_back(each.to_vector<double>()[0]);
    return values;
  };
  const auto decayed = ElementsAre(::testing::DoubleEq(0.95), ::testing::DoubleEq(0.975), 1.0);
  EXPECT_THAT(moved([&](NamedTensors p) {
                return std::make_unique<AdamW>(
                    p, AdamWOptions{.learning_rate = 0.1, .weight_decay = 0.5, .groups = groups});
              }),
              decayed);
  EXPECT_THAT(moved([&](NamedTensors p) {
                return std::make_unique<SGD>(p,
                                             SGDOptions{.learning_rate = 0.1, .weight_decay = 0.5, .groups = groups});
              }),
              decayed);
  EXPECT_THAT(moved([&](NamedTensors p) {
                return std::make_unique<Lion>(p,
                                              LionOptions{.learning_rate = 0.1, .weight_decay = 0.5, .groups = groups});
              }),
              decayed);
  EXPECT_THAT(moved([&](NamedTensors p) {
                return std::make_unique<Muon>(
                    p, MuonOptions{.adamw = {.learning_rate = 0.1, .weight_decay = 0.5, .groups = groups}});
              }),
              decayed);
}

TEST(ParameterGroups, WithoutADecayKeepTheMatrixRule) {
  Tensor flat = ones({4}).set_requires_grad(), other = ones({4}).set_requires_grad();
  AdamW optimizer({{"flat", flat}, {"other", other}},
                  {.learning_rate = 0.1,
                   .weight_decay = 0.5,
                   .decay_matrices_only = true,
                   .groups = {{.applies = [](const std::string& name, const Tensor&) { return name == "other"; },
                               .weight_decay = 0.25},
                              {.applies = [](const std::string&, const Tensor&) { return true; }, .rate = 2}}});
  for (Tensor* each : {&flat, &other}) each->set_grad(zeros({4}));
  optimizer.step();
  EXPECT_TRUE(bit_equal(flat.detach(), ones({4})));
  EXPECT_TRUE(allclose(other.detach(), full({4}, 0.975)));
}

TEST(ParameterGroups, RefuseInvalidOptions) {
  const auto all = [](const std::string&, const Tensor&) { return true; };
  const auto refused = [](ParameterGroup group) { return error_of<ValueError>([&] { SGD({}, {.groups = {group}}); }); };
  const std::string text = "[optimizer] a group needs a predicate, and a rate and a decay that are not negative: ";
  EXPECT_EQ(refused({}), text + "rate 1, decay 0, no predicate");
  EXPECT_EQ(refused({.applies = all, .rate = -1}), text + "rate -1, decay 0");
  EXPECT_EQ(refused({.applies = all, .weight_decay = -0.5}), text + "rate 1, decay -0.5");
}

TEST(Optimizer, LeavesParametersWithoutGradientAlone) {
  const Tensor p = start();
  AdamW optimizer({{"p", p}});
  optimizer.step();
  EXPECT_TRUE(bit_equal(p.detach(), vector({1.0, -2.0, 0.5})));
}

/// Takes three steps on `views` of tensors and on separate tensors of equal values: the bits are equal, and only the
/// views change.
template <class Optimizer, class Options>
void expect_steps_of_views_as_of_copies(const Options& options) {
  const Tensor whole = randn({4, 6}, {.dtype = DType::f64});
  const Tensor untouched = whole.copy();
  const auto rows = sliced(whole.geometry(), 1, 1, 6, 2);
  for (const Geometry& geometry : {transposed(whole.geometry(), 0, 1), rows, transposed(rows, 0, 1)}) {
    Tensor view = whole.copy().alias(geometry);
    const Tensor memory = view.alias(whole.geometry());
    Tensor own = view.copy();
    view.set_requires_grad(), own.set_requires_grad();
    Optimizer on_view({{"p", view}}, options), on_own({{"p", own}}, options);
    for (int step = 0; step < 3; ++step) {
      const Tensor gradient = randn(own.shape(), own.options());
      own.set_grad(gradient);
      view.set_grad(gradient);
      const auto version = view.storage()->version();
      on_view.step(0.5);
      on_own.step(0.5);
      EXPECT_TRUE(bit_equal(view.detach(), own.detach())) << to_string(geometry.strides) << " step " << step;
      EXPECT_GT(view.storage()->version(), version);
    }
    view.detach().copy_from(untouched.alias(geometry));
    EXPECT_TRUE(bit_equal(memory, untouched)) << to_string(geometry.strides);
  }
}

TEST(Optimizer, UpdatesTransposedAndSlicedParametersInPlace) {
  expect_steps_of_views_as_of_copies<AdamW>(AdamWOptions{.learning_rate = 0.1});
  expect_steps_of_views_as_of_copies<SGD>(SGDOptions{.learning_rate = 0.1, .momentum = 0.9});
  expect_steps_of_views_as_of_copies<Adam>(AdamOptions{.learning_rate = 0.1, .weight_decay = 0.1, .amsgrad = true});
  expect_steps_of_views_as_of_copies<RMSprop>(RMSpropOptions{.learning_rate = 0.1, .momentum = 0.9, .centered = true});
  expect_steps_of_views_as_of_copies<Adafactor>(AdafactorOptions{.learning_rate = 0.1});
  expect_steps_of_views_as_of_copies<Lion>(LionOptions{.learning_rate = 0.1});
  expect_steps_of_views_as_of_copies<Muon>(MuonOptions{.adamw = {.learning_rate = 0.1}});
}

TEST(Optimizer, RefusesABroadcastParameter) {
  const Tensor x = ones({3});
  const Tensor wide = x.alias(expanded(x.geometry(), {2, 3}));
  EXPECT_EQ(error_of<ShapeError>([&] {
              SGD({{"w", wide}});
            }),
            "[optimizer] several elements of a parameter share one place: w (2, 3) f32 on cpu");
}

/// Four classes become eight: the step is refused and writes nothing. It works again with the old parameters.
template <class Optimizer, class Options>
void expect_refusal_of_another_shape(const Options& options) {
  Tensor p = ones({4, 3}).set_requires_grad(), larger = ones({8, 3}).set_requires_grad();
  const Tensor handle = p;  // swap_tensors() affects all handles
  Optimizer optimizer({{"p", handle}}, options);
  p.set_grad(ones({4, 3}));
  larger.set_grad(ones({8, 3}));
  swap_tensors(p, larger);
  EXPECT_EQ(error_of<Error>([&] { optimizer.step(); }),
            "[optimizer] a parameter was reshaped after the optimizer was made, and the state is still (4, 3): p (8, "
            "3) f32 on cpu");
  EXPECT_EQ(optimizer.steps(), 0);
  EXPECT_TRUE(bit_equal(p.detach(), ones({8, 3})));
  swap_tensors(p, larger);
  optimizer.step();
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST(Optimizer, RefusesAParameterOfChangedShape) {
  expect_refusal_of_another_shape<AdamW>(AdamWOptions{});
  expect_refusal_of_another_shape<SGD>(SGDOptions{.momentum = 0.9});
  expect_refusal_of_another_shape<RMSprop>(RMSpropOptions{});
  expect_refusal_of_another_shape<Adafactor>(AdafactorOptions{});
  expect_refusal_of_another_shape<Lion>(LionOptions{});
  expect_refusal_of_another_shape<Muon>(MuonOptions{});
}

TEST(Optimizer, RefusesALaterBroadcastAndAGradientOfAnotherShape) {
  Tensor p = ones({4, 3}).set_requires_grad();
  SGD optimizer({{"p", p}}, {.momentum = 0.9});
  const Tensor row = ones({1, 3}), wide = row.alias(expanded(row.geometry(), {4, 3})), before = p.detach();
  swap_tensors(p, wide);
  EXPECT_EQ(error_of<ShapeError>([&] { optimizer.step(); }),
            "[optimizer] several elements of a parameter share one place: p (4, 3) f32 on cpu");
  swap_tensors(p, wide);
  Tensor other = ones({2}).set_requires_grad();
  other.set_grad(ones({2}));
  p.set_grad_record(other.grad_record());
  EXPECT_EQ(error_of<Error>([&] { optimizer.step(); }),
            "[optimizer] a gradient is unlike its parameter: gradient (2,) f32 on cpu, p (4, 3) f32 on cpu");
  EXPECT_TRUE(bit_equal(before, ones({4, 3})));
}

/// Leaves parameters unchanged, and fails at the update of that number.
class Failing : public Optimizer {
 public:
  explicit Failing(NamedTensors parameters) : Optimizer(std::move(parameters), {.groups = none_}) {}
  int updates_until_it_fails = 0;

 private:
  void update(std::span<const Update>, const GradientScale&) override {
    if (updates_until_it_fails-- == 0) throw Error("no room");
  }
  inline static const std::vector<ParameterGroup> none_;
};

TEST(Optimizer, DoesNotCountAFailedStep) {
  Tensor p = start(), view = transpose(ones({2, 3}, {.dtype = DType::f64}), 0, 1).detach().set_requires_grad();
  Failing optimizer({{"view", view}, {"p", p}});  // a view is updated separately
  p.set_grad(gradient(0));
  view.set_grad(ones({3, 2}, {.dtype = DType::f64}));
  EXPECT_EQ(error_of<Error>([&] { optimizer.step(); }), "no room");
  EXPECT_EQ(optimizer.steps(), 0);
  EXPECT_THROW(optimizer.step_was_skipped(), Error);
  optimizer.updates_until_it_fails = 1;
  EXPECT_EQ(error_of<Error>([&] { optimizer.step(); }), "no room");
  EXPECT_EQ(optimizer.steps(), 1) << "one parameter has taken it";
  EXPECT_THAT(optimizer.parameter_steps(), ElementsAre(1, 0));
  optimizer.updates_until_it_fails = 2;
  optimizer.step();
  EXPECT_EQ(optimizer.steps(), 2);
  EXPECT_THAT(optimizer.parameter_steps(), ElementsAre(2, 1));
  optimizer.step_was_skipped();
  EXPECT_THAT(optimizer.parameter_steps(), ElementsAre(1, 0));
}

/// A parameter without a gradient in the first steps is updated as if it were added later. Another parameter is updated
/// as if it were alone.
template <class Optimizer, class Options>
void expect_own_steps(const Options& options) {
  Tensor late = start(), always = start(), fresh = start(), alone = start();
  Optimizer optimizer({{"late", late}, {"always", always}}, options), beginning({{"fresh", fresh}}, options),
      own({{"alone", alone}}, options);
  for (int step = 0; step < 4; ++step) {
    always.set_grad(gradient(step));
    alone.set_grad(gradient(step));
    own.step();
    if (step >= 2) {
      late.set_grad(gradient(step));
      fresh.set_grad(gradient(step));
      beginning.step();
    }
    optimizer.step();
  }
  EXPECT_TRUE(bit_equal(late.detach(), fresh.detach())) << to_string(late, {.precision = 17});
  EXPECT_TRUE(bit_equal(always.detach(), alone.detach())) << to_string(always, {.precision = 17});
  EXPECT_EQ(optimizer.steps(), 4);
  EXPECT_THAT(optimizer.parameter_steps(), ElementsAre(2, 4));
}

TEST(Optimizer, CountsTheStepsOfEachParameterSeparately) {
  expect_own_steps<AdamW>(AdamWOptions{.learning_rate = 0.1});
  expect_own_steps<RMSprop>(RMSpropOptions{.learning_rate = 0.1, .centered = true});
  expect_own_steps<Adafactor>(AdafactorOptions{.learning_rate = 0.1});
  expect_own_steps<SGD>(SGDOptions{.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.5});
}

TEST(Optimizer, CanDecayMatricesOnly) {
  Tensor flat = ones({4}).set_requires_grad(), matrix = ones({2, 2}).set_requires_grad();
  AdamW optimizer({{"flat", flat}, {"matrix", matrix}},
                  {.learning_rate = 0.1, .weight_decay = 0.5, .decay_matrices_only = true});
  flat.set_grad(zeros({4}));
  matrix.set_grad(zeros({2, 2}));
  optimizer.step();
  EXPECT_TRUE(bit_equal(flat.detach(), ones({4})));
  EXPECT_TRUE(allclose(matrix.detach(), full({2, 2}, 0.95)));
}

TEST(Optimizer, KeepsStateInTheComputeDtypeAndTagsIt) {
  const auto tagged = [] {
    return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::optimizer_state)].current;
  };
  const auto before = tagged();
  Tensor p = start(DType::bf16);
  AdamW optimizer({{"p", p}}, {.learning_rate = 0.5, .weight_decay = 0.0, .master_weights = false});
  EXPECT_EQ(tagged() - before, 2 * 3 * sizeof(float));
  EXPECT_EQ(optimizer.state()[1].first, "p.second_moment");
  EXPECT_EQ(optimizer.state()[1].second.dtype(), DType::f32);
  p.set_grad(vector({1, 1, 1}, DType::bf16));
  optimizer.step();
  EXPECT_TRUE(allclose(p.detach(), vector({0.5, -2.5, 0.0}, DType::bf16), 1e-6, 1e-6));
}

TEST(Optimizer, AStepInvalidatesSavedParameters) {
  for (const bool adaptive : {false, true}) {
    Tensor p = start();
    const auto optimizer = adaptive ? std::unique_ptr<Optimizer>(std::make_unique<AdamW>(NamedTensors{{"p", p}}))
                                    : std::make_unique<SGD>(NamedTensors{{"p", p}});
    const Tensor loss = sum(p * p);
    p.set_grad(gradient(0));
    optimizer->step();
    EXPECT_THAT(error_of<Error>([&] { loss.backward(); }),
                HasSubstr("a saved tensor (3,) f64 on cpu was written in place"));
    p.set_grad({});
    sum(p * p).backward();
    EXPECT_TRUE(bit_equal(p.grad(), p.detach() * 2.0)) << "what was made after the step is as good as ever";
  }
}

TEST(Optimizer, LoadsAMatchingStateAndRefusesOthers) {
  const Tensor p = start(), q = start();
  AdamW a({{"p", p}}), b({{"p", q}});
  Tensor(p).set_grad(gradient(0));
  a.step();
  b.load(a.state(), a.steps());
  EXPECT_EQ(b.steps(), 1);
  EXPECT_TRUE(bit_equal(a.state()[0].second, b.state()[0].second));
  EXPECT_THAT(b.parameter_steps(), ElementsAre(1)) << "where nothing else is said, all of them";
  b.load(a.state(), 3, {2});
  EXPECT_THAT(b.parameter_steps(), ElementsAre(2));
  EXPECT_EQ(error_of<ValueError>([&] {
              b.load(a.state(), 3, {1, 1});
            }),
            "[optimizer] the state has the steps of 2 parameters, the optimizer has 1");
  EXPECT_EQ(error_of<ValueError>([&] { b.load(a.state(), 3, {4}); }),
            "[optimizer] the steps of a parameter must be between 0 and those of the optimizer: 4, 3");
  EXPECT_EQ(error_of<ValueError>([&] { b.load({}, 1); }), "[optimizer] the state has 0 tensors, the optimizer 2");
  NamedTensors other = a.state();
  other[1].second = zeros({4});
  EXPECT_THAT(error_of<ValueError>([&] { b.load(other, 1); }),
              HasSubstr("p.second_moment (4,) f32 on cpu, p.second_moment (3,) f64 on cpu"));
  other[1].second = Tensor();
  EXPECT_EQ(
      error_of<ValueError>([&] { b.load(other, 1); }),
      "[optimizer] the state does not fit the optimizer: p.second_moment undefined, p.second_moment (3,) f64 on cpu");
  other[0].second = vector({7, 8, 9});
  other[1].second = start();  // a parameter, like one of a module
  b.load(other, 1);
  EXPECT_THAT(b.state()[0].second.to_vector<double>(), ElementsAre(7, 8, 9));
  EXPECT_TRUE(bit_equal(b.state()[1].second, start().detach()));
}

TEST(Optimizer, RefusesInvalidOptions) {
  const NamedTensors some = {{"p", start()}};
  const auto adamw = [&](AdamWOptions options) { return error_of<ValueError>([&] { AdamW(some, options); }); };
  const auto sgd = [&](SGDOptions options) { return error_of<ValueError>([&] { SGD(some, options); }); };
  const auto lion = [&](LionOptions options) { return error_of<ValueError>([&] { Lion(some, options); }); };
  const auto muon = [&](MuonOptions options) { return error_of<ValueError>([&] { Muon(some, options); }); };
  EXPECT_EQ(adamw({.learning_rate = -1}), "[adamw] must not be negative: learning_rate -1");
  EXPECT_EQ(adamw({.epsilon = -1e-8}), "[adamw] must not be negative: epsilon -1e-08");
  EXPECT_EQ(adamw({.weight_decay = std::nan("")}), "[adamw] must not be negative: weight_decay nan");
  EXPECT_EQ(adamw({.beta2 = 1}), "[adamw] must be in [0, 1): beta2 1");
  EXPECT_EQ(sgd({.momentum = -1}), "[sgd] must not be negative: momentum -1");
  EXPECT_EQ(sgd({.momentum = 0.9, .dampening = -1}), "[sgd] must not be negative: dampening -1");
  EXPECT_EQ(sgd({.nesterov = true}), "[sgd] nesterov needs momentum and no dampening: momentum 0, dampening 0");
  EXPECT_EQ(lion({.weight_decay = -1}), "[lion] must not be negative: weight_decay -1");
  EXPECT_EQ(lion({.beta1 = 1}), "[lion] must be in [0, 1): beta1 1");
  EXPECT_EQ(muon({.momentum = 1}), "[muon] must be in [0, 1): momentum 1");
  EXPECT_EQ(muon({.newton_schulz_steps = 0}), "[muon] must be at least 1: newton_schulz_steps 0");
}

TEST(Optimizer, RefusesRepeatedNamesAndRepeatedTensors) {
  const Tensor a = start(), b = vector({1, 2}).set_requires_grad();
  const std::function<void(NamedTensors)> makers[] = {[](NamedTensors p) { SGD{p}; }, [](NamedTensors p) { AdamW{p}; },
                                                      [](NamedTensors p) { Lion{p}; }, [](NamedTensors p) { Muon{p}; }};
  for (const auto& make : makers) {
    EXPECT_EQ(error_of<ValueError>([&] {
                make({{"w", a}, {"v", b}, {"w", b}});
              }),
              "[optimizer] two parameters have the name 'w': (3,) f64 on cpu, (2,) f64 on cpu");
    EXPECT_EQ(error_of<ValueError>([&] {
                make({{"w", a}, {"v", b}, {"u", a}});
              }),
              "[optimizer] one tensor is given twice, as 'w' and as 'u': (3,) f64 on cpu");
  }
}

TEST(Optimizer, RefusesAnEmptyParameterList) {
  struct Forgetful : Module {
    Linear linear{2, 2};  // without add_module()
  } forgetful;
  const std::string nothing = error_of<ValueError>([&] { AdamW(forgetful.named_parameters(), {}); });
  EXPECT_THAT(nothing, HasSubstr("[optimizer] no parameters: "));
  EXPECT_THAT(nothing, HasSubstr("add_module()"));
  EXPECT_EQ(error_of<ValueError>([] { AdamW({{"p", Tensor()}}); }), "[optimizer] the parameter 'p' is undefined");
  for (const auto& of_none : std::vector<std::function<void()>>{[] { SGD({}); }, [] { Lion({}); }, [] { Muon({}); }})
    EXPECT_EQ(error_of<ValueError>(of_none), nothing);
  Linear frozen(2, 2);
  frozen.freeze();
  EXPECT_NO_THROW(AdamW(frozen.named_parameters(), {}).step()) << "what is frozen may learn later";
}

TEST(OptimizerKind, RoundTripsThroughItsName) {
  for (const char* name : {"adamw", "sgd", "lion", "muon"}) EXPECT_EQ(to_string(parse_optimizer(name)), name);
  EXPECT_EQ(error_of<ValueError>([] { parse_optimizer("adam"); }),
            "[optimizer] it must be adamw, sgd, lion or muon, but is adam");
}

TEST(GradientClipping, TakesTheNormOfAllGradientsTogether) {
  Tensor a = zeros({2}).set_requires_grad(), b = zeros({1}).set_requires_grad(), c = zeros({5}).set_requires_grad();
  a.set_grad(from_data<float>({3, 4}, {2}));
  b.set_grad(from_data<float>({12}, {1}));
  EXPECT_DOUBLE_EQ(gradient_norm({a, b, c}), 13.0);
  EXPECT_EQ(gradient_norm({}), 0.0);
}

/// Returns the norm of one gradient after rounding to `dtype`.
double norm_of(const std::vector<double>& gradient, DType dtype) {
  const auto count = static_cast<std::int64_t>(gradient.size());
  Tensor parameter = zeros({count}, {.dtype = dtype}).set_requires_grad();
  parameter.set_grad(to(from_data(gradient, {count}), dtype));
  return gradient_norm({parameter});
}

// The squares are beyond the range of the gradients' type, or below the last digit of a sum in it.
TEST(GradientClipping, AddsUpInF64) {
  const auto f32 = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  EXPECT_DOUBLE_EQ(norm_of({3e20, -4e20}, DType::f32), std::hypot(f32(3e20), f32(4e20)));
  EXPECT_DOUBLE_EQ(norm_of({3e-30, -4e-30}, DType::f32), std::hypot(f32(3e-30), f32(4e-30)));
  EXPECT_DOUBLE_EQ(norm_of({1e20, 1e-30}, DType::f32), f32(1e20));
  EXPECT_DOUBLE_EQ(norm_of({300, 400}, DType::f16), 500.0);
  EXPECT_DOUBLE_EQ(norm_of({3 * 0x1p100, 4 * 0x1p100}, DType::bf16), 5 * 0x1p100);
  std::vector<double> many(100'001, 1.0);
  many[0] = 65536.0;
  EXPECT_DOUBLE_EQ(norm_of(many, DType::f32), std::sqrt(0x1p32 + 100'000));
  EXPECT_DOUBLE_EQ(norm_of(many, DType::bf16), std::sqrt(0x1p32 + 100'000));
}

TEST(GradientClipping, ScalesDownOnly) {
  EXPECT_DOUBLE_EQ(clip_scale(4.0, 1.0), 0.25);
  EXPECT_DOUBLE_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_scale(100.0, 0.0), 1.0);
  for (const double norm : {std::numeric_limits<double>::infinity(), std::nan("")})
    for (const double limit : {0.0, 1.0}) EXPECT_TRUE(std::isnan(clip_scale(norm, limit))) << "the step is skipped";
  EXPECT_THAT(error_of<ValueError>([] { clip_scale(1.0, -1.0); }), HasSubstr("must not be negative"));
}

TEST(GradientClipping, ADeviceNormGivesTheSameScale) {
  const auto of = [](double norm, double limit) {
    return clip_scale(full({}, norm, {.dtype = DType::f64}), limit).item();
  };
  for (const double norm : {0.0, 0.3, 1.0, std::nextafter(1.0, 2.0), 7.7, 1e300})
    for (const double limit : {0.0, 0.1, 1.0, 3.0}) EXPECT_EQ(of(norm, limit), clip_scale(norm, limit)) << norm;
  for (const double norm : {std::numeric_limits<double>::infinity(), std::nan("")})
    for (const double limit : {0.0, 1.0}) EXPECT_TRUE(std::isnan(of(norm, limit))) << "a step to be skipped";
  EXPECT_THAT(error_of<ValueError>([&] { of(1.0, -1.0); }), HasSubstr("must not be negative"));
  EXPECT_THAT(error_of<DTypeError>([] { GradientScale(ones({})); }), HasSubstr("it must be f64: () f32 on cpu"));
  EXPECT_THAT(error_of<ShapeError>([] { GradientScale(ones({2}, {.dtype = DType::f64})); }), HasSubstr("one number"));
}

using Make = std::unique_ptr<Optimizer> (*)(const NamedTensors&);
const std::pair<const char*, Make> every_rule[] = {
    {"adamw", [](const NamedTensors& p) -> std::unique_ptr<Optimizer> { return std::make_unique<AdamW>(p); }},
    {"adam",
     [](const NamedTensors& p) -> std::unique_ptr<Optimizer> {
       return std::make_unique<Adam>(p, AdamOptions{.weight_decay = 0.1, .amsgrad = true});
     }},
    {"sgd",
     [](const NamedTensors& p) -> std::unique_ptr<Optimizer> {
       return std::make_unique<SGD>(p, SGDOptions{.momentum = 0.9});
     }},
    {"rmsprop",
     [](const NamedTensors& p) -> std::unique_ptr<Optimizer> {
       return std::make_unique<RMSprop>(p, RMSpropOptions{.momentum = 0.9, .centered = true});
     }},
    {"adafactor", [](const NamedTensors& p) -> std::unique_ptr<Optimizer> { return std::make_unique<Adafactor>(p); }},
    {"lion", [](const NamedTensors& p) -> std::unique_ptr<Optimizer> { return std::make_unique<Lion>(p); }},
    {"muon", [](const NamedTensors& p) -> std::unique_ptr<Optimizer> { return std::make_unique<Muon>(p); }}};

/// Returns two parameters and their state after three steps.
std::vector<Tensor> after_three_steps(Make make, const std::function<void(Optimizer&)>& step) {
  Generator generator(4);
  const NamedTensors parameters{{"matrix", randn({5, 3}, {}, generator).set_requires_grad()},
                                {"vector", randn({7}, {}, generator).set_requires_grad()}};
  const std::unique_ptr<Optimizer> optimizer = make(parameters);
  for (int i = 0; i < 3; ++i) {
    for (auto [name, parameter] : parameters) parameter.set_grad(randn(parameter.shape(), {}, generator));
    step(*optimizer);
  }
  std::vector<Tensor> found{parameters[0].second.detach(), parameters[1].second.detach()};
  for (const auto& [name, tensor] : optimizer->state()) found.push_back(tensor);
  return found;
}

TEST(GradientScale, OnTheDeviceEqualsTheNumberAndSkipsNaN) {
  const auto on_device = [](double number) { return full({}, number, {.dtype = DType::f64}); };
  for (const auto& [name, make] : every_rule) {
    const auto expected = after_three_steps(make, [](Optimizer& optimizer) { optimizer.step(0.37); });
    const auto found = after_three_steps(make, [&](Optimizer& optimizer) {
      EXPECT_FALSE(optimizer.step(std::nan("")));
      EXPECT_TRUE(optimizer.step(on_device(std::nan(""))));
      optimizer.step_was_skipped();
      EXPECT_THAT(error_of<Error>([&] { optimizer.step_was_skipped(); }), HasSubstr("no step that could have been"));
      EXPECT_TRUE(optimizer.step(on_device(0.37)));
    });
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(bit_equal(found[i], expected[i])) << name << ", " << i;
  }
}

TEST(Optimizer, ResumesBitForBitForEveryRule) {
  for (const auto& [name, make] : every_rule) {
    const auto whole = after_three_steps(make, [](Optimizer& optimizer) { optimizer.step(); });
    const auto resumed = after_three_steps(make, [](Optimizer& optimizer) {
      NamedTensors state;
      for (const auto& [key, tensor] : optimizer.state()) state.emplace_back(key, tensor.copy());
      for (const auto& [key, tensor] : optimizer.state()) Tensor(tensor).fill(7);
      optimizer.load(state, optimizer.steps());
      optimizer.step();
    });
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(bit_equal(whole[i], resumed[i])) << name << ", " << i;
  }
}

}  // namespace
}  // namespace poolgrad::nn
