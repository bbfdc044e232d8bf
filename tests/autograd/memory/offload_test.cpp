// Saved tensors offloaded to a file.
#include "autograd/memory/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory/race_detector.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/record.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/memory/memory_budget.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

std::string offload_folder() { return ::testing::TempDir(); }

/// Limits the files of this process to `bytes` while it exists.
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

std::unique_ptr<const OffloadFile::Extent> written(const std::shared_ptr<OffloadFile>& file,
                                                   const std::vector<char>& bytes) {
  auto extent = file->reserve(bytes.size());
  file->write(*extent, bytes.data(), 0, bytes.size());
  return extent;
}

std::vector<char> read_back(const OffloadFile& file, const OffloadFile::Extent& extent, std::size_t bytes) {
  std::vector<char> back(bytes);
  file.read(extent, back.data(), 0, bytes);
  return back;
}

TEST(OffloadFile, ReturnsTheWrittenBytes) {
  const auto file = OffloadFile::in(offload_folder());
  const std::vector<char> a = bytes_of(10000, 1), b = bytes_of(333, 7);
  const auto first = written(file, a), second = written(file, b);
  EXPECT_EQ(read_back(*file, *first, a.size()), a);
  EXPECT_EQ(read_back(*file, *second, b.size()), b);
  EXPECT_EQ(file->bytes(), a.size() + b.size());
}

TEST(OffloadFile, ReusesFreedSpace) {
  const auto file = OffloadFile::in(offload_folder());
  const std::vector<char> bytes = bytes_of(4096, 3);
  const FullDisk limit(4096 * 4);
  for (int round = 0; round < 10; ++round) {
    auto a = written(file, bytes), b = written(file, bytes), c = written(file, bytes);
    EXPECT_EQ(file->bytes(), 3u * 4096u);
    if (round % 2 != 0) b.reset();
    a.reset();
    EXPECT_NO_THROW(written(file, bytes)) << "in the hole";
  }
  EXPECT_EQ(file->bytes(), 0u);
}

TEST(OffloadFile, LeavesNothingInTheFolder) {
  const std::string folder = offload_folder() + "/offload_leaves_nothing";
  std::filesystem::create_directory(folder);
  {
    const auto file = OffloadFile::in(folder);
    written(file, bytes_of(3, 'a'));
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  EXPECT_TRUE(std::filesystem::remove(folder));
}

TEST(OffloadFile, ReportsAMissingFolder) {
  try {
    OffloadFile::in("/nowhere/at/all");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "[offload] cannot make a file in the folder /nowhere/at/all: No such file or directory");
  }
}

TEST(OffloadFile, ReportsAFullDiskBeforeAnyWrite) {
  const auto file = OffloadFile::in(offload_folder());
  const std::vector<char> bytes = bytes_of(8192, 0);
  const FullDisk limit(10000);
  const auto first = written(file, bytes);
  EXPECT_THAT(
      [&] { file->reserve(8192); },
      ThrowsMessage<FileError>(StartsWith("[offload] cannot find room for 8192 bytes in a file in the folder ")));
  EXPECT_EQ(file->bytes(), 8192u);
  EXPECT_EQ(read_back(*file, *first, 8192), bytes);
}

// Tensors.

Tensor bytes_tensor(std::int64_t count, std::uint64_t salt) {
  Tensor tensor = Tensor::empty({count}, {.dtype = DType::u8});
  for (std::int64_t i = 0; i < count; ++i)
    tensor.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(i) * 131 + salt * 17 + 1);
  return tensor;
}

/// The bytes of `extent`, read into a tensor with other contents.
Tensor back(const OffloadFile& file, const OffloadFile::Extent& extent, std::int64_t count) {
  Tensor tensor = Tensor::empty({count}, {.dtype = DType::u8});
  tensor.fill(255.0);
  file.bring_back(extent, tensor);
  return tensor;
}

TEST(OffloadTensor, BringsBackEveryBitInAnyOrder) {
  const std::uint64_t seed = seed_or(std::random_device{}());
  SCOPED_TRACE("POOLGRAD_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto file = OffloadFile::in(offload_folder());
  struct Entry {
    std::int64_t count;
    std::uint64_t salt;
    std::unique_ptr<const OffloadFile::Extent> extent;
  };
  std::vector<Entry> entries;
  for (std::uint64_t step = 0; step < 2000; ++step) {
    Entry* const any = entries.empty() ? nullptr : &entries[random() % entries.size()];
    if (const auto choice = random() % 4; choice < 2 || any == nullptr) {
      const auto count = static_cast<std::int64_t>(random() % 8 == 0 ? 0 : random() % 10'000);
      entries.push_back({count, step, file->move_out(bytes_tensor(count, step))});
    } else if (choice == 2) {
      ASSERT_TRUE(bit_equal(back(*file, *any->extent, any->count), bytes_tensor(any->count, any->salt)));
    } else {
      std::swap(*any, entries.back());
      entries.pop_back();
    }
  }
}

TEST(OffloadTensor, ReportsAnUnreadableFile) {
  std::filesystem::path folder = offload_folder() + "/offload_cut_off";
  std::filesystem::create_directory(folder);
  folder = std::filesystem::canonical(folder);
  constexpr std::int64_t each = 4096;
  const auto file = OffloadFile::in(folder);
  const auto first = file->move_out(bytes_tensor(each, 0)), second = file->move_out(bytes_tensor(each, 1));
  int cut = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    if (std::filesystem::read_symlink(entry, none).string().starts_with(folder.string()))
      cut += ::ftruncate(std::stoi(entry.path().filename()), each) == 0 ? 1 : 0;
  }
  ASSERT_EQ(cut, 1);
  for (int time = 0; time < 2; ++time)
    EXPECT_THAT([&] { back(*file, *second, each); },
                ThrowsMessage<FileError>(StartsWith("[offload] cannot read 4096 bytes in a file in the folder ")));
  EXPECT_TRUE(bit_equal(back(*file, *first, each), bytes_tensor(each, 0)));
  std::filesystem::remove(folder);
}

TEST(OffloadTensor, BelongsToTheParentAfterAFork) {
  constexpr std::int64_t each = 4096;
  auto file = OffloadFile::in(offload_folder());
  auto extent = file->move_out(bytes_tensor(each, 0));
  const ::pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int refused = 0;
    const auto counted = [&](const auto& action) {
      try {
        action();
      } catch (const FileError&) {
        ++refused;
      }
    };
    counted([&] { back(*file, *extent, each); });
    counted([&] { file->move_out(bytes_tensor(each, 7)); });
    extent.reset();
    file.reset();
    ::_exit(refused == 2 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(bit_equal(back(*file, *extent, each), bytes_tensor(each, 0)));
}

// Saved tensors.

/// The gradients of the leaves of a chain with saved tensors of every kind.
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

TEST(Offload, MovesEverySavedTensorAndGivesTheSameBits) {
  std::vector<Tensor> leaves;
  const std::vector<Tensor> expected = chain_gradients(leaves);
  const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true});
  expect_equal_gradients(chain_gradients(leaves), expected);
  const RematerialisationStatistics statistics = policy.statistics();
  EXPECT_GT(statistics.offloaded, 8u * 4u);
  EXPECT_EQ(statistics.recomputed, 0u);
  EXPECT_EQ(statistics.held_bytes, 0u);
}

TEST(Offload, ServesASecondBackwardThroughTheSameGraph) {
  std::vector<Tensor> leaves;
  const std::vector<Tensor> expected = chain_gradients(leaves);
  const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true});
  Generator masks(5);
  Tensor x = leaves[0];
  for (int i = 0; i < 8; ++i) x = x + dropout(gelu(linear(layer_norm(x, leaves[1], {}), leaves[2])), 0.1, masks);
  const Tensor loss = mean(square(x));
  for (int pass = 0; pass < 3; ++pass) {
    expect_equal_gradients(grad({loss}, leaves, {}, {.retain_graph = pass < 2}), expected);
    policy.client()->reclaim(SIZE_MAX);
  }
  EXPECT_EQ(policy.statistics().held_bytes, 0u);
}

TEST(Offload, ContinuesAfterAThrowingFunction) {
  std::vector<Tensor> leaves;
  const std::vector<Tensor> expected = chain_gradients(leaves);
  const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true});
  for (const bool in_backward : {false, true}) {
    const auto failing = [&] {
      Tensor x = leaves[0];
      for (int i = 0; i < 6; ++i) x = tanh(linear(x, leaves[2]));
      if (!in_backward) throw Error("in the forward");
      Tensor y = x.copy();
      record("failing", {x}, {y}, [](const BackwardCall&) -> Gradients { throw Error("in the backward"); });
      grad({sum(tanh(y))}, {leaves[0]});
    };
    EXPECT_THAT(failing, ThrowsMessage<Error>(HasSubstr(in_backward ? "in the backward" : "in the forward")));
    EXPECT_EQ(policy.statistics().held_bytes, 0u);
    expect_equal_gradients(chain_gradients(leaves), expected);
  }
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

TEST(Offload, RereadsATensorWrittenAfterItsReturn) {
  const Tensor x = rand({64}, 0.5, 1.5).set_requires_grad();
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

TEST(Offload, ServesABudgetTooSmallForRecomputation) {
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
  // The file is always cheaper than computing.
  const MemoryBudget budget(bytes, cpu, {.offload_folder = offload_folder(), .file_speed = 1e6});
  pool.reset_peaks();
  expect_equal_gradients(chain_gradients(leaves), expected);
  EXPECT_LE(pool.statistics().reserved_bytes.peak, bytes);
  EXPECT_GT(budget.statistics().offloaded, 0u);
  EXPECT_EQ(budget.statistics().recomputed, 0u);
}

TEST(Offload, FallsBackToRecomputationOnAFullDisk) {
  std::vector<Tensor> leaves;
  const std::vector<Tensor> expected = chain_gradients(leaves);
  const FullDisk limit(100'000);  // holds three of the chain's tensors
  const Rematerialisation policy({.drop_below = 1e9, .offload_folder = offload_folder(), .file_speed = 1e6});
  expect_equal_gradients(chain_gradients(leaves), expected);
  EXPECT_EQ(policy.statistics().offloaded, 3u);
  EXPECT_GT(policy.statistics().recomputed, 0u);
  EXPECT_THAT(policy.offload_failure(), AllOf(HasSubstr("cannot find room"), HasSubstr("File too large")));
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

/// A file that is cheaper to read than results are to recompute.
RematerialisationOptions cheap_file() { return {.offload_folder = offload_folder(), .file_speed = 1e9}; }

TEST(Offload, DoesNotWriteAnOverwrittenTensor) {
  const Tensor x = rand({64}, 0.5, 1.0).set_requires_grad();
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

TEST(Offload, RejectsAnOverwrittenTensorWithoutARecipe) {
  const Tensor x = rand({64}, 0.5, 1.0).set_requires_grad();
  const Rematerialisation policy(cheap_file());
  Tensor a = rand({64}, 0.5, 1.0);
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

TEST(Offload, ServesPassesOnSeveralThreadsUnderMemoryPressure) {
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

// On devices with streams.

constexpr std::uint64_t copies = std::uint64_t{1} << 32;

/// A simulated device of its own, whose pool tracks the streams of each access.
Device racing_device(std::uint8_t index) {
  const Device device{DeviceType::sim, index};
  ::setenv("POOLGRAD_ALLOCATOR", "races:on", 1);
  configure_simulated_device(index, 64_MiB);
  ::unsetenv("POOLGRAD_ALLOCATOR");
  return device;
}

std::uint64_t races_on(Device device) {
  return dynamic_cast<const RaceDetector&>(allocator_for(device).memory()).races();
}

TEST(OffloadStream, ReusesNoBlockUnderACopy) {
  const Device device = racing_device(71);
  for (const bool own_stream : {false, true}) {
    const StreamGuard guard(Stream{device, own_stream ? 5u : 0u});
    const Tensor x = Tensor::empty({512, 512}, {DType::f32, device}).set_requires_grad();
    const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true, .device = device});
    for (int step = 0; step < 3; ++step) {
      Tensor y = x;
      for (int i = 0; i < 40; ++i) y = tanh(y * 1.1) + sin(y);  // saves 120 MiB, which needs reuse to fit 64
      grad({sum(y)}, {x});
    }
    EXPECT_GT(policy.statistics().offloaded, 3u * 75u);
    EXPECT_GT(policy.statistics().loaded, 3u * 75u);
  }
  EXPECT_EQ(races_on(device), 0u);
  EXPECT_GT(allocator_for(device).statistics().events_recorded, 0u);
}

TEST(OffloadStream, KeepsABlockUntilItsCopyEnds) {
  const Device device = racing_device(75);
  const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true, .device = device});
  const Tensor x = Tensor::empty({512, 512}, {DType::f32, device}).set_requires_grad();
  const Tensor loss = sum(tanh(tanh(x)));
  ASSERT_GT(policy.statistics().offloaded, 0u);
  const Statistics pool = allocator_for(device).statistics();
  EXPECT_GE(pool.active_bytes.current, pool.allocated_bytes.current + 1_MiB) << "given back, and still read";
}

TEST(OffloadStream, OrdersMemoryOfAnotherStream) {
  const Device device = racing_device(72);
  const Rematerialisation policy({.offload_folder = offload_folder(), .device = device});
  const Tensor x = Tensor::empty({512, 512}, {DType::f32, device}).set_requires_grad();
  Tensor y = x;
  {
    const StreamGuard guard(Stream{device, 9});
    allocator_for(device).order({device, 9}, {device, 0});
    for (int i = 0; i < 10; ++i) y = tanh(y);
  }
  policy.client()->reclaim(SIZE_MAX);  // on a thread with stream 0
  allocator_for(device).order({device, 0}, {device, 9});
  std::vector<Tensor> next;
  for (int i = 0; i < 20; ++i) next.push_back(Tensor::empty({512, 512}, {DType::f32, device}));
  EXPECT_EQ(races_on(device), 0u);
}

TEST(OffloadStream, AnUnreportedCopyIsARace) {
  const Device device = racing_device(73);
  CachingAllocator& pool = allocator_for(device);
  for (const bool told : {true, false}) {
    {
      const Tensor leaving = Tensor::empty({1000}, {DType::f32, device});
      pool.order({device, copies}, {device, 0});
      pool.memory().touch(leaving.storage()->data(), 4000, {device, copies}, std::source_location::current(),
                          Access::reads);
      if (told) pool.use(leaving.storage()->data(), {device, copies});
    }
    const auto reuse = [&] { Tensor::empty({1000}, {DType::f32, device}); };
    if (told)
      reuse();
    else
      EXPECT_THAT(reuse,
                  ThrowsMessage<DeviceError>(AllOf(HasSubstr("stream 4294967296 of sim:73 has used 4000 bytes"),
                                                   HasSubstr("offload_test.cpp"), HasSubstr("no event orders"))));
  }
}

TEST(OffloadStream, IsAbsentOnACpuLikeDevice) {
  configure_simulated_device(74, 1_GiB, "cpu");
  const Device device{DeviceType::sim, 74};
  const Tensor x = Tensor::empty({64, 64}, {DType::f32, device}).set_requires_grad();
  const Rematerialisation policy({.offload_folder = offload_folder(), .offload_all = true, .device = device});
  grad({sum(tanh(tanh(x)))}, {x});
  EXPECT_GT(policy.statistics().loaded, 0u);
  EXPECT_EQ(allocator_for(device).statistics().events_recorded, 0u);
}

TEST(Offload, RejectsAMissingFolderAndLeavesThePoolUnchanged) {
  const std::size_t before = allocator_for(cpu).budget();
  EXPECT_THROW(MemoryBudget(1_GiB, cpu, {.offload_folder = "/nowhere"}), FileError);
  EXPECT_THROW(Rematerialisation({.offload_folder = "/nowhere"}), FileError);
  EXPECT_EQ(allocator_for(cpu).budget(), before);
}

}  // namespace
}  // namespace poolgrad
