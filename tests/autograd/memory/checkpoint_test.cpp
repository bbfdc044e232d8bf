// Checkpoints give the bits of a graph without them, run functions as often as documented, and free all their memory.
#include "autograd/memory/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <thread>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/memory/rematerialisation.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using local::message_of;
using testing::HasSubstr;
using testing::StartsWith;

using Tensors = std::vector<Tensor>;

std::uint64_t requested_bytes() { return allocator_for(cpu).statistics().requested_bytes.current; }

Tensor parameter(const Shape& shape, std::uint64_t seed = 3) {
  Generator generator(seed);
  return randn(shape, {.dtype = DType::f64}, generator).set_requires_grad();
}

/// A function of several operators with a parameter and dropout. It counts its calls.
class Checkpoint : public testing::Test {
 protected:
  void TearDown() override {
    x_ = weight_ = {};
    EXPECT_EQ(live_node_count(), nodes_);
    EXPECT_EQ(requested_bytes(), bytes_);
  }

  Tensor deep(const Tensor& x) {
    ++calls_;
    const Tensor hidden = dropout(gelu(matmul(x, weight_)), 0.3, generator_);
    return tanh(hidden * hidden + x);
  }
  std::function<Tensor(const Tensor&)> function() {
    return [this](const Tensor& x) { return deep(x); };
  }
  /// Gradients of x and weight, with the same random numbers each time.
  Tensors gradients(const std::function<Tensor(const Tensor&)>& loss) {
    generator_.set_seed(1);
    sum(loss(x_)).backward();
    Tensors found{x_.grad(), weight_.grad()};
    x_.set_grad({});
    weight_.set_grad({});
    return found;
  }
  static void expect_same(const Tensors& found, const Tensors& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(bit_equal(found[i], expected[i])) << "tensor " << i;
  }

  const std::int64_t nodes_ = live_node_count();
  const std::uint64_t bytes_ = requested_bytes();
  Generator generator_{1};
  int calls_ = 0;
  Tensor x_ = parameter({4, 8}), weight_ = parameter({8, 8}, 4);
};

TEST_F(Checkpoint, GivesTheSameBitsWithOneRecomputation) {
  const Tensors expected = gradients(function());
  const kernels::RandomKey after = generator_.state();
  EXPECT_EQ(calls_, 1);
  expect_same(gradients([&](const Tensor& x) { return checkpoint(function(), x); }), expected);
  EXPECT_EQ(calls_, 3);
  EXPECT_EQ(generator_.state().offset, after.offset);  // the second run takes no random numbers
}

TEST_F(Checkpoint, KeepsOnlyTheInputs) {
  const Tensor wide = parameter({256, 256});
  const auto kept = [&](const auto& loss) {
    const std::uint64_t before = requested_bytes();
    const Tensor y = loss();
    return requested_bytes() - before - 256 * 256 * sizeof(double);  // y itself
  };
  const auto chain = [&](const Tensor& x) { return tanh(exp(tanh(sin(x)))) * 2.0; };
  EXPECT_EQ(kept([&] { return chain(wide); }), 3u * 256 * 256 * sizeof(double));
  EXPECT_EQ(kept([&] { return checkpoint(chain, wide); }), 0u);
}

TEST_F(Checkpoint, StopsAfterTheLastSavedTensor) {
  int ends = 0;
  const Tensor y = checkpoint(
      [&](const Tensor& x) {
        const Tensor squared = x * x;
        ++ends;
        return squared + 1.0;  // saves no tensor
      },
      x_);
  EXPECT_EQ(ends, 1);
  sum(y).backward();
  EXPECT_EQ(ends, 1);
  EXPECT_TRUE(bit_equal(x_.grad(), 2.0 * x_.detach()));
}

TEST_F(Checkpoint, RecomputesOnlyForNeededTensors) {
  const Tensor y = checkpoint(function(), x_);
  sum(x_ * x_).backward();
  EXPECT_EQ(calls_, 1);
}

TEST_F(Checkpoint, NestsAndRecomputesEachLevelOnce) {
  const Tensors expected = gradients([&](const Tensor& x) { return deep(deep(deep(x))); });
  calls_ = 0;
  const auto inner = [&](const Tensor& x) { return checkpoint(function(), x); };
  expect_same(gradients([&](const Tensor& x) {
                return checkpoint([&](const Tensor& y) { return inner(inner(inner(y))); }, x);
              }),
              expected);
  EXPECT_EQ(calls_, 3 + 2 + 3);  // forward; the outer again, up to the last inner's input; each inner again
}

TEST_F(Checkpoint, NestedMayCaptureAViewOfItsInput) {
  for (const bool captured_first : {true, false}) {
    const auto surrounding = [&](const std::function<Tensors(const Definition&, const Tensors&)>& inner) {
      return [this, inner, captured_first](const Tensor& x) {
        const Tensor hidden = exp(matmul(x, weight_)), first = slice(hidden, 0, 0, 2);
        return inner(
            [first, captured_first](const Tensors& in) -> Tensors {
              const Tensor a = captured_first ? square(first) : square(in[0]);
              const Tensor b = captured_first ? sin(in[0]) : sin(first);
              return {sum(a) * sum(b)};
            },
            {hidden})[0];
      };
    };
    const auto plain = surrounding([](const Definition& f, const Tensors& in) { return f(in); });
    const auto nested = surrounding([](const Definition& f, const Tensors& in) { return checkpoint(f, in); });
    const Tensors expected = gradients(plain);
    expect_same(gradients([&](const Tensor& x) { return checkpoint(nested, x); }), expected);
  }
}

// The outer input is a leaf only in the second run, in which the inner checkpoint then keeps no tensor.
TEST_F(Checkpoint, NestedMayCaptureTheInputOfTheOuterCheckpoint) {
  const auto outer = [](const std::function<Tensors(const Definition&, const Tensors&)>& inner) {
    return [inner](const Tensor& hidden) {
      const Tensor shifted = hidden + 1.0;
      const Tensors both = inner(
          [hidden](const Tensors& in) -> Tensors {
            return {reshape(in[0], {-1}), gelu(hidden)};
          },
          {shifted});
      return sum(square(both[0])) * both[1];
    };
  };
  const auto plain = outer([](const Definition& f, const Tensors& in) { return f(in); });
  const auto nested = outer([](const Definition& f, const Tensors& in) { return checkpoint(f, in); });
  const Tensors expected = gradients([&](const Tensor& x) { return plain(matmul(x, weight_)); });
  expect_same(gradients([&](const Tensor& x) { return checkpoint(nested, matmul(x, weight_)); }), expected);
}

TEST_F(Checkpoint, NestedRecomputesTheSurroundingFunctions) {
  const auto both = [&](const Tensor& x) { return deep(checkpoint(function(), deep(x))); };
  const Tensors expected = gradients([&](const Tensor& x) { return deep(deep(deep(x))); });
  calls_ = 0;
  expect_same(gradients([&](const Tensor& x) { return checkpoint(both, x); }), expected);
  EXPECT_EQ(calls_, 3 + 3 + 1);
}

TEST_F(Checkpoint, ASecondBackwardRunsTheFunctionAgain) {
  const Tensor y = sum(checkpoint(function(), x_));
  const std::uint64_t before = requested_bytes();
  const Tensor first = grad({y}, {x_}, {}, {.retain_graph = true})[0];
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(requested_bytes(), before + 4 * 8 * sizeof(double));  // the recomputed tensors are freed
  const Tensor second = grad({y}, {x_})[0];
  EXPECT_EQ(calls_, 3);
  EXPECT_TRUE(bit_equal(first, second));
  EXPECT_THROW(grad({y}, {x_}), Error);
  EXPECT_EQ(calls_, 3);
}

TEST_F(Checkpoint, HasSecondDerivatives) {
  const auto second = [&](const std::function<Tensor(const Tensor&)>& f) {
    generator_.set_seed(1);
    const Tensors first = grad({sum(f(x_))}, {x_, weight_}, {}, {.create_graph = true});
    return grad({sum(first[0] * first[0]) + sum(first[1])}, {x_, weight_});
  };
  const Tensors expected = second(function());
  expect_same(second([&](const Tensor& x) { return checkpoint(function(), x); }), expected);
}

TEST_F(Checkpoint, KeepsLeavesOnlyIfTheFunctionOwnsThem) {
  const auto product = [](const Tensor& x, const Tensor& w) { return sum(tanh(matmul(x, w))); };
  enum class Way { by_reference, as_input, by_grad, by_value_and_dropped };
  for (const Way way : {Way::by_reference, Way::as_input, Way::by_grad, Way::by_value_and_dropped}) {
    const std::int64_t nodes = live_node_count();
    const std::uint64_t bytes = requested_bytes();
    {
      const Tensor x = parameter({4, 8}, 5);
      Tensor w = parameter({8, 8}, 6);
      Tensor y;
      if (way == Way::by_reference)
        y = checkpoint([&](const Tensor& at) { return product(at, w); }, x);
      else if (way == Way::as_input)
        y = checkpoint([&](const Tensors& at) { return Tensors{product(at[0], at[1])}; }, Tensors{x, w})[0];
      else
        y = checkpoint([=](const Tensor& at) { return product(at, w); }, x);
      if (way == Way::by_grad)
        EXPECT_TRUE(grad({y}, {w}, {}, {.create_graph = true})[0].requires_grad());
      else
        y.backward({}, false, /*create_graph=*/true);
      EXPECT_EQ(w.grad().defined(), way != Way::by_grad);
      if (way == Way::by_value_and_dropped) w.set_grad({});
    }
    EXPECT_EQ(live_node_count(), nodes) << "way " << static_cast<int>(way);
    EXPECT_EQ(requested_bytes(), bytes) << "way " << static_cast<int>(way);
  }
}

TEST_F(Checkpoint, TheFunctionMayTakeGradientsItself) {
  const auto penalty = [&](const Tensor& x) {
    ++calls_;
    const Tensor y = sum(tanh(matmul(x, weight_)) * x);
    const Tensor slope = grad({y}, {x}, {}, {.create_graph = true})[0];
    return y + sum(slope * slope);
  };
  const Tensors expected = gradients(penalty);
  calls_ = 0;
  expect_same(gradients([&](const Tensor& x) { return checkpoint(penalty, x); }), expected);
  EXPECT_EQ(calls_, 3);  // forward, once for the inner gradient, once for the outer one
}

TEST_F(Checkpoint, HooksOfTheFunctionRunOnce) {
  int hooks = 0;
  const Tensor y = checkpoint(
      [&](const Tensor& x) {
        const Tensor hidden = sin(x);
        register_hook(hidden, [&](const Tensor& gradient) {
          ++hooks;
          return 2.0 * gradient;
        });
        return exp(hidden);
      },
      x_);
  sum(y).backward();
  EXPECT_EQ(hooks, 1);
  EXPECT_TRUE(bit_equal(x_.grad(), 2.0 * exp(sin(x_.detach())) * cos(x_.detach())));
}

TEST_F(Checkpoint, BackwardMayRunOnAnotherThread) {
  const Tensors expected = gradients(function());
  generator_.set_seed(1);
  Tensor y = sum(checkpoint(function(), x_));
  std::thread([&] { std::exchange(y, {}).backward(); }).join();
  expect_same({x_.grad(), weight_.grad()}, expected);
}

TEST_F(Checkpoint, TakesAndReturnsTensorsOfEveryKind) {
  const Tensor rows = from_data<std::int64_t>({2, 0, 2}, {3});
  Tensor loose;
  const auto run = [&](bool checkpointed) {
    const Definition function = [&](const Tensors& in) -> Tensors {
      EXPECT_FALSE(in[1].defined());
      const Tensor picked = index_select(exp(in[0]), 0, in[2]);
      return {picked, Tensor(), in[2], in[0], slice(in[0], 0, 1, 3), argmax(in[0], 0), picked.detach() * 2.0};
    };
    const Tensors out = checkpointed ? checkpoint(function, {x_, {}, rows}) : function({x_, {}, rows});
    EXPECT_FALSE(out[1].defined());
    EXPECT_TRUE(out[2].is_same(rows));
    EXPECT_TRUE(out[3].is_same(x_));
    EXPECT_TRUE(out[4].shares_storage_with(x_));
    EXPECT_FALSE(out[6].requires_grad());
    return grad({sum(out[0] * out[0]) + sum(out[4] * out[3].detach().alias(out[4].geometry()))}, {x_})[0];
  };
  EXPECT_TRUE(bit_equal(run(true), run(false)));
}

TEST_F(Checkpoint, NeedsNoInputs) {
  const Tensors out = checkpoint([&](const Tensors&) { return Tensors{deep(weight_ * 0.5)}; }, Tensors{});
  EXPECT_EQ(checkpoint([](const Tensors&) { return Tensors{}; }, Tensors{}).size(), 0u);
  x_ = weight_;
  sum(out[0]).backward();
  EXPECT_EQ(calls_, 2);
  EXPECT_TRUE(weight_.grad().defined());
}

TEST_F(Checkpoint, KeepsNothingWithoutRequiresGrad) {
  const std::int64_t nodes = live_node_count();
  {
    const NoGradGuard guard;
    const Tensor y = checkpoint(function(), x_);
    EXPECT_FALSE(y.requires_grad());
  }
  const std::uint64_t before = requested_bytes();
  Tensor fixed = x_.detach() * 2.0;
  const Tensor y = checkpoint([](const Tensor& x) { return exp(sin(x)); }, fixed);
  EXPECT_FALSE(y.requires_grad());
  fixed = {};
  EXPECT_EQ(requested_bytes(), before + 4 * 8 * sizeof(double));  // y
  EXPECT_EQ(live_node_count(), nodes);
}

TEST_F(Checkpoint, KeepsSharedInputMemoryInTheSecondRun) {
  const auto run = [&](bool checkpointed) {
    const Definition function = [](const Tensors& in) {
      EXPECT_TRUE(in[0].shares_storage_with(in[1]));
      return Tensors{exp(in[0]) * in[1] * in[2]};
    };
    const Tensor base = x_ * 3.0;
    const Tensors in{slice(base, 0, 0, 2), slice(base, 0, 1, 3), slice(x_, 0, 2, 4)};
    return grad({sum((checkpointed ? checkpoint(function, in) : function(in))[0])}, {x_})[0];
  };
  EXPECT_TRUE(bit_equal(run(true), run(false)));
}

/// Moves saved tensors out of the pool.
class Elsewhere : public SavedTensorPolicy {
 public:
  struct Moved : PackedTensor {
    Moved(const Tensor& tensor) : shape(tensor.shape()), values(tensor.to_vector<double>()) {}
    Tensor unpack() override { return from_data(values, shape); }
    Shape shape;
    std::vector<double> values;
  };
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) override {
    names.push_back(use.operation);
    return tensor.dtype() == DType::f64 && !use.is_leaf ? std::make_unique<Moved>(tensor) : nullptr;
  }
  std::vector<std::string> names;
};

TEST_F(Checkpoint, PassesItsInputsToTheOuterPolicy) {
  const Tensors expected = gradients([&](const Tensor& x) { return deep(deep(x) + x); });
  Elsewhere policy;
  expect_same(gradients([&](const Tensor& x) { return checkpoint(function(), deep(x) + x); }), expected);
  EXPECT_THAT(policy.names, testing::Contains("checkpoint"));
}

TEST_F(Checkpoint, AcceptsInputsDroppedByAnOuterPolicy) {
  const auto around = [&](const Tensor& x) { return exp(checkpoint(function(), sin(x)) * 0.5); };
  const Tensors expected = gradients([&](const Tensor& x) { return exp(deep(sin(x)) * 0.5); });
  const Rematerialisation policy({.drop_below = 1e9});
  calls_ = 0;
  expect_same(gradients(around), expected);
  EXPECT_EQ(calls_, 3);  // forward, once for its result, once for the saved tensors of its nodes
}

TEST_F(Checkpoint, LeavesNothingBehindWhenTheFunctionThrows) {
  const auto fails = [&](const Tensor& x) -> Tensor {
    const Tensor y = exp(x);
    if (++calls_ >= 1) throw std::runtime_error("no more");
    return y;
  };
  EXPECT_THROW(checkpoint(fails, x_), std::runtime_error);
  calls_ = 0;
  const Tensors expected = gradients(function());
  expect_same(gradients([&](const Tensor& x) { return checkpoint(function(), x); }), expected);
}

TEST_F(Checkpoint, MayBeRetriedAfterTheSecondRunThrows) {
  bool fails = false;
  const auto sometimes = [&](const Tensor& x) {
    const Tensor y = sin(x);
    if (fails) throw std::runtime_error("not now");
    return exp(y);
  };
  const Tensor y = sum(checkpoint(sometimes, x_));
  const std::uint64_t before = requested_bytes();
  fails = true;
  EXPECT_THROW(grad({y}, {x_}, {}, {.retain_graph = true}), std::runtime_error);
  EXPECT_EQ(requested_bytes(), before);
  EXPECT_TRUE(grad_enabled());
  fails = false;
  const Tensor found = grad({y}, {x_})[0];
  EXPECT_TRUE(bit_equal(found, grad({sum(sometimes(x_))}, {x_})[0]));
}

TEST_F(Checkpoint, TagsRecomputedMemoryAsInTheFirstRun) {
  std::vector<Tag> tags;
  Tensor y;
  {
    const MemoryScope scope("tower", Category::activation);
    y = checkpoint(
        [&](const Tensor& x) {
          const MemoryScope inner("floor");
          tags.push_back(current_tag());
          return exp(sin(x));
        },
        x_);
  }
  sum(y).backward();
  ASSERT_EQ(tags.size(), 2u);
  EXPECT_EQ(scope_name(tags[1].scope), "tower.floor");
  EXPECT_EQ(tags[1].scope, tags[0].scope);
  EXPECT_EQ(tags[1].category, Category::activation);
}

std::string backward_error(const Tensor& y) {
  return message_of([&] { sum(y).backward(); });
}

TEST_F(Checkpoint, ReportsTheFirstDifferingOperation) {
  int run = 0;
  const auto refused = [&](const std::function<Tensor(const Tensor&)>& odd) {
    run = 0;
    return backward_error(checkpoint([&](const Tensor& x) { return ++run, odd(x); }, x_));
  };
  const std::string start = "[checkpoint] the second run of the function differs from the first: ";
  EXPECT_EQ(refused([&](const Tensor& x) { return exp(run == 1 ? x * x : x + x) * x; }),
            start + "operation 0 was mul (4, 8) f64 on cpu, now add (4, 8) f64 on cpu");
  EXPECT_EQ(refused([&](const Tensor& x) { return exp(slice(exp(x), 0, 0, run)); }),
            start + "operation 1 was slice (1, 8) f64 on cpu, now slice (2, 8) f64 on cpu");
  EXPECT_EQ(refused([&](const Tensor& x) { return run == 1 ? exp(sin(x)) : sin(x); }),
            start + "it ended after 1 operations, not 2");
  const Tensor captured = x_ * 2.0;
  EXPECT_THAT(refused([&](const Tensor& x) { return exp(x * (run == 1 ? x : captured)) * x; }), StartsWith(start));
  const Tensor thin = x_.detach().alias({{4, 3}, {8, 1}, 0}).copy().set_requires_grad();
  const Tensor narrow[] = {thin * 1.0, thin * 2.0}, wide[] = {x_ * 1.0, x_ * 2.0};
  EXPECT_EQ(refused([&](const Tensor& x) {
              const Tensor(&factors)[2] = run == 1 ? wide : narrow;
              return x * sum(matmul(factors[0], transpose(factors[1], 0, 1)));
            }),
            start + "operation 0 was transpose (8, 4) f64 on cpu, now transpose (3, 4) f64 on cpu");
}

TEST_F(Checkpoint, ReportsDifferentRandomNumbers) {
  int run = 0;
  const Tensor y = checkpoint(
      [&](const Tensor& x) {
        if (++run == 2) generator_.take(5);
        return exp(dropout(x, 0.5, generator_));
      },
      x_);
  EXPECT_THAT(backward_error(y), StartsWith("[generator] a recomputation asks for 5 random numbers"));
}

TEST_F(Checkpoint, NamesAnInputWrittenBeforeTheSecondRun) {
  Tensor mask = ones({4, 8}, {.dtype = DType::f64});
  Tensor input = x_ * 2.0;
  const auto masked = [&](const Tensor& x) { return exp(sin(x) + mask); };
  Tensor y = checkpoint(masked, input);
  mask.fill(0.0);
  EXPECT_EQ(backward_error(y),
            "[checkpoint] the function cannot be run again: input 1 of its operation 1, add, (4, 8) f64 on cpu was "
            "written in place: used at version 0, now at version 1");
  input = x_ * 2.0;
  y = checkpoint(masked, input);
  {
    const NoGradGuard guard;
    input.fill(0.0);
  }
  EXPECT_THAT(backward_error(y), HasSubstr("input 0 of the function (4, 8) f64 on cpu was written in place"));
  y = checkpoint(function(), x_);
  {
    const NoGradGuard guard;
    weight_.fill(0.0);
  }
  EXPECT_THAT(backward_error(y), HasSubstr("was written in place"));
}

TEST_F(Checkpoint, ReportsAWriteToASavedTensor) {
  const auto careless = [](const Tensor& x) {
    Tensor y = exp(x);
    const NoGradGuard guard;
    y.fill(1.0);
    const EnableGradGuard grad;
    return sin(x) * y;
  };
  EXPECT_THAT(backward_error(checkpoint(careless, x_)),
              HasSubstr("wrote in place to a tensor that operation 0, exp, saved"));
}

TEST_F(Checkpoint, RunsAndFreesALongChain) {
  const auto add = [](const Tensor& x) { return tanh(x) * 0.5; };
  Tensor y = x_;
  for (int i = 0; i < 20000; ++i) y = checkpoint(add, y);
  sum(y).backward();
  EXPECT_TRUE(x_.grad().defined());
}

}  // namespace
}  // namespace poolgrad
