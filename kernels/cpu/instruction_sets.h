// What kernels/instruction_sets.h has chosen, for the kernels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/gemm/pair_product.h"

namespace poolgrad::kernels {

/// One way to run the attention kernels.
struct InstructionSet {
  const char* name;
  bool avx512;           // the kernels of the variant that is compiled for AVX-512
  PairProduct products;  // of bf16; nullptr: in f32
};
const InstructionSet& instruction_set_in_use();
/// What POOLGRAD_ISA says: "auto" where it says nothing.
std::string_view forced_instruction_set();

/// Whose CPU it is: what was measured on one holds for its family.
struct CpuFamily {
  std::string maker;  // "AMD", "Intel", "" for others
  unsigned number = 0;
  std::string to_string() const { return maker + " family " + std::to_string(number); }
};
CpuFamily cpu_family();
/// What "auto" is on a CPU of that family that has these sets, and why.
struct AutomaticSet {
  std::string_view name;
  std::string reason;
};
AutomaticSet automatic_instruction_set(const std::vector<std::string_view>& available, const CpuFamily& cpu);

}  // namespace poolgrad::kernels
