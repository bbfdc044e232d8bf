// The instruction set selected by kernels/instruction_sets.h, for the kernels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/gemm/pair_product.h"

namespace poolgrad::kernels {

/// One way to run the attention kernels.
struct InstructionSet {
  const char* name;
  bool avx512;           // uses the variant compiled for AVX-512
  PairProduct products;  // bf16 products; nullptr: in f32
};
const InstructionSet& instruction_set_in_use();
/// Returns the value of POOLGRAD_ISA; "auto" without one.
std::string_view forced_instruction_set();

/// Maker and family of a CPU. A measurement on one CPU applies to its whole family.
struct CpuFamily {
  std::string maker;  // "AMD", "Intel", "" for others
  unsigned number = 0;
  std::string to_string() const { return maker + " family " + std::to_string(number); }
};
CpuFamily cpu_family();
/// The choice of "auto" on a CPU of that family with these sets, and the reason.
struct AutomaticSet {
  std::string_view name;
  std::string reason;
};
AutomaticSet automatic_instruction_set(const std::vector<std::string_view>& available, const CpuFamily& cpu);

}  // namespace poolgrad::kernels
