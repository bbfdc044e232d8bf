// Saved tensors that a memory budget drops and computes again.
#include "autograd/memory/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/node.h"
#include "autograd/engine/record.h"
#include "autograd/memory/checkpoint_tiled.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

using ::testing::HasSubstr;

constexpr double everything = std::numeric_limits<double>::infinity();

std::uint64_t live_in_pool() { return allocator_for(cpu).statistics().requested_bytes.current; }

/// Residual blocks whose intermediates are far larger than their parameters.
class Blocks {
 public:
  explicit Blocks(int depth, double dropout = 0.1, std::int64_t rows = 256, std::int64_t width = 32)
      : dropout_(dropout) {
    x_ = randn({rows, width}, {}, generator_);
    for (int i = 0; i < depth; ++i) {
      parameters_.push_back(ones({width}));
      parameters_.push_back(randn({4 * width, width}, {}, generator_) * 0.1);
      parameters_.push_back(randn({width, 4 * width}, {}, generator_) * 0.1);
    }
    for (Tensor& parameter : parameters_) parameter = parameter.detach().set_requires_grad();
  }

  /// The gradients of all parameters.
  std::vector<Tensor> gradients(BackwardOptions options = {}) { return grad({loss()}, parameters_, {}, options); }
  Tensor loss() {
    Generator masks(7);
    Tensor x = x_;
    for (std::size_t i = 0; i < parameters_.size(); i += 3) {
      const Tensor normed = rms_norm(x, parameters_[i]);
      const Tensor hidden = gelu(linear(normed, parameters_[i + 1]));
      x = x + dropout(linear(hidden, parameters_[i + 2]), dropout_, masks);
    }
    return mean(square(x));
  }
  std::vector<Tensor>& parameters() { return parameters_; }

 private:
  double dropout_;
  Generator generator_{11};
  Tensor x_;
  std::vector<Tensor> parameters_;
};

void expect_equal_bits(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(bit_equal(found[i], expected[i])) << "gradient " << i;
}

/// Peak of reserved bytes while `body` runs, from an empty cache.
std::size_t peak_of(const std::function<void()>& body) {
  CachingAllocator& pool = allocator_for(cpu);
  pool.trim();
  pool.reset_peaks();
  body();
  return pool.statistics().reserved_bytes.peak;
}

TEST(MemoryBudget, GivesTheSameBitsAtEverySizeDownToTheInfeasible) {
  Blocks blocks(12);
  std::vector<Tensor> expected;
  const std::size_t unlimited = peak_of([&] { expected = blocks.gradients(); });
  const std::size_t standing = peak_of([] {});
  std::size_t feasible = 0, infeasible = 0, last_peak = unlimited;
  for (int percent = 100; percent >= 0; percent -= 4) {
    const std::size_t bytes = standing + (unlimited - standing) * static_cast<std::size_t>(percent) / 100;
    const MemoryBudget budget(bytes);
    std::size_t peak = 0;
    try {
      peak = peak_of([&] { expect_equal_bits(blocks.gradients(), expected); });
      EXPECT_EQ(infeasible, 0u) << percent << " % is enough, but more was not";
      EXPECT_LE(peak, last_peak) << percent << " %";
      last_peak = peak;
      ++feasible;
    } catch (const OutOfMemoryError& error) {
      EXPECT_THAT(error.what(), HasSubstr("saved tensors that can be recomputed"));
      peak = allocator_for(cpu).statistics().reserved_bytes.peak;
      ++infeasible;
    }
    EXPECT_LE(peak, bytes) << percent << " %";
  }
  EXPECT_GE(feasible, 15u);  // down to 40 % of the savable bytes
  EXPECT_GE(infeasible, 1u);
  expect_equal_bits(blocks.gradients(), expected);
}

TEST(MemoryBudget, DropsNothingWithEnoughMemory) {
  Blocks blocks(4);
  const std::size_t unlimited = peak_of([&] { blocks.gradients(); });
  const MemoryBudget budget(2 * unlimited);
  blocks.gradients();
  EXPECT_GT(budget.statistics().saved, 0u);
  EXPECT_EQ(budget.statistics().dropped, 0u);
  EXPECT_EQ(budget.statistics().recomputed, 0u);
}

TEST(MemoryBudget, ReportsEndlessRecomputationAsTooSmall) {
  // Each of 1000 gradients needs the last tensor of a chain of its own length, and no tensor of a chain fits the
  // budget.
  CachingAllocator& pool = allocator_for(cpu);
  const Tensor x = rand({1 << 12}, 0.5, 1.0).set_requires_grad();
  const auto run = [&] {
    Tensor y = x;
    for (int i = 0; i < 1000; ++i) y = sin(y);
    return grad({sum(y)}, {x})[0];
  };
  const Tensor expected = run();
  pool.trim();
  const std::size_t standing = pool.statistics().reserved_bytes.current;
  std::string refusal;
  for (std::size_t tensors = 4; tensors > 2 && refusal.empty(); --tensors) {
    const MemoryBudget budget(standing + tensors * (1 << 14));
    try {
      EXPECT_TRUE(bit_equal(run(), expected)) << tensors << " tensors";
    } catch (const Error& error) {
      refusal = error.what();
    }
  }
  EXPECT_THAT(refusal, HasSubstr("[sin] recomputation of saved tensors has taken more than 50 times as long"));
  EXPECT_TRUE(bit_equal(run(), expected));
}

TEST(MemoryBudget, FitsAFeedForwardLayerInTwoHiddenTensors) {
  // The input of the second product is computed again before its gradient exists, and gelu's gradient overwrites the
  // gradient of its result.
  const std::int64_t rows = 4096, hidden = 256;
  const Tensor x = rand({rows, 8}, -1, 1).set_requires_grad(), in = rand({hidden, 8}, -1, 1).set_requires_grad(),
               out = rand({8, hidden}, -1, 1).set_requires_grad();
  const auto loss = [&] { return sum(linear(gelu(linear(x, in)), out)); };
  const auto run = [&] {
    const Tensor y = loss();
    Tensor::empty({9 * rows * hidden / 4});  // drops all tensors of the forward
    return grad({y}, {x, in, out});
  };
  const std::vector<Tensor> expected = run();
  CachingAllocator& pool = allocator_for(cpu);
  pool.trim();
  const MemoryBudget budget(pool.statistics().reserved_bytes.current + 5 * rows * hidden * sizeof(float) / 2);
  const std::vector<Tensor> gradients = run();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(bit_equal(gradients[i], expected[i]));
}

TEST(MemoryBudget, RestoresThePool) {
  CachingAllocator& pool = allocator_for(cpu);
  const std::size_t before = pool.budget();
  {
    const MemoryBudget budget(64_MiB);
    EXPECT_EQ(pool.budget(), 64_MiB);
  }
  EXPECT_EQ(pool.budget(), before);
  const Tensor large = zeros({1 << 20});
  EXPECT_THROW(MemoryBudget(4096), ValueError);
  EXPECT_THROW(MemoryBudget(0), ValueError);
  EXPECT_EQ(pool.budget(), before);
}

TEST(MemoryBudget, AppliesToAGraphThatOutlivesIt) {
  Blocks blocks(8);
  std::vector<Tensor> expected;
  const std::size_t unlimited = peak_of([&] { expected = blocks.gradients(); });
  Tensor loss;
  {
    allocator_for(cpu).trim();
    const MemoryBudget budget(unlimited * 6 / 10);
    loss = blocks.loss();
  }
  expect_equal_bits(grad({loss}, blocks.parameters()), expected);
}

TEST(Rematerialisation, DropsCheapTensorsAndKeepsProducts) {
  Blocks blocks(6, 0.1, 64, 128);
  const std::vector<Tensor> expected = blocks.gradients();
  const Rematerialisation selective({.drop_below = 1.0});
  expect_equal_bits(blocks.gradients(), expected);
  // Of each block, the results of the norm and of gelu are dropped: both are cheap. The product before gelu stays. So
  // do the sums on the residual stream, which depend on a product that is not kept.
  EXPECT_EQ(selective.statistics().dropped, 12u);
  EXPECT_EQ(selective.statistics().recomputed, 12u);
}

TEST(Rematerialisation, RecomputesEverythingFromTheInputs) {
  Blocks blocks(6);
  const std::vector<Tensor> expected = blocks.gradients();
  const Rematerialisation all({.drop_below = everything});
  const std::uint64_t before = live_in_pool();
  const Tensor loss = blocks.loss();
  // The loss, the statistics of six norms (256 rows in f32), and the tensor that the last operator saved. The policy
  // decides about that tensor at the next operator.
  EXPECT_LE(live_in_pool() - before, 4u + 6u * 1024u + 256u * 32u * 4u);
  expect_equal_bits(grad({loss}, blocks.parameters()), expected);
  EXPECT_LE(all.statistics().recomputed, 6u * 6u) << "each operator once";
}

TEST(Rematerialisation, TreatsTilesAsOneOperator) {
  const Tensor weight = (randn({32, 32}) * 0.2).detach().set_requires_grad();
  const Tensor start = randn({512, 32}).set_requires_grad();
  const auto run = [&](std::uint64_t* kept) {
    Generator masks(3);
    const std::uint64_t before = live_in_pool();
    Tensor x = start * 1.0;
    for (int i = 0; i < 6; ++i)
      x = x +
          checkpoint_tiled([&](const Tensor& h) { return dropout(gelu(linear(h, weight)), 0.2, masks); }, x, 0, 100);
    const Tensor loss = mean(square(x));
    x = {};
    if (kept != nullptr) *kept = live_in_pool() - before;
    return grad({loss}, {start, weight});
  };
  const std::vector<Tensor> expected = run(nullptr);
  const Rematerialisation all({.drop_below = everything});
  std::uint64_t kept = 0;
  expect_equal_bits(run(&kept), expected);
  EXPECT_LE(kept, 512u * 32u * 4u) << "one of the sums at most, and no result of tiles";
  EXPECT_GT(all.statistics().recomputed, 6u);
}

TEST(Rematerialisation, CountsAStorageOnceForAllItsViews) {
  const Tensor x = randn({8, 96}).set_requires_grad();
  const Rematerialisation policy;
  const Tensor y = tanh(x);
  const std::vector<Tensor> parts = split(y, 3, 1);
  const Tensor product = parts[0] * parts[1] * parts[2];
  const RematerialisationStatistics statistics = policy.statistics();
  EXPECT_EQ(statistics.saved, 2u);  // y and the first product
  EXPECT_EQ(statistics.saved_bytes, 8u * 96u * 4u + 8u * 32u * 4u);
}

TEST(Rematerialisation, RejectsAnInputWrittenInPlace) {
  Blocks blocks(2);
  const Rematerialisation all({.drop_below = everything});
  const Tensor loss = blocks.loss();
  {
    const NoGradGuard guard;
    blocks.parameters()[0].fill(0.5);
  }
  try {
    grad({loss}, blocks.parameters());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("written in place"));
    EXPECT_THAT(error.what(), HasSubstr("(32,) f32 on cpu"));
  }
  EXPECT_NO_THROW(blocks.gradients());
}

TEST(Rematerialisation, RejectsAWrittenInputThatOnlyARecipeReads) {
  const Tensor x = rand({64}, 0.5, 1.5).set_requires_grad();
  Tensor shift = ones({64});
  const Rematerialisation all({.drop_below = everything});
  const Tensor loss = sum(exp(x + shift));  // no node saves the sum; it is computed again for exp
  shift.fill(2.0);
  EXPECT_THAT(testing_support::error_of<Error>([&] { grad({loss}, {x}); }),
              HasSubstr("[add] cannot be recomputed: an input (64,) f32 on cpu was written in place"));
}

TEST(Rematerialisation, KeepsValuesWrittenIntoAResultBeforeItsUse) {
  const Tensor x = rand({64}, 0.5, 1.5).set_requires_grad();
  const auto run = [&] {
    const auto loss = [&] {
      Tensor y = x * 2.0;
      const NoGradGuard guard;
      y.fill(0.7);
      const EnableGradGuard again;
      return sum(exp(y));
    };
    return grad({loss()}, {x})[0];
  };
  const Tensor expected = run();
  const Rematerialisation all({.drop_below = everything});
  EXPECT_TRUE(bit_equal(run(), expected));
}

TEST(Rematerialisation, IgnoresWritesToAnUnsavedResult) {
  const Tensor x = rand({64}, 0.5, 1.5).set_requires_grad();
  const auto run = [&](bool write) {
    Tensor y = x * 2.0;  // no node saves its input or its result
    const Tensor z = exp(y + 1.0);
    if (write) {
      const NoGradGuard guard;
      y.fill(0.0);
    }
    return grad({sum(z * z)}, {x})[0];
  };
  const Tensor expected = run(false);
  const Rematerialisation all({.drop_below = everything});
  EXPECT_TRUE(bit_equal(run(true), expected));
}

TEST(Rematerialisation, ServesASecondBackwardAndSecondDerivatives) {
  const Tensor x = rand({32}, 0.5, 1.5).set_requires_grad();
  const auto run = [&] {
    const Tensor y = sum(exp(sin(x) * x));
    const Tensor first = grad({y}, {x}, {}, {.create_graph = true})[0];
    const Tensor second = grad({sum(first * first)}, {x}, {}, {.retain_graph = true})[0];
    return std::vector<Tensor>{first.detach(), second, grad({y}, {x})[0]};
  };
  const std::vector<Tensor> expected = run();
  const Rematerialisation all({.drop_below = everything});
  expect_equal_bits(run(), expected);
}

TEST(Rematerialisation, RunsTheBackwardOnAnotherThread) {
  Blocks blocks(4);
  const std::vector<Tensor> expected = blocks.gradients();
  const Rematerialisation all({.drop_below = everything});
  const Tensor loss = blocks.loss();
  std::vector<Tensor> found;
  std::thread([&] { found = grad({loss}, blocks.parameters()); }).join();
  expect_equal_bits(found, expected);
}

TEST(Rematerialisation, LeaksNoMemory) {
  Blocks blocks(5);
  blocks.gradients();
  const std::uint64_t bytes = live_in_pool();
  const std::int64_t nodes = live_node_count();
  {
    const Rematerialisation all({.drop_below = everything});
    blocks.gradients();
    EXPECT_EQ(all.statistics().held_bytes, 0u);
    const Tensor never_used = blocks.loss();
  }
  EXPECT_EQ(live_in_pool(), bytes);
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(Rematerialisation, DoesNotRecurseOverALongChain) {
  const Tensor x = rand({4}, 0.5, 1.0).set_requires_grad();
  const auto run = [&] {
    Tensor y = x;
    for (int i = 0; i < 20000; ++i) y = sin(y);
    return grad({sum(y)}, {x})[0];
  };
  const Tensor expected = run();
  const Rematerialisation all({.drop_below = everything});
  EXPECT_TRUE(bit_equal(run(), expected));
  EXPECT_EQ(all.statistics().recomputed, 19999u);
}

TEST(Rematerialisation, ServesManyPassesOverOneGraph) {
  const Tensor x = rand({32}, 0.5, 1.5).set_requires_grad();
  const auto jacobian = [&](ReclaimClient* client) {
    const Tensor y = exp(sin(x)) * 2.0;  // no variable holds the tensor that exp saved
    std::vector<Tensor> rows;
    for (std::int64_t i = 0; i < 200; ++i) {
      rows.push_back(grad({select(y, 0, i % 32)}, {x}, {}, {.retain_graph = true})[0]);
      if (client != nullptr) client->reclaim(SIZE_MAX);
    }
    return rows;
  };
  const std::vector<Tensor> expected = jacobian(nullptr);
  const Rematerialisation policy;
  expect_equal_bits(jacobian(policy.client().get()), expected);
  EXPECT_GT(policy.statistics().recomputed, 190u);
}

TEST(MemoryBudget, NestedDoesNotRaiseTheOuterBudget) {
  CachingAllocator& pool = allocator_for(cpu);
  const std::size_t before = pool.budget();
  {
    const MemoryBudget outer(64_MiB);
    {
      const MemoryBudget inner(128_MiB);
      EXPECT_EQ(pool.budget(), 64_MiB);
    }
    EXPECT_EQ(pool.budget(), 64_MiB);
    {
      const MemoryBudget inner(32_MiB);
      EXPECT_EQ(pool.budget(), 32_MiB);
    }
    EXPECT_EQ(pool.budget(), 64_MiB);
  }
  EXPECT_EQ(pool.budget(), before);
}

TEST(MemoryBudget, LimitsOtherThreads) {
  Blocks blocks(12);
  std::vector<Tensor> expected;
  const std::size_t unlimited = peak_of([&] { expected = blocks.gradients(); });
  const std::size_t standing = peak_of([] {});
  const MemoryBudget budget(standing + (unlimited - standing) * 7 / 10);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (std::int64_t size = 1000; !stop; size = (size * 7 + 13) % 100'000) try {
        zeros({size});  // may reclaim saved tensors of the first thread
      } catch (const OutOfMemoryError&) {
      }
  });
  for (int step = 0; step < 20; ++step) try {
      expect_equal_bits(blocks.gradients(), expected);
    } catch (const OutOfMemoryError&) {  // the other thread holds the memory
    }
  stop = true;
  other.join();
  EXPECT_EQ(budget.statistics().held_bytes, 0u);
}

/// Ends the process if a test hangs; its output so far remains.
struct Watchdog {
  explicit Watchdog(unsigned seconds) { ::alarm(seconds); }
  ~Watchdog() { ::alarm(0); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
};

TEST(Rematerialisation, RecomputesOnTwoThreadsAtOnce) {
  const Watchdog watchdog(60);
  CachingAllocator& pool = allocator_for(cpu);
  std::latch both(2);
  const auto work = [&] {
    const Rematerialisation policy;
    pool.add_client(policy.client());
    const Recipe again{[&](const std::vector<Tensor>& in) {
      both.arrive_and_wait();
      EXPECT_THROW(zeros({std::int64_t{1} << 50}), OutOfMemoryError);  // after all clients have been asked
      return std::vector<Tensor>{tanh(in[0])};
    }};
    const Tensor x = full({1000}, 0.5).set_requires_grad();
    const auto forward = [&] {
      const Tensor y = tanh(x.detach());
      record("meeting", {x}, {y}, again,
             [y = SavedTensor::output(y)](const BackwardCall&) -> Gradients { return {y.unpack()}; });
      return sum(y);
    };
    const Tensor loss = forward();
    policy.client()->reclaim(SIZE_MAX);
    EXPECT_TRUE(bit_equal(grad({loss}, {x})[0], tanh(x.detach())));
    EXPECT_EQ(policy.statistics().recomputed, 1u);
  };
  std::thread other(work);
  work();
  other.join();
}

TEST(MemoryBudget, ServesThreadsStartedByARecipe) {
  const Watchdog watchdog(120);
  const auto on_a_thread = [](const Tensor& x) {
    Tensor h;
    std::thread([&] {
      const NoGradGuard no_grad;
      h = tanh(x) + 1.0;
    }).join();
    return x * h;
  };
  const auto gradient = [&] {
    const Tensor x = full({8, 8192}, 0.5).set_requires_grad();
    Tensor y = x;
    for (int i = 0; i < 20; ++i) y = tanh(square(checkpoint_tiled(on_a_thread, y, 0, 4)));
    return grad({sum(y)}, {x})[0];
  };
  Tensor expected;
  const std::size_t unlimited = peak_of([&] { expected = gradient(); });
  const std::size_t standing = peak_of([] {});
  const MemoryBudget budget(standing + (unlimited - standing) / 2);
  EXPECT_TRUE(bit_equal(gradient(), expected));
  EXPECT_GT(budget.statistics().recomputed, 0u);
}

TEST(MemoryBudget, LeavesAnAbortedBackwardPassConsistent) {
  Blocks blocks(12);
  std::vector<Tensor> expected;
  const std::size_t unlimited = peak_of([&] { expected = blocks.gradients(); });
  const Rematerialisation policy;
  CachingAllocator& pool = allocator_for(cpu);
  pool.add_client(policy.client());
  const std::size_t before = pool.budget();
  int ended = 0;
  for (std::size_t percent = 70; percent >= 10; percent -= 5) {
    const Tensor loss = blocks.loss();
    try {
      pool.set_budget(unlimited * percent / 100);
      expect_equal_bits(grad({loss}, blocks.parameters(), {}, {.retain_graph = true}), expected);
    } catch (const OutOfMemoryError&) {
      ++ended;
    } catch (const ValueError&) {  // the budget is below the live bytes
    }
    pool.set_budget(before);
    expect_equal_bits(grad({loss}, blocks.parameters()), expected);
    EXPECT_EQ(policy.statistics().held_bytes, 0u);
  }
  EXPECT_GT(ended, 0);
}

TEST(Rematerialisation, AllowsAGraphToEndWithItsThread) {
  const std::uint64_t bytes = live_in_pool();
  std::thread([] {
    struct Late {
      Tensor loss;
    };
    thread_local Late late;  // constructed first, so destroyed last
    late.loss = {};
    const Rematerialisation all({.drop_below = everything});
    Blocks blocks(2);
    blocks.gradients();
    late.loss = blocks.loss();
  }).join();
  EXPECT_EQ(live_in_pool(), bytes);
}

TEST(Rematerialisation, MayReplaceAnotherPolicyInOnePointer) {
  const Tensor x = rand({64}, 0.5, 1.5).set_requires_grad();
  auto policy = std::make_unique<Rematerialisation>();
  policy = std::make_unique<Rematerialisation>();  // constructed before the first one is destroyed
  const Tensor y = tanh(x);
  EXPECT_EQ(policy->statistics().saved, 1u);
  policy.reset();
  EXPECT_NO_THROW(grad({sum(tanh(y))}, {x}));
}

/// A program of random operators over (rows, width) tensors; the same seed gives the same program.
std::vector<Tensor> random_program(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  Generator generator(seed);
  const std::int64_t rows = 128, width = 64;
  std::vector<Tensor> leaves, values;
  Tensor total;
  for (int i = 0; i < 3; ++i)
    leaves.push_back((randn({rows, width}, {}, generator) * 0.5).detach().set_requires_grad());
  leaves.push_back((randn({width, width}, {}, generator) * 0.1).detach().set_requires_grad());
  values.assign(leaves.begin(), leaves.begin() + 3);
  for (int i = 0; i < 60; ++i) {
    const auto any = [&] { return values[below(values.size())]; };
    const Tensor a = any(), b = any();
    Tensor made;
    switch (below(12)) {
      case 0: made = tanh(a + b); break;
      case 1: made = tanh(a) * sigmoid(b); break;
      case 2: made = linear(a, leaves[3]); break;
      case 3: made = softmax(a); break;
      case 4: made = dropout(a, 0.2, generator); break;
      case 5: made = rms_norm(a, {}); break;
      case 6: made = cat({slice(a, 1, 0, width / 2), slice(tanh(b), 1, width / 2, width)}, 1); break;
      case 7: made = reshape(transpose(reshape(sin(a), {rows, 8, width / 8}), 1, 2), {rows, width}); break;
      case 8: made = a - mean(a, {1}, true); break;
      case 9: made = where(less(a, b), square(a), b); break;
      case 10: made = to(to(tanh(a), DType::f64) * 0.5, DType::f32); break;
      default: made = gelu(a) * 0.5 + b * 0.5; break;
    }
    values.push_back(made);
    if (values.size() > 5) values.erase(values.begin() + static_cast<std::ptrdiff_t>(below(5)));
    if (i % 7 != 0) continue;
    const Tensor part = mean(square(made));
    total = total.defined() ? total + part : part;
  }
  values.clear();
  std::vector<Tensor> gradients = grad({total}, leaves, {}, {}, true);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (!gradients[i].defined()) gradients[i] = zeros_like(leaves[i]);
  gradients.push_back(total.detach());
  return gradients;
}

TEST(MemoryBudget, HoldsForRandomProgramsWithTheSameBits) {
  std::mt19937_64 random(test_seed());
  int finished = 0;
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE("program " + std::to_string(seed));
    std::vector<Tensor> expected;
    const std::size_t unlimited = peak_of([&] { expected = random_program(seed); });
    const std::size_t standing = peak_of([] {});
    const std::size_t bytes = standing + static_cast<std::size_t>(random() % (unlimited - standing));
    const MemoryBudget budget(bytes);
    try {
      EXPECT_LE(peak_of([&] { expect_equal_bits(random_program(seed), expected); }), bytes);
      ++finished;
    } catch (const OutOfMemoryError&) {
      EXPECT_LE(allocator_for(cpu).statistics().reserved_bytes.peak, bytes);
    }
  }
  EXPECT_GE(finished, 5);
}

}  // namespace
}  // namespace poolgrad
