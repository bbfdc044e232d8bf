// What kernels/instruction_sets.h has chosen, for the kernels.
#pragma once

#include "kernels/cpu/pair_product.h"

namespace poolgrad::kernels {

/// One way to run the attention kernels.
struct InstructionSet {
  const char* name;
  bool avx512;           // the kernels of the variant that is compiled for AVX-512
  PairProduct products;  // of bf16; nullptr: in f32
};
const InstructionSet& instruction_set_in_use();

}  // namespace poolgrad::kernels
