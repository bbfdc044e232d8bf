// What kernels/instruction_sets.h has chosen, for the kernels.
#pragma once

#include <string_view>

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

}  // namespace poolgrad::kernels
