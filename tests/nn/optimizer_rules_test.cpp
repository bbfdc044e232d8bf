// The rules of optimizers: SGD, Adam, AdamW, RMSprop and Adafactor against steps computed by PyTorch in f64, Lion and
// Muon against NumPy.
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
using testing_support::error_of;

void expect_steps(Optimizer& optimizer, Tensor parameter, const std::vector<Tensor>& expected) {
  for (int s = 0; s < 3; ++s) {
    parameter.set_grad(gradient(s, 4.0));
    optimizer.step(0.25);
    EXPECT_TRUE(allclose(parameter.detach(), expected[static_cast<std::size_t>(s)], 1e-13, 0))
        << "step " << s << ": " << to_string(parameter, {.precision = 17});
  }
  EXPECT_EQ(optimizer.steps(), 3);
}

TEST(AdamW, FollowsItsDefinition) {
  const Tensor p = start();
  AdamW optimizer({{"p", p}}, {.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .weight_decay = 0.2});
  expect_steps(optimizer, p,
               {vector({0.880990099009901, -1.8603322259136212, 0.39014265335235376}),
                vector({0.7671053179416281, -1.7234578073089701, 0.2985901404938979}),
                vector({0.6556542784580589, -1.589320877076412, 0.2639469541996903})});
}

TEST(SGD, FollowsItsDefinition) {
  const Tensor p = start();
  SGD optimizer({{"p", p}}, {.learning_rate = 0.1, .weight_decay = 0.2});
  expect_steps(
      optimizer, p,
      {vector({0.97, -1.93, 0.42}), vector({0.9306, -1.8614, 0.3916}), vector({0.881988, -1.794172, 0.413768})});
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(SGD, RemembersGradientsWithMomentum) {
  const Tensor p = start();
  SGD optimizer({{"p", p}}, {.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.2});
  expect_steps(optimizer, p,
               {vector({0.97, -1.93, 0.42}), vector({0.91542, -1.81898, 0.32812}),
                vector({0.83248212, -1.67259628, 0.26183432})});
}

TEST(SGD, LooksAheadWithNesterov) {
  const Tensor p = start();
  SGD optimizer({{"p", p}}, {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true});
  expect_steps(
      optimizer, p,
      {vector({0.981, -1.943, 0.367}), vector({0.9349, -1.8617, 0.2723}), vector({0.85441, -1.75853, 0.26207})});
}

TEST(AdamW, KeepsTheLargestSecondMomentWithAmsgrad) {
  const Tensor p = start();
  AdamW optimizer(
      {{"p", p}},
      {.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.5, .epsilon = 1e-3, .weight_decay = 0.2, .amsgrad = true});
  expect_steps(optimizer, p,
               {vector({0.880990099009901, -1.8603322259136212, 0.39014265335235376}),
                vector({0.7740757971909517, -1.7234578073089701, 0.3085953260584212}),
                vector({0.6742268721527125, -1.589320877076412, 0.27861328169636546})});
  EXPECT_EQ(optimizer.state()[2].first, "p.largest_second_moment");
}

TEST(Adam, AddsItsDecayToTheGradient) {
  const Tensor p = start(), q = start();
  Adam plain({{"p", p}}, {.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .weight_decay = 0.2});
  expect_steps(plain, p,
               {vector({0.9003322259136213, -1.9001426533523538, 0.40012484394506864}),
                vector({0.8006178032592136, -1.8003824682610863, 0.313181117861546}),
                vector({0.700686991547104, -1.700785540806057, 0.2713864024652121})});
  Adam largest(
      {{"p", q}},
      {.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.5, .epsilon = 1e-3, .weight_decay = 0.2, .amsgrad = true});
  expect_steps(largest, q,
               {vector({0.9003322259136213, -1.9001426533523538, 0.40012484394506864}),
                vector({0.8036730342128864, -1.7999747847652354, 0.3219947431012509}),
                vector({0.7102747678333076, -1.699311018587817, 0.28813720455530706})});
}

TEST(RMSprop, FollowsItsDefinition) {
  const auto expect = [](RMSpropOptions options, const std::vector<Tensor>& expected) {
    const Tensor p = start();
    options.learning_rate = 0.1, options.alpha = 0.8, options.epsilon = 1e-3;
    RMSprop optimizer({{"p", p}}, options);
    expect_steps(optimizer, p, expected);
    EXPECT_EQ(optimizer.state().size(), 1u + options.centered + (options.momentum != 0));
  };
  expect({.weight_decay = 0.2}, {vector({0.7780475382243668, -1.7771052135277101, 0.27701646019111625}),
                                 vector({0.6004448690138078, -1.61581379948594, 0.2020683961769646}),
                                 vector({0.43883288138816906, -1.4798396194283425, 0.2816177002534381})});
  expect({.momentum = 0.9}, {vector({0.7812838441721071, -1.7780475382243668, 0.27710521352771006}),
                             vector({0.38237744391798756, -1.4125444662727058, 0.008689220594260912}),
                             vector({-0.16268505293451496, -0.9411219341998722, -0.1315889094190895})});
  expect({.centered = true}, {vector({0.7560975609756097, -1.7520661157024793, 0.2508896797153025}),
                              vector({0.5103943118065948, -1.5451695639783414, 0.1717090293965531}),
                              vector({0.26495743160368146, -1.3464372032193002, 0.2752782088413877})});
  expect({.weight_decay = 0.2, .momentum = 0.9, .centered = true},
         {vector({0.7520661157024793, -1.7508896797153024, 0.2507788161993769}),
          vector({0.3087605702348495, -1.3260527378051818, -0.05993592337991506}),
          vector({-0.2995750056732352, -0.7657074422481832, -0.24359191339687836})});
}

TEST(Adafactor, FollowsItsDefinition) {
  const Tensor p = start(), q = start();
  Adafactor optimizer({{"p", p}}, {.learning_rate = 0.1, .weight_decay = 0.2});
  expect_steps(optimizer, p,
               {vector({0.8477124344467705, -1.8277124344467703, 0.3577124344467705}),
                vector({0.6875727642343206, -1.673018335011571, 0.30145488266437426}),
                vector({0.5408100487433182, -1.5372025394354454, 0.36930127387443423})});
  Adafactor large({{"p", q}},
                  {.learning_rate = 2, .beta2_decay = -0.5, .epsilon1 = 1e-2, .epsilon2 = 2, .clip_threshold = 1.25});
  expect_steps(large, q,
               {vector({-1, 0, -1.5}), vector({-2.600942824755564, 1.414213562373095, -2.1823873243052345}),
                vector({-4.041871468996671, 2.640215103560074, -1.1403115182568597})});
}

TEST(Adafactor, KeepsARowAndAColumnOfTheLastTwoDimensions) {
  const auto expect = [](const Shape& shape, const std::vector<double>& expected) {
    Tensor p = Tensor::empty(shape, {.dtype = DType::f64}), sign = p.copy();
    for (std::int64_t i = 0; i < 6; ++i) {
      p.data<double>()[i] = 0.5 * static_cast<double>(i + 1) - 1.0;
      sign.data<double>()[i] = i % 2 == 0 ? 1 : -1;
    }
    p.set_requires_grad();
    const Tensor slope = from_data<double>({0.3, -0.1, 0.2, 0.4, -0.5, 0.6}, shape);
    Adafactor optimizer({{"p", p}}, {.learning_rate = 0.1, .weight_decay = 0.2});
    for (int s = 0; s < 3; ++s) {
      p.set_grad((slope * (1 + 0.5 * s) + sign * (0.1 * s)) * 8.0);
      optimizer.step(0.125);
    }
    EXPECT_TRUE(allclose(p.detach(), from_data(expected, shape), 1e-12, 1e-13)) << to_string(p, {.precision = 17});
    return optimizer.state();
  };
  const NamedTensors flat = expect({2, 3}, {-0.9440865978045191, 0.21096335781469766, 0.1941239526061307,
                                            0.6867563951736902, 1.7521252556493585, 1.5530129670685977});
  EXPECT_EQ(flat[0].first, "p.row_variance");
  EXPECT_EQ(flat[0].second.shape(), (Shape{2, 1}));
  EXPECT_EQ(flat[1].first, "p.column_variance");
  EXPECT_EQ(flat[1].second.shape(), (Shape{1, 3}));
  const NamedTensors cube = expect({2, 1, 3}, {-0.8006337054070658, 0.33948458980958923, 0.13737188214576526,
                                               0.6326306585423834, 1.7232557575280392, 1.569141256911974});
  EXPECT_EQ(cube[0].second.shape(), (Shape{2, 1, 1}));
  Tensor empty = zeros({0, 3}).set_requires_grad(), number = ones({}).set_requires_grad();
  empty.set_grad(zeros({0, 3})), number.set_grad(ones({}));
  Adafactor optimizer({{"empty", empty}, {"number", number}}, {.learning_rate = 0.25});
  optimizer.step();
  EXPECT_EQ(number.item(), 0.75);
}

TEST(OptimizerRules, RefuseInvalidOptions) {
  const NamedTensors some = {{"p", start()}};
  const auto rmsprop = [&](RMSpropOptions options) { return error_of<ValueError>([&] { RMSprop(some, options); }); };
  const auto adafactor = [&](AdafactorOptions o) { return error_of<ValueError>([&] { Adafactor(some, o); }); };
  EXPECT_EQ(error_of<ValueError>([&] { Adam(some, {.beta1 = 1}); }), "[adam] must be in [0, 1): beta1 1");
  EXPECT_EQ(rmsprop({.alpha = 1}), "[rmsprop] must be in [0, 1): alpha 1");
  EXPECT_EQ(rmsprop({.momentum = -1}), "[rmsprop] must not be negative: momentum -1");
  EXPECT_EQ(adafactor({.beta2_decay = 0.5}), "[adafactor] must not be positive: beta2_decay 0.5");
  EXPECT_EQ(adafactor({.clip_threshold = 0.5}), "[adafactor] must not be below 1: clip_threshold 0.5");
  EXPECT_EQ(adafactor({.epsilon1 = -1}), "[adafactor] must not be negative: epsilon1 -1");
}

TEST(Lion, FollowsItsDefinition) {
  const Tensor p = start();
  Lion optimizer({{"p", p}}, {.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.5, .weight_decay = 0.2});
  expect_steps(
      optimizer, p,
      {vector({0.88, -1.86, 0.39}), vector({0.7624, -1.7228, 0.2822}), vector({0.647152, -1.588344, 0.176556})});
}

TEST(Lion, MovesEveryElementByTheLearningRate) {
  const Tensor p = vector({1, 1, 1}).set_requires_grad();
  Lion optimizer({{"p", p}}, {.learning_rate = 0.25, .weight_decay = 0});
  Tensor(p).set_grad(vector({1e-12, -1e12, 0}));
  optimizer.step();
  EXPECT_THAT(p.to_vector<double>(), ElementsAre(0.75, 1.25, 1)) << "but for one of 0";
  EXPECT_EQ(optimizer.state()[0].first, "p.momentum");
}

/// Compares three steps of Muon on a matrix with NumPy's.
void expect_muon(const Shape& shape, bool nesterov, const std::vector<double>& expected) {
  Tensor p = Tensor::empty(shape, {.dtype = DType::f64}), sign = p.copy();
  for (std::int64_t i = 0; i < 6; ++i) {
    p.data<double>()[i] = 0.5 * static_cast<double>(i + 1) - 1.0;
    sign.data<double>()[i] = i % 2 == 0 ? 1 : -1;
  }
  p.set_requires_grad();
  const Tensor slope = from_data<double>({0.3, -0.1, 0.2, 0.4, -0.5, 0.6}, shape);
  Muon optimizer({{"p", p}},
                 {.adamw = {.learning_rate = 0.1, .weight_decay = 0.2}, .momentum = 0.9, .nesterov = nesterov});
  for (int s = 0; s < 3; ++s) {
    p.set_grad((slope * (1 + 0.5 * s) + sign * (0.1 * s)) * 8.0);
    optimizer.step(0.125);
  }
  EXPECT_TRUE(allclose(p.detach(), from_data(expected, shape), 1e-12, 1e-13)) << to_string(p, {.precision = 17});
}

TEST(Muon, FollowsItsDefinition) {
  expect_muon({2, 3}, true,
              {-0.5592351976996198, -0.025627744333908953, 0.4691916518885913, 0.9441928956842179, 1.4678242395653547,
               1.8275133823279663});
  expect_muon({2, 3}, false,
              {-0.5604618862957675, -0.02786526346748518, 0.4698573615941337, 0.943454194071848, 1.4682694732890673,
               1.8276822053665676});
  expect_muon({3, 2}, true,
              {-0.5194877671270594, 0.006019698342535949, 0.41558221442134224, 0.8806317478428582, 1.4600067092109346,
               1.8244090924331433});
  expect_muon({3, 2}, false,
              {-0.5188540345471911, 0.003922170934085179, 0.4146816261817197, 0.8791384525737125, 1.4598543861635966,
               1.8254551922054634});
}

TEST(Muon, UpdatesVectorsAndNamedParametersByAdamW) {
  const AdamWOptions adamw{.learning_rate = 0.1, .weight_decay = 0.3};
  std::vector<Tensor> here, there;
  for (const Shape& shape : {Shape{3}, Shape{2, 2}, Shape{2, 2, 2}}) {
    here.push_back(randn(shape, {.dtype = DType::f64}).set_requires_grad());
    there.push_back(here.back().copy().set_requires_grad());
  }
  Muon muon(
      {{"bias", here[0]}, {"embedding", here[1]}, {"cube", here[2]}},
      {.adamw = adamw, .left_to_adamw = [](const std::string& name, const Tensor&) { return name == "embedding"; }});
  AdamW reference({{"bias", there[0]}, {"embedding", there[1]}, {"cube", there[2]}}, adamw);
  for (int s = 0; s < 3; ++s) {
    for (std::size_t i = 0; i < 3; ++i) {
      const Tensor slope = randn(here[i].shape(), here[i].options());
      here[i].set_grad(slope);
      there[i].set_grad(slope);
    }
    muon.step();
    reference.step();
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(bit_equal(here[i].detach(), there[i].detach())) << i;
  EXPECT_EQ(muon.state().size(), reference.state().size());
}

/// A step that is retried with more memory until it succeeds counts as one step.
void expect_one_step_of_many_tries(bool nesterov) {
  CachingAllocator& pool = allocator_for(cpu);
  const std::size_t budget = pool.budget();
  const Shape shape{4096, 64};
  Tensor matrix = randn(shape).set_requires_grad(), copy = matrix.copy().set_requires_grad();
  const Tensor slope = randn(shape);
  matrix.set_grad(slope);
  copy.set_grad(slope);
  Muon muon({{"matrix", matrix}}, {.nesterov = nesterov}), reference({{"matrix", copy}}, {.nesterov = nesterov});
  reference.step();
  int refused = 0;
  pool.trim();
  const std::size_t live = pool.statistics().reserved_bytes.current;
  for (std::size_t room = 0; muon.steps() == 0; room += std::size_t{1} << 18) {
    pool.set_budget(live + room);
    try {
      muon.step();
    } catch (const OutOfMemoryError&) {
      ++refused;
    }
    pool.set_budget(budget);
  }
  EXPECT_GT(refused, 4) << "the direction has 1 MiB, and so has what it is made of";
  EXPECT_TRUE(bit_equal(muon.state()[0].second, reference.state()[0].second));
  EXPECT_TRUE(bit_equal(matrix.detach(), copy.detach()));
}

TEST(Muon, ChangesNothingInAStepWithoutMemory) {
  for (const bool nesterov : {true, false}) {
    SCOPED_TRACE(nesterov);
    expect_one_step_of_many_tries(nesterov);
  }
}

TEST(Muon, CountsUpdatedParametersWhenMemoryRunsOut) {
  CachingAllocator& pool = allocator_for(cpu);
  const std::size_t budget = pool.budget();
  bool seen = false, done = false;
  for (std::size_t room = 0; !done; room += std::size_t{1} << 18) {
    Tensor small = ones({64, 64}).set_requires_grad(), large = ones({4096, 64}).set_requires_grad();
    small.set_grad(randn({64, 64}));
    large.set_grad(randn({4096, 64}));
    Muon muon({{"small", small}, {"large", large}});
    pool.trim();
    pool.set_budget(pool.statistics().reserved_bytes.current + room);
    try {
      muon.step();
      done = true;
    } catch (const OutOfMemoryError&) {
    }
    pool.set_budget(budget);
    const bool changed = !bit_equal(small.detach(), ones({64, 64}));
    EXPECT_EQ(muon.parameter_steps(), (std::vector<std::int64_t>{changed, done}));
    EXPECT_EQ(muon.steps(), changed);
    seen |= changed && !done;
  }
  EXPECT_TRUE(seen);
}

TEST(Muon, KeepsAMomentumForMatricesAndMomentsForTheRest) {
  const Tensor matrix = ones({2, 3}).set_requires_grad(), flat = ones({3}).set_requires_grad(),
               empty = zeros({0, 3}).set_requires_grad();
  Muon muon({{"matrix", matrix}, {"flat", flat}, {"empty", empty}});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : muon.state()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("flat.first_moment", "flat.second_moment", "matrix.momentum", "empty.momentum"));
  Tensor(matrix).set_grad(zeros({2, 3}));
  Tensor(empty).set_grad(zeros({0, 3}));
  muon.step();
  EXPECT_TRUE(allclose(matrix.detach(), full({2, 3}, 1 - 1e-3 * 0.01))) << "a gradient of 0 only decays";
}

TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  const std::vector<double> values{1, 0.3, 0.05, 0.003};  // singular values of a diagonal matrix, far apart
  Tensor x = zeros({4, 6}, {.dtype = DType::f64});
  double norm_of_x = 0;
  for (const double value : values) norm_of_x += value * value;
  norm_of_x = std::sqrt(norm_of_x);
  for (std::int64_t i = 0; i < 4; ++i) x.data<double>()[7 * i] = 100 * values[static_cast<std::size_t>(i)];
  for (const bool tall : {false, true}) {
    const Tensor y = newton_schulz(tall ? transpose(x, 0, 1) : x);
    for (std::int64_t i = 0; i < 4; ++i) {
      double expected = values[static_cast<std::size_t>(i)] / norm_of_x;
      for (int k = 0; k < 5; ++k)
        expected = 3.4445 * expected - 4.7750 * std::pow(expected, 3) + 2.0315 * std::pow(expected, 5);
      const double found = select(select(y, 0, i), 0, i).item();
      EXPECT_NEAR(found, expected, 1e-13);
      EXPECT_GT(found, 0.68);
      EXPECT_LT(found, 1.21);
    }
    EXPECT_EQ(y.shape(), tall ? Shape({6, 4}) : Shape({4, 6}));
  }
  EXPECT_EQ(error_of<ShapeError>([] { newton_schulz(ones({3})); }),
            "[newton_schulz] x must be a matrix: x (3,) f32 on cpu");
}

TEST(NewtonSchulz, IsInvariantToScale) {
  Generator generator(1);
  const Tensor x = randn({6, 9}, {.dtype = DType::f64}, generator), square = x / max(abs(x));
  const std::vector<std::pair<DType, std::vector<int>>> exponents{{DType::f64, {-1000, -520, -40, 40, 520, 1023}},
                                                                  {DType::f32, {-100, -70, -30, 30, 70, 127}},
                                                                  {DType::bf16, {-100, -70, -30, 30, 70, 127}},
                                                                  {DType::f16, {-4, -2, 9, 15}}};
  for (const auto& [dtype, all] : exponents) {
    const Tensor whole = to(square, dtype), expected = newton_schulz(whole);
    EXPECT_GT(norm(to(expected, DType::f64)).item(), 2);
    for (const int exponent : all) {
      const Tensor scaled = to(to(whole, DType::f64) * std::ldexp(1.0, exponent), dtype);
      EXPECT_TRUE(bit_equal(newton_schulz(scaled), expected)) << to_string(dtype) << " 2^" << exponent;
    }
  }
  const Tensor tiny = full({3, 3}, 5e-324, {.dtype = DType::f64});  // the least positive number
  EXPECT_TRUE(allclose(newton_schulz(tiny), newton_schulz(ones({3, 3}, {.dtype = DType::f64})), 1e-14, 1e-14));
}

TEST(NewtonSchulz, MatchesF64ForHalfTypes) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = full({2, 2}, 60000, {.dtype = dtype});
    const double tolerance = 5 * 6 * (dtype == DType::f16 ? 0x1p-11 : 0x1p-8);  // six roundings in each of five rounds
    EXPECT_TRUE(allclose(to(newton_schulz(x), DType::f64), newton_schulz(to(x, DType::f64)), tolerance, 0));
  }
}

TEST(NewtonSchulz, MapsZerosToZeroAndEmptyToEmpty) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    EXPECT_TRUE(bit_equal(newton_schulz(zeros({3, 2}, {.dtype = dtype})), zeros({3, 2}, {.dtype = dtype})));
    for (const Shape& shape : {Shape{0, 3}, Shape{3, 0}, Shape{0, 0}})
      EXPECT_EQ(newton_schulz(zeros(shape, {.dtype = dtype})).shape(), shape);
    Tensor x = ones({2, 2}, {.dtype = dtype});
    Tensor row = x[0];
    row.fill(std::nan(""));
    EXPECT_TRUE(std::isnan(to(sum(newton_schulz(x)), DType::f64).item()));
  }
}

TEST(Muon, MovesEquallyFarForGradientsOfAnySize) {
  const auto moved = [](double scale) {
    Generator generator(2);
    Tensor p = zeros({4, 6}).set_requires_grad();
    Muon optimizer({{"p", p}}, {.adamw = {.weight_decay = 0}});
    p.set_grad(randn({4, 6}, {}, generator) * scale);
    optimizer.step();
    return p.detach();
  };
  for (const double scale : {0x1p-100, 0x1p-30, 0x1p60, 0x1p120}) EXPECT_TRUE(bit_equal(moved(scale), moved(1)));
}

}  // namespace
}  // namespace poolgrad::nn
