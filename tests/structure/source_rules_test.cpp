// Checks the tree by the rules, and the rules by seeded violations.
#include "tests/structure/source_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace poolgrad::structure {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

const std::vector<SourceFile>& tree() {
  static const std::vector<SourceFile> files = read_sources(POOLGRAD_SOURCE_ROOT);
  return files;
}

std::string repeated_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "int x;\n";
  return text;
}

TEST(SourceTree, HasEveryLayer) {
  for (const char* path : {"poolgrad.h", "allocator/caching_allocator.h", "kernels/gemm.h", "tensor/tensor.h",
                           "autograd/engine/engine.h", "nn/module.h", "attention/attend.h"})
    EXPECT_TRUE(std::ranges::any_of(tree(), [&](const SourceFile& file) { return file.path == path; })) << path;
}

TEST(SourceTree, IncludesOnlyLowerLayers) { EXPECT_THAT(floor_violations(tree()), IsEmpty()); }
TEST(SourceTree, KeepsThirdPartyHeadersOutOfPublicOnes) { EXPECT_THAT(public_header_violations(tree()), IsEmpty()); }
TEST(SourceTree, HasSmallFolders) { EXPECT_THAT(room_violations(tree()), IsEmpty()); }
TEST(SourceTree, HasSmallFiles) { EXPECT_THAT(size_violations(tree()), IsEmpty()); }
TEST(SourceTree, AsksForCudaInOneHeader) { EXPECT_THAT(cuda_conditional_violations(tree()), IsEmpty()); }
TEST(SourceTree, LaunchesKernelsInOnePlace) { EXPECT_THAT(launch_violations(tree()), IsEmpty()); }
TEST(SourceTree, HasNoUnfinishedCode) { EXPECT_THAT(unfinished_violations(tree()), IsEmpty()); }

TEST(SourceRules, ALayerMayIncludeItselfAndLowerLayers) {
  EXPECT_THAT(
      floor_violations({{"tensor/a.h", "#include <vector>\n#include \"tensor/b.h\"\n#include \"kernels/c.h\"\n"},
                        {"kernels/cpu/a.cpp", "#include \"kernels/cpu/b.h\"\n#include \"allocator/c.h\"\n"},
                        {"poolgrad.h", "#include \"attention/attend.h\"\n"},
                        {"examples/train/main.cpp", "#include \"poolgrad.h\"\n#include \"examples/a.h\"\n"}}),
      IsEmpty());
}

TEST(SourceRules, CatchAnIncludeOfAHigherLayer) {
  EXPECT_THAT(floor_violations({{"tensor/a.h", "#pragma once\n  #  include \"autograd/engine/node.h\" // why not\n"},
                                {"nn/a.cpp", "#include \"attention/attend.h\"\n"},
                                {"attention/a.cpp", "#include \"tests/attention/reference.h\"\n"},
                                {"allocator/a.cpp", "#include \"poolgrad.h\"\n"}}),
              ElementsAre("tensor/a.h: autograd/engine/node.h is in a higher layer",
                          "nn/a.cpp: attention/attend.h is in a higher layer",
                          "attention/a.cpp: tests/attention/reference.h is in a higher layer",
                          "allocator/a.cpp: poolgrad.h is in a higher layer"));
}

TEST(SourceRules, CatchRelativeIncludesAndUnknownFolders) {
  EXPECT_THAT(floor_violations({{"tensor/a.cpp", "#include \"shape.h\"\n#include \"../kernels/view.h\"\n"},
                                {"tensor/b.cpp", "#include <kernels/view.h>\n"},
                                {"nn/b.cpp", "#include \"utilities/view.h\"\n"},
                                {"utilities/view.h", ""},
                                {"stray.h", ""}}),
              ElementsAre("tensor/a.cpp: shape.h is not included from the root of the tree",
                          "tensor/a.cpp: ../kernels/view.h is not included from the root of the tree",
                          "tensor/b.cpp: kernels/view.h needs quotes",
                          "nn/b.cpp: utilities/view.h is not included from the root of the tree",
                          "utilities/view.h: belongs to no layer", "stray.h: belongs to no layer"));
}

TEST(SourceRules, CatchThirdPartyAndPrivateHeadersInPublicOnes) {
  const SourceFile umbrella = {"poolgrad.h", "#include \"tensor/a.h\"\n"};
  for (const char* header : {"Eigen/Core", "cuda_runtime.h", "cuda.h", "cublasLt.h", "fmt/format.h",
                             "nlohmann/json.hpp", "oneapi/dnnl/dnnl.hpp", "mpi.h", "nccl.h"}) {
    const std::string text = "#pragma once\n#include <" + std::string(header) + ">\n";
    EXPECT_THAT(public_header_violations({umbrella, {"tensor/a.h", text}}), SizeIs(1)) << header;
    EXPECT_THAT(public_header_violations({umbrella,
                                          {"tensor/a.h", "#pragma once\n"},
                                          {"tensor/a.cpp", text},
                                          {"tensor/b.h", text},
                                          {"kernels/cpu/a.h", text}}),
                IsEmpty())
        << header;
  }
  EXPECT_THAT(public_header_violations({umbrella, {"tensor/a.h", "#pragma once\n#include \"kernels/cpu/simd.h\"\n"}}),
              ElementsAre("tensor/a.h: a public header includes kernels/cpu/simd.h"));
  EXPECT_THAT(public_header_violations({umbrella,
                                        {"tensor/a.h", "#pragma once\n#include \"tensor/b.h\"\n"},
                                        {"tensor/b.h", "#pragma once\n#include <fmt/format.h>\n"}}),
              ElementsAre("tensor/b.h: a public header includes fmt/format.h"));
  EXPECT_THAT(public_header_violations({umbrella, {"tensor/a.h", "#include <vector>\n"}}),
              ElementsAre("tensor/a.h: no #pragma once"));
}

TEST(SourceRules, CatchAWrongOrLongListOfPublicHeaders) {
  EXPECT_THAT(public_header_violations({}), ElementsAre("poolgrad.h: does not exist"));
  EXPECT_THAT(public_header_violations({{"poolgrad.h", "#include \"nn/a.h\"\n"}}),
              ElementsAre("poolgrad.h: there is no nn/a.h"));
  std::vector<SourceFile> files;
  std::string list;
  for (int i = 0; i <= 45; ++i) {
    files.push_back({"nn/" + std::to_string(i) + ".h", "#pragma once\n"});
    list += "#include \"" + files.back().path + "\"\n";
  }
  files.push_back({"poolgrad.h", list});
  EXPECT_THAT(public_header_violations(files), ElementsAre("poolgrad.h: lists 46, limit 45"));
}

TEST(SourceRules, CatchOverfullFolders) {
  std::vector<SourceFile> files = {{"nn/training/a.h", ""}, {"nn/training/b.h", ""}};
  for (int i = 0; i < 24; ++i) files.push_back({"nn/" + std::to_string(i) + ".h", ""});
  for (int i = 0; i < 30; ++i) files.push_back({"tests/nn/" + std::to_string(i) + ".cpp", ""});
  EXPECT_THAT(room_violations(files), IsEmpty());
  files.push_back({"nn/one_more.h", ""});
  EXPECT_THAT(room_violations(files), ElementsAre("nn: 26 entries, limit 25"));
}

TEST(SourceRules, CatchLongFilesAndALongMedian) {
  EXPECT_THAT(size_violations({{"nn/a.cpp", repeated_lines(700)}, {"nn/b.h", ""}, {"nn/c.h", ""}}), IsEmpty());
  EXPECT_THAT(size_violations({{"nn/a.cpp", repeated_lines(701)}, {"nn/b.h", ""}, {"nn/c.h", ""}}),
              ElementsAre("nn/a.cpp: 701 lines, limit 700"));
  EXPECT_THAT(size_violations({{"nn/a.cpp", repeated_lines(150)}}),
              ElementsAre("the tree: a median of 150 lines, limit 149"));
}

TEST(SourceRules, CatchCudaConditionals) {
  const std::string text = "int x;\n#if defined(__CUDACC__)\n#endif\n";
  EXPECT_THAT(
      cuda_conditional_violations({{"nn/a.h", text},
                                   {"kernels/cuda/a.cuh", text},
                                   {"kernels/cuda/b.cuh", "#if defined(__CUDA_ARCH__)\n"},
                                   {"kernels/functors/host_device.h", text},
                                   {"allocator/memory/cuda_driver.cpp", text}}),
      ElementsAre("nn/a.h: line 2 is conditional on CUDA", "kernels/cuda/a.cuh: line 2 is conditional on CUDA"));
  EXPECT_THAT(cuda_conditional_violations({{"nn/a.h", "#  ifdef POOLGRAD_WITH_CUDA\n"}}), SizeIs(1));
}

TEST(SourceRules, CatchAKernelLaunchOutsideTheLauncher) {
  const std::string launch =
      "void f() {\n  kernel" + std::string(3, '<') + "grid, block" + std::string(3, '>') + "(x);\n}\n";
  EXPECT_THAT(launch_violations({{"kernels/cuda/runtime.cuh", launch},
                                 {"kernels/cuda/copy.cu", launch},
                                 {"tests/gpu/a.cpp", launch},
                                 {"kernels/a.h", "std::cout << x << y;\nint x = 1 << 3;\n"}}),
              ElementsAre("kernels/cuda/copy.cu: line 2 launches a kernel by itself",
                          "tests/gpu/a.cpp: line 2 launches a kernel by itself"));
}

TEST(SourceRules, CatchUnfinishedCode) {
  EXPECT_THAT(unfinished_violations({{"nn/a.h",
                                      "// TO"
                                      "DO: the rest\n// throw Error(\"not "
                                      "implemented\");\n"}}),
              SizeIs(2));
}

}  // namespace
}  // namespace poolgrad::structure
