// Counts a run's reads from a GPU: the emulated device counts copies to the host.
#include <gtest/gtest.h>

#include <string>

#include "examples/support/train.h"
#include "tests/emulation/device.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

TEST(TrainOnTheEmulatedDevice, ReadsFromTheDeviceOncePerStep) {
  const testing_support::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 120; ++i) text += "int f" + std::to_string(i * i % 97) + "() { return 1; }\n";
  testing_support::write_bytes(folder.file("text"), text);
  TrainOptions options;
  options.text = {folder.file("text")};
  options.context = 48;
  options.layers = 1;
  options.width = 16;
  options.heads = 4;
  options.attention.window = 24;
  options.attention.segments = {16, 64};
  options.attention.rates = {1, 2};
  options.batch = 2;
  options.steps = 4;
  options.dropout = 0.1;
  options.device = "cuda";
  for (const char* attention : {"causal", "window", "dilated"})
    for (const char* dtype : {"f32", "f16"})
      for (const bool graph : {false, true}) {
        options.attention.attention = attention;
        options.dtype = dtype;
        options.graph = graph;
        const PreparedRun run(options);
        for (int step = 1; step <= 3; ++step) {
          const std::uint64_t before = emulation::device(0).copies_to_host();
          run.trainer->step();
          EXPECT_EQ(emulation::device(0).copies_to_host() - before, 1u)
              << attention << ", " << dtype << ", step " << step << (graph ? ", recorded" : "");
        }
      }
}

}  // namespace
}  // namespace poolgrad::examples
