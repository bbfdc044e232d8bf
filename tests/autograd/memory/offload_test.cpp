// Saved tensors that are moved to a file.
#include "autograd/memory/offload_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/record.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/memory/memory_budget.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"

namespace poolgrad {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string offload_folder() { return ::testing::TempDir(); }

/// No file of this process grows beyond `bytes` while it lives.
class FullDisk {
 public:
  explicit FullDisk(std::uint64_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

std::vector<char> bytes_of(std::size_t count, char start) {
  std::vector<char> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(start + static_cast<char>(i % 61));
  return bytes;
}

TEST(OffloadFile, GivesBackWhatItWasGiven) {
  const auto file = OffloadFile::in(offload_folder());
  const std::vector<char> a = bytes_of(10000, 1), b = bytes_of(333, 7);
  const auto first = file->write(a.data(), a.size()), second = file->write(b.data(), b.size());
  std::vector<char> back(a.size());
  file->read(*first, back.data());
  EXPECT_EQ(back, a);
  back.resize(b.size());
  file->read(*second, back.data());
  EXPECT_EQ(back, b);
  EXPECT_EQ(file->bytes(), a.size() + b.size());
}

TEST(OffloadFile, UsesSpaceAgainThatWasGivenBack) {
  const auto file = OffloadFile::in(offload_folder());
  const std::vector<char> bytes = bytes_of(4096, 3);
  const FullDisk limit(4096 * 4);
  for (int round = 0; round < 10; ++round) {
    auto a = file->write(bytes.data(), 4096), b = file->write(bytes.data(), 4096), c = file->write(bytes.data(), 4096);
    ASSERT_TRUE(a && b && c) << file->reason();
    if (round % 2 != 0) b.reset();
    a.reset();
    const auto both = file->write(bytes.data(), 4096);  // in the hole
    ASSERT_TRUE(both != nullptr) << file->reason();
  }
  EXPECT_EQ(file->bytes(), 0u);
  EXPECT_EQ(file->peak_bytes(), 3u * 4096u);
}

TEST(OffloadFile, LeavesNothingInTheFolder) {
  const std::string folder = offload_folder() + "/offload_leaves_nothing";
  std::filesystem::create_directory(folder);
  {
    const auto file = OffloadFile::in(folder);
    file->write("abc", 3);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  EXPECT_TRUE(std::filesystem::remove(folder));
}

TEST(OffloadFile, SaysThatTheFolderIsMissing) {
  try {
    OffloadFile::in("/nowhere/at/all");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "[offload] cannot make a file in the folder /nowhere/at/all: No such file or directory");
  }
}

TEST(OffloadFile, SaysThatTheDiskIsFullAndGoesOn) {
  const auto file = OffloadFile::in(offload_folder());
  const std::vector<char> bytes = bytes_of(8192, 0);
  const FullDisk limit(10000);
  const auto first = file->write(bytes.data(), bytes.size());
  ASSERT_TRUE(first != nullptr);
  EXPECT_EQ(file->write(bytes.data(), bytes.size()), nullptr);
  EXPECT_THAT(file->reason(), StartsWith("cannot write 8192 bytes to a file in the folder "));
  EXPECT_EQ(file->bytes(), 8192u);
  std::vector<char> back(bytes.size());
  file->read(*first, back.data());
  EXPECT_EQ(back, bytes);
}

/// A chain with saved tensors of every kind; the gradients of its leaves.
std::vector<Tensor> chain_gradients(std::vector<Tensor>& leaves) {
  Generator generator(3);
  if (leaves.empty()) {
    leaves = {randn({128, 64}, {}, generator), ones({64}), randn({64, 64}, {}, generator) * 0.1};
    for (Tensor& leaf : leaves) leaf = leaf.detach().set_requires_grad();
  }
  Generator masks(5);
  Tensor x = leaves[0];
  for (int i = 0; i < 8; ++i) x = x + dropout(gelu(linear(layer_norm(x, leaves[1], {}), leaves[2])), 0.1, masks);
  return grad({mean(square(x))}, leaves);
}

void expect_equal_gradients(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(bit_equal(found[i], expected[i])) << "gradient " << i;
}

TEST(Offload, MovesAllThatIsSavedAndGivesTheSameBits) {
  std::vector<Tensor> leaves;
  const std::vector<Tensor> expected = chain_gradients(leaves);
  const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true});
  expect_equal_gradients(chain_gradients(leaves), expected);
  const RematerialisationStatistics statistics = policy.statistics();
  EXPECT_GT(statistics.offloaded, 8u * 4u);
  EXPECT_EQ(statistics.recomputed, 0u);
  EXPECT_EQ(statistics.held_bytes, 0u);
}

TEST(Offload, MovesTheInputsOfCheckpoints) {
  const Tensor x = randn({64, 64}).set_requires_grad();
  const auto run = [&] {
    Tensor y = x * 1.0;
    for (int i = 0; i < 4; ++i) y = checkpoint([](const Tensor& h) { return tanh(h * 1.1) + sin(h); }, y);
    return grad({sum(y)}, {x});
  };
  const std::vector<Tensor> expected = run();
  const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true});
  expect_equal_gradients(run(), expected);
  EXPECT_GE(policy.statistics().loaded, 3u);
}

TEST(Offload, ReadsAgainWhatWasWrittenIntoSinceItCameBack) {
  const Tensor x = uniform({64}, 0.5, 1.5).set_requires_grad();
  const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true});
  Tensor loss;
  {
    const Tensor y = exp(x), out = y.copy();
    record("scribbler", {y}, {out}, [saved = SavedTensor(y)](const BackwardCall& call) -> Gradients {
      const NoGradGuard guard;
      saved.unpack().fill(0.0);
      return {call.gradient()};
    });
    loss = sum(out * 3.0);
  }
  const Tensor expected = [&] {
    const NoGradGuard guard;
    return exp(x) * 3.0;
  }();
  EXPECT_TRUE(bit_equal(grad({loss}, {x})[0], expected));
  EXPECT_EQ(policy.statistics().held_bytes, 0u);
  EXPECT_EQ(policy.statistics().loaded, 2u);
}

TEST(Offload, ServesABudgetThatComputingAgainCannot) {
  std::vector<Tensor> leaves;
  const std::vector<Tensor> expected = chain_gradients(leaves);
  CachingAllocator& pool = allocator_for(cpu);
  pool.trim();
  pool.reset_peaks();
  chain_gradients(leaves);
  const std::size_t unlimited = pool.statistics().reserved_bytes.peak;
  pool.trim();
  const std::size_t standing = pool.statistics().reserved_bytes.current;
  const std::size_t bytes = standing + (unlimited - standing) * 55 / 100;
  // Computing is made dear, so that the file is always cheaper.
  const MemoryBudget budget(bytes, cpu, {.offload_folder = offload_folder(), .prices = ComputePrices{1e-3, 1e-3, 1.0}});
  pool.reset_peaks();
  expect_equal_gradients(chain_gradients(leaves), expected);
  EXPECT_LE(pool.statistics().reserved_bytes.peak, bytes);
  EXPECT_GT(budget.statistics().offloaded, 0u);
  EXPECT_EQ(budget.statistics().recomputed, 0u);
}

TEST(Offload, FallsBackToComputingAgainWhereTheDiskIsFull) {
  std::vector<Tensor> leaves;
  const std::vector<Tensor> expected = chain_gradients(leaves);
  const FullDisk limit(100'000);  // three of the chain's tensors
  const Rematerialisation policy(
      {.drop_below = 1e9, .offload_folder = offload_folder(), .prices = ComputePrices{1e-3, 1e-3, 1.0}});
  expect_equal_gradients(chain_gradients(leaves), expected);
  EXPECT_EQ(policy.statistics().offloaded, 3u);
  EXPECT_GT(policy.statistics().recomputed, 0u);
  EXPECT_THAT(policy.offload_failure(), HasSubstr("File too large"));
}

/// x * a without a recipe.
Tensor times_without_recipe(const Tensor& x, const Tensor& a) {
  Tensor out;
  {
    const NoGradGuard guard;
    out = x * a;
  }
  record("times", {x}, {out},
         [a = SavedTensor(a)](const BackwardCall& call) -> Gradients { return {call.gradient() * a.unpack()}; });
  return out;
}

/// Reading from the file is cheaper than anything else.
RematerialisationOptions cheap_file() {
  return {.offload_folder = offload_folder(), .prices = ComputePrices{1e-3, 1e-3, 1e3}};
}

TEST(Offload, DoesNotWriteWhatWasOverwritten) {
  const Tensor x = uniform({64}, 0.5, 1.0).set_requires_grad();
  const auto run = [&](ReclaimClient* client) {
    Tensor y = tanh(x);  // saves its result
    const Tensor total = sum(y);
    if (client != nullptr) {
      const NoGradGuard guard;
      y.fill(0.0);
      y = {};
      client->reclaim(SIZE_MAX);
    }
    return grad({total}, {x})[0];
  };
  const Tensor expected = run(nullptr);
  const Rematerialisation policy(cheap_file());
  EXPECT_TRUE(bit_equal(run(policy.client().get()), expected));
  EXPECT_EQ(policy.statistics().offloaded, 0u);
}

TEST(Offload, RefusesWhatWasOverwrittenAndHasNoRecipe) {
  const Tensor x = uniform({64}, 0.5, 1.0).set_requires_grad();
  const Rematerialisation policy(cheap_file());
  Tensor a = uniform({64}, 0.5, 1.0);
  const Tensor total = sum(times_without_recipe(x, a));
  a.fill(0.0);
  a = {};
  policy.client()->reclaim(SIZE_MAX);
  try {
    grad({total}, {x});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[times] a saved tensor (64,) f32 on cpu was written in place"));
  }
}

TEST(Offload, ServesPassesOnSeveralThreadsWhileAnotherAsksForMemory) {
  std::vector<Tensor> leaves;
  const std::vector<Tensor> expected = chain_gradients(leaves);
  const Rematerialisation policy({.drop_below = 1e9, .offload_folder = offload_folder()});
  const auto forward = [&] {
    Generator masks(5);
    Tensor x = leaves[0];
    for (int i = 0; i < 8; ++i)
      x = x +
          dropout(gelu(linear(checkpoint([&](const Tensor& h) { return layer_norm(h, leaves[1], {}); }, x), leaves[2])),
                  0.1, masks);
    return mean(square(x));
  };
  for (int round = 0; round < 10; ++round) {
    const Tensor loss = forward();
    std::vector<std::vector<Tensor>> found(3);
    std::vector<std::thread> threads;
    for (auto& mine : found) threads.emplace_back([&] { mine = grad({loss}, leaves, {}, {.retain_graph = true}); });
    for (int i = 0; i < 50; ++i) policy.client()->reclaim(static_cast<std::size_t>(i) * 10000);
    for (auto& t : threads) t.join();
    for (auto& mine : found) expect_equal_gradients(mine, expected);
  }
  EXPECT_EQ(policy.statistics().held_bytes, 0u);
}

TEST(Offload, RefusesAFolderThatIsNotThereAndLeavesThePoolAlone) {
  const std::size_t before = allocator_for(cpu).budget();
  EXPECT_THROW(MemoryBudget(1_GiB, cpu, {.offload_folder = "/nowhere"}), FileError);
  EXPECT_THROW(Rematerialisation({.offload_folder = "/nowhere"}), FileError);
  EXPECT_EQ(allocator_for(cpu).budget(), before);
}

}  // namespace
}  // namespace poolgrad
