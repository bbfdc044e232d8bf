// A simulated device with the CPU's properties reserves the CPU's bytes exactly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/error.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "tests/examples/train_program.h"

namespace poolgrad::examples {
namespace {

using testing_support::TemporaryFolder;
using testing_support::write_bytes;

class SimLikeCpu : public ::testing::Test {
 protected:
  SimLikeCpu() {
    std::string text;
    for (int i = 0; i < 800; ++i) text += "int f" + std::to_string(i * i % 97) + "() { return 1; }\n";
    write_bytes(folder_.file("text"), text);
    options_.text = {folder_.file("text")};
    options_.context = 300;
    options_.layers = 2;
    options_.width = 32;
    options_.heads = 4;
    options_.attention.window = 40;
    options_.batch = 2;
    options_.steps = 2;
    options_.report = 2;
    options_.sample = 3;
    options_.budget = "1GiB";
  }

  nlohmann::json on(const std::string& device, TrainOptions options, const std::string& environment = "") {
    options.device = device;
    return run_train_program(options, folder_, environment);
  }

  /// Compares both runs: forward, backward, clipping, AdamW, validation, a sample.
  void expect_same_bytes(const TrainOptions& o, const std::string& environment = "") {
    const auto real = on("cpu", o, environment), planned = on("sim:" + o.budget + ",like=cpu", o, environment);
    SCOPED_TRACE(o.attention.describe(o.context) + ", " + o.dtype + " " + environment);
    ASSERT_TRUE(real["error"].is_null()) << real;
    ASSERT_TRUE(planned["error"].is_null()) << planned;
    for (const char* name : {"peak_live_bytes", "peak_reserved_bytes", "bytes_by_category", "allocation_hash"})
      EXPECT_EQ(planned[name], real[name]) << name;
    ASSERT_EQ(planned["steps"].size(), real["steps"].size());
    for (std::size_t i = 0; i < real["steps"].size(); ++i)
      for (const char* name : {"live_bytes", "reserved_bytes", "device_allocations"})
        EXPECT_EQ(planned["steps"][i][name], real["steps"][i][name]) << name << " of step " << i + 1;
  }
  void expect_same_bytes(const std::string& environment = "") { expect_same_bytes(options_, environment); }

  TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(SimLikeCpu, ReservesTheSameBytesForOtherPartsOfTheModel) {
  options_.feed_forward = "swiglu";
  options_.tied_head = true;
  options_.logit_softcap = 20;
  for (const char* const dtype : {"f32", "bf16"}) {
    options_.dtype = dtype;
    expect_same_bytes();
  }
}

TEST_F(SimLikeCpu, ReservesTheSameBytesForEveryPattern) {
  options_.attention.block = 32;
  options_.attention.count = 2;
  options_.attention.stride = 16;
  options_.attention.segments = {64, 512};
  options_.attention.rates = {1, 4};
  for (const std::string& name : attention_names()) {
    options_.attention.attention = name;
    expect_same_bytes();
  }
}

TEST_F(SimLikeCpu, ReservesTheSameBytesForEveryDType) {
  options_.attention.attention = "dilated";
  for (const char* dtype : {"f64", "f32", "bf16", "f16"}) {
    options_.dtype = dtype;
    for (const std::int64_t kv_heads : {4, 1}) {
      options_.kv_heads = kv_heads;
      expect_same_bytes();
    }
  }
}

TEST_F(SimLikeCpu, ModelsTheThreadsOfThisProcess) {
  options_.dropout = 0.1;
  for (const int threads : {1, 3, 8})
    for (const char* dtype : {"f32", "bf16"}) {
      options_.dtype = dtype;
      expect_same_bytes("POOLGRAD_THREADS=" + std::to_string(threads));
    }
}

TEST_F(SimLikeCpu, ModelsTheInstructionSetOfThisProcess) {
  options_.dtype = "bf16";
  for (const std::string_view set : kernels::instruction_sets()) expect_same_bytes("POOLGRAD_ISA=" + std::string(set));
}

TEST_F(SimLikeCpu, ModelsTheMatmulBackend) {
  for (const std::string name : {"poolgrad", "eigen", "onednn"}) {
    if (name == "onednn" && kernels::gemm_backend().find("oneDNN") == std::string_view::npos) continue;
    expect_same_bytes("POOLGRAD_GEMM=" + name);
  }
}

TEST_F(SimLikeCpu, ReservesTheSameBytesForTheDefaultRun) {
  TrainOptions options;
  options.steps = 1;
  options.sample = 2;
  options.budget = "8GiB";
  expect_same_bytes(options);
}

TEST_F(SimLikeCpu, ReleasesPagesLikeTheCpuUnderATightBudget) {
  // At 5 MiB and less, pages are released and committed again.
  const auto peak = on("cpu", options_)["peak_live_bytes"].get<std::size_t>();
  options_.budget = std::to_string(peak + peak / 64);
  expect_same_bytes();
}

TEST_F(SimLikeCpu, RunsOutOfMemoryAtTheSameRequest) {
  options_.budget = "3MiB";
  options_.checkpoint = "none";
  const auto report = [&](const std::string& device) {
    const std::string text = on(device, options_)["error"].get<std::string>();
    const std::size_t from = text.find(": ") + 2, to = text.find(", free on the device");
    return text.substr(from, to - from);
  };
  EXPECT_THAT(report("cpu"), ::testing::HasSubstr("budget 3.00 MiB"));
  EXPECT_EQ(report("sim:3MiB,like=cpu"), report("cpu"));
}

TEST(SimulatedDevices, AreNamedBySizeAndModeledDevice) {
  EXPECT_EQ(allocator_for(parse_device("sim:3MiB", "train")).memory().info().total, std::size_t{3} << 20);
  CachingAllocator& like_cpu = allocator_for(parse_device("sim:5MiB,like=cpu", "train"));
  EXPECT_EQ(like_cpu.memory().info().total, std::size_t{5} << 20);
  EXPECT_EQ(like_cpu.memory().granularity(), allocator_for(cpu).memory().granularity());
  const auto refusal = [](const std::string& text) {
    return testing_support::error_of<ValueError>([&] { parse_device(text, "train"); });
  };
  EXPECT_EQ(refusal("sim:8GiB,like=h100"), "[simulation] unknown device to simulate: h100; known: cpu");
  EXPECT_EQ(refusal("sim:8GiB,like="),
            "[train] --device must be cpu, cuda:N, auto, sim:SIZE or sim:SIZE,like=cpu, but is sim:8GiB,like=");
  EXPECT_EQ(refusal("sim:8GiB,as=cpu"),
            "[train] --device must be cpu, cuda:N, auto, sim:SIZE or sim:SIZE,like=cpu, but is sim:8GiB,as=cpu");
  EXPECT_THAT(refusal("sim:much"), ::testing::HasSubstr("not a number of bytes: 'much'"));
}

}  // namespace
}  // namespace poolgrad::examples
