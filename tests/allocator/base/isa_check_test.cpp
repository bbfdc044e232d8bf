#include "allocator/base/isa_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace poolgrad {
namespace {

using ::testing::StrEq;

TEST(InstructionSets, NameTheFirstMissingOne) {
  EXPECT_EQ(missing_instruction_set(0b0111, 0b1111), nullptr);
  EXPECT_EQ(missing_instruction_set(0, 0), nullptr);
  EXPECT_THAT(missing_instruction_set(0b0111, 0b0001), StrEq("avx2"));
  EXPECT_THAT(missing_instruction_set(1u << 18, (1u << 18) - 1), StrEq("avx512bf16"));
}

TEST(InstructionSets, IncludeAllCompiledOnesOnThisCpu) {
  EXPECT_EQ(missing_instruction_set(compiled_instruction_sets, supported_instruction_sets()), nullptr);
}

TEST(InstructionSets, AProgramForANewerCpuEndsWithOneSentence) {
  if (compiled_instruction_sets == 0) GTEST_SKIP() << "compiled for the oldest x86-64";
  // Simulates a CPU that lacks an instruction set that this program was compiled for.
  const std::string lacking = missing_instruction_set(compiled_instruction_sets, 0);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");

  FILE* pipe = popen(("POOLGRAD_CPU_WITHOUT=" + lacking + " '" + program + "' --gtest_list_tests 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  std::array<char, 256> buffer;
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe)) output += buffer.data();
  const int status = pclose(pipe);

  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(output, StrEq("poolgrad was compiled for a CPU with " + lacking +
                            ", which this one lacks: build with -DPOOLGRAD_ISA=native on this machine, or "
                            "-DPOOLGRAD_ISA=x86-64-v3.\n"));
}

}  // namespace
}  // namespace poolgrad
