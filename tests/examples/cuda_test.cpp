// The programs on a GPU or the emulated device: their losses and their requests to the pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "examples/headline/headline.h"
#include "examples/lab/lab.h"
#include "examples/plan/dry_run.h"
#include "examples/recall/recall.h"
#include "examples/support/train.h"
#include "tests/effort.h"
#include "tests/mma_allowed.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using nn::StepRecord, nn::TrainResult;
using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

class TrainOnCuda : public ::testing::Test {
 protected:
  TrainOnCuda() {
    std::string text;
    for (int i = 0; i < 120; ++i) text += "int f" + std::to_string(i * i % 97) + "() { return 1; }\n";
    write_bytes(folder_.file("text"), text);
    options_.text = {folder_.file("text")};
    options_.context = 48;
    options_.layers = 1;
    options_.width = 16;
    options_.heads = 4;
    options_.kv_heads = 2;
    options_.attention.window = 24;
    options_.attention.block = 16;
    options_.attention.count = 2;
    options_.attention.segments = {16, 64};
    options_.attention.rates = {1, 2};
    options_.batch = 2;
    options_.steps = 3;
    options_.sample = 4;
    options_.dropout = 0.1;
    options_.device = "cuda";
  }

  TrainResult run(TrainOptions options) {
    out_.str("");
    return train(std::move(options), out_);
  }
  TrainResult run(const std::string& device) {
    TrainOptions options = options_;
    options.device = device;
    return run(std::move(options));
  }
  /// Returns losses, norms and validation losses, and the sample if it was drawn from the same random numbers.
  static std::vector<double> numbers(const TrainResult& result) {
    std::vector<double> all;
    for (const StepRecord& s : result.steps) all.insert(all.end(), {s.loss, s.gradient_norm});
    all.push_back(result.validation_loss);
    return all;
  }
  static void expect_alike(const TrainResult& there, const TrainResult& here, double tolerance,
                           const std::string& what) {
    const std::vector<double> a = numbers(there), b = numbers(here);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << what << ", number " << i;
  }

  TemporaryFolder folder_;
  TrainOptions options_;
  std::ostringstream out_;
};

TEST_F(TrainOnCuda, MatchesTheCpuForEveryKindOfAttention) {
  options_.steps = 2;
  for (const std::string& name : attention_names()) {
    options_.attention.attention = name;
    expect_alike(run("cuda"), run("cpu"), 1e-4, name);
  }
}

TEST_F(TrainOnCuda, MatchesTheCpuInEveryDType) {
  const std::pair<const char*, double> tolerances[] = {{"f64", 1e-9}, {"f32", 1e-4}, {"bf16", 0.05}, {"f16", 0.01}};
  for (const auto& [dtype, tolerance] : tolerances) {
    options_.dtype = dtype;
    expect_alike(run("cuda"), run("cpu"), tolerance, dtype);
  }
}

TEST_F(TrainOnCuda, RepeatsItsBits) {
  const TrainResult first = run("cuda"), second = run("cuda");
  EXPECT_EQ(numbers(first), numbers(second));
  EXPECT_EQ(first.sample, second.sample);
}

TEST_F(TrainOnCuda, MakesTheSameRequestsAsASimulatedGpu) {
  for (const char* policy : {"none", "block"}) {
    options_.checkpoint = policy;
    options_.kv_heads = options_.kv_heads == 2 ? 4 : 2;
    const TrainResult there = run("cuda"), planned = run("sim:4GiB");
    EXPECT_EQ(there.allocation_hash, planned.allocation_hash) << policy;
    EXPECT_EQ(there.peak_live_bytes, planned.peak_live_bytes) << policy;
    EXPECT_EQ(there.peak_reserved_bytes, planned.peak_reserved_bytes) << policy;
    EXPECT_EQ(there.bytes_by_category, planned.bytes_by_category) << policy;
  }
}

TEST_F(TrainOnCuda, ByTensorCoresMatchesTheCpuAndASimulatedGpu) {
  options_.dtype = "bf16";
  options_.width = 64;  // 16 a head, the least of these kernels
  options_.steps = 2;
  for (const char* pattern : {"window", "dilated"}) {
    options_.attention.attention = pattern;
    const std::vector<double> portable = [&] {
      const MmaAllowed not_allowed(false);
      return numbers(run("cuda"));
    }();
    const MmaAllowed allowed;
    const TrainResult there = run("cuda");
    EXPECT_THAT(out_.str(), HasSubstr("attention by cuda cores, f16, bf16 and f32: mma"));
    EXPECT_NE(numbers(there), portable) << "weights are rounded, " << pattern;
    EXPECT_EQ(numbers(run("cuda")), numbers(there)) << "again, " << pattern;
    expect_alike(there, run("cpu"), 0.05, pattern);
    const TrainResult planned = run("sim:4GiB");
    EXPECT_EQ(there.allocation_hash, planned.allocation_hash) << pattern;
    EXPECT_EQ(there.peak_live_bytes, planned.peak_live_bytes) << pattern;
    EXPECT_EQ(there.peak_reserved_bytes, planned.peak_reserved_bytes) << pattern;
    EXPECT_EQ(there.bytes_by_category, planned.bytes_by_category) << pattern;
  }
}

TEST_F(TrainOnCuda, UsesExactlyThePlannedBytes) {
  options_.budget = "1GiB";
  options_.checkpoint = "none";
  for (const char* pattern : {"window", "dilated"}) {
    options_.attention.attention = pattern;
    const DryRun planned = dry_run(options_, std::size_t{1} << 30);
    const TrainResult there = run("cuda");
    EXPECT_EQ(planned.peak_live, there.peak_live_bytes) << pattern;
    EXPECT_EQ(planned.peak_reserved, there.peak_reserved_bytes) << pattern;
  }
}

TEST_F(TrainOnCuda, HasTheSameBitsUnderEveryMemoryPolicy) {
  options_.layers = 2;
  options_.steps = 2;
  const std::vector<double> kept = numbers(run("cuda"));
  for (const char* policy : {"selective", "block", "sqrt", "revolve"}) {
    options_.checkpoint = policy;
    EXPECT_EQ(numbers(run("cuda")), kept) << policy;
  }
  options_.checkpoint = "auto";
  options_.offload = folder_.file("");
  EXPECT_EQ(numbers(run("cuda")), kept) << "offload";
}

TEST_F(TrainOnCuda, TrainsInChunksAndTiles) {
  options_.dropout = 0;
  options_.steps = 2;
  const TrainResult whole = run("cuda");
  options_.tile = 40;
  expect_alike(run("cuda"), whole, 1e-5, "tile");
  options_.tile = 0;
  options_.chunk = 40;
  expect_alike(run("cuda"), whole, 1e-4, "chunk");
}

TEST_F(TrainOnCuda, RecordedStepsHaveTheSameBits) {
  options_.steps = 3;  // eager, recorded, replayed
  const auto expect_same = [&](const std::string& what) {
    options_.graph = false;
    const TrainResult eager = run("cuda");
    options_.graph = true;
    const TrainResult recorded = run("cuda");
    EXPECT_EQ(numbers(recorded), numbers(eager)) << what;
    EXPECT_EQ(recorded.sample, eager.sample) << what;
  };
  for (const std::string& name : some_of(attention_names())) {
    if (name == "dense" || name == "nsa") continue;  // another name of causal; refused
    options_.attention.attention = name;
    expect_same(name);
  }
  EXPECT_THAT(out_.str(), HasSubstr(", steps recorded"));
  options_.attention.attention = "window";
  for (const char* dtype : {"bf16", "f16"}) {
    options_.dtype = dtype;
    expect_same(dtype);
  }
  options_.dtype = "f32";
  for (const std::string& optimizer : some_of(std::vector<std::string>{"adamw", "sgd", "lion"})) {
    options_.optimizer = optimizer;
    expect_same(optimizer);
  }
  for (const char* policy : {"selective", "block"}) {
    options_.checkpoint = policy;
    expect_same(policy);
  }
  options_.checkpoint = "auto";
  options_.dropout = 0;
  options_.chunk = 20;
  expect_same("chunks");
}

TEST_F(TrainOnCuda, RefusesToRecordUnsupportedSteps) {
  options_.graph = true;
  EXPECT_EQ(error_of<ValueError>([&] { run("cpu"); }),
            "[train] steps can be recorded only on CUDA devices, but the model is on cpu");
  EXPECT_THAT(error_of<ValueError>([&] { run("sim:1GiB"); }), HasSubstr("but the model is on sim:"));
  TrainOptions with = options_;
  with.budget = "1GiB";
  EXPECT_EQ(error_of<ValueError>([&] { run(with); }),
            "[train] --graph records one step, but --checkpoint budget recomputes differently in each step");
  with = options_;
  with.offload = folder_.file("");
  EXPECT_EQ(error_of<ValueError>([&] { run(with); }),
            "[train] --offload reads from the device, which a step recorded by --graph cannot");
  with = options_;
  with.profile = true;
  EXPECT_EQ(error_of<ValueError>([&] { run(with); }),
            "[train] --profile times each kernel of a step, but --graph launches a step as a whole");
}

TEST_F(TrainOnCuda, ResumesBitForBitAndAlsoOnTheCpu) {
  const TrainResult whole = run("cuda");
  options_.save = folder_.file("half.safetensors");
  options_.stop_after = 1;
  run("cuda");
  TrainOptions resumed;
  resumed.text = options_.text;
  resumed.resume = options_.save;
  resumed.sample = 4;
  for (const char* device : {"cuda", "cpu"}) {
    resumed.device = device;
    const TrainResult rest = run(resumed);
    ASSERT_EQ(rest.steps.size(), 2u) << device;
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_NEAR(rest.steps[i].loss, whole.steps[i + 1].loss, device == std::string("cuda") ? 0.0 : 1e-4) << device;
  }
}

TEST_F(TrainOnCuda, PrintsItsDeviceAndEngines) {
  options_.steps = 1;
  run("auto");
  EXPECT_THAT(out_.str(), HasSubstr("device   cuda:0, f32, " + engines_of({DeviceType::cuda, 0}).machine +
                                    ", products by cuBLASLt, attention by cuda cores"));
}

TEST_F(TrainOnCuda, RunsOutOfBudgetAndThenTrainsASmallerBatch) {
  options_.steps = 1;
  const std::vector<double> before = numbers(run("cuda"));
  options_.batch = 64;
  options_.budget = "2MiB";
  options_.checkpoint = "none";
  EXPECT_THAT(error_of<OutOfMemoryError>([&] { run("cuda"); }), HasSubstr("budget"));
  options_.batch = 2;
  options_.budget = "";
  EXPECT_EQ(numbers(run("cuda")), before);
}

TEST_F(TrainOnCuda, RefusesMissingDevices) {
  EXPECT_THAT(error_of<DeviceError>([&] { run("cuda:99"); }), HasSubstr("cuda:99 cannot be used"));
  EXPECT_THAT(error_of<ValueError>([&] { run("cuda:x"); }), HasSubstr("[train] --device must be cpu, cuda:N, auto"));
  EXPECT_THAT(error_of<ValueError>([&] { run("gpu"); }), HasSubstr("but is gpu"));
}

TEST(RecallOnCuda, MatchesTheAnswersOfTheCpu) {
  RecallOptions options;
  options.distance = 24;
  options.pairs = options.keys = options.values = 4;
  options.width = 32;
  options.heads = 2;
  options.tokens = 128;
  options.steps = 3;
  options.questions = 4;
  options.ask = 0;
  options.layers = 2;
  options.attention.attention = "causal,window";
  options.attention.window = 8;
  const auto on = [&](const char* device) {
    options.device = device;
    std::ostringstream out;
    return run_recall(options, out);
  };
  const auto there = on("cuda"), here = on("cpu");
  ASSERT_EQ(there.size(), here.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    ASSERT_EQ(there[i].records.size(), here[i].records.size());
    for (std::size_t step = 0; step < here[i].records.size(); ++step)
      EXPECT_NEAR(there[i].records[step].loss, here[i].records[step].loss, 1e-4) << here[i].attention;
  }
  EXPECT_THAT(error_of<ValueError>([&] { on("sim:1GiB"); }), HasSubstr("on sim nothing is learned"));
}

TEST(HeadlineOnCuda, MeasuresARow) {
  Bench bench{.device = {DeviceType::cuda, 0}, .row_seconds = 0.01, .memory = std::size_t{1} << 30};
  const Row row{"row", "a row", {}, attention::Pattern::dense(), 100, Work::training, 1, 2, 16};
  const Json result = measure(row, bench);
  EXPECT_GT(result["milliseconds"], 0);
  EXPECT_GE(result["peak_bytes"], result["formula_bytes"]);
}

TEST(LabOnCuda, RecordsTheSameRequestsAsASimulatedGpu) {
  const TemporaryFolder folder;
  const auto record = [&](const std::string& device, const char* workload) {
    const std::string file = folder.file("trace.pgt");
    std::ostringstream out, errors;
    const char* argv[] = {"lab",        "record", "--size",   "small",        "--steps", "2",
                          "--workload", workload, "--device", device.c_str(), "-o",      file.c_str()};
    EXPECT_EQ(run_lab(std::size(argv), argv, out, errors), 0) << errors.str();
    std::string requests;
    for (const TraceEvent& event : load_trace(file).events)
      if (event.kind == TraceKind::allocate) requests += std::to_string(event.size) + "\n";
    return requests;
  };
  for (const char* workload : {"train", "generate"})
    EXPECT_EQ(record("cuda", workload), record("sim:4GiB", workload)) << workload;  // prints the lines that differ
}

}  // namespace
}  // namespace poolgrad::examples
