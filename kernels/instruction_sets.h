// Instruction sets of the attention kernels, selected by the CPU. Names:
//
//   avx2 (or the set that the library is compiled for)
//   avx512                     the kernels compiled for AVX-512
//   avx512_bf16, amx           also bf16 products by vdpbf16ps or tdpbf16ps; the others compute bf16 in f32
//   emulated_bf16              the same products in plain code: slow, to test them on any CPU
//
// The environment variable POOLGRAD_ISA selects one, including any lower one that the build has; a build for x86-64-v3
// has them all. "auto", the default, is amx if the CPU has it. Otherwise it is avx512_bf16 on CPUs on which it was
// measured to be faster than f32: AMD's family 25 (docs/archive/measurements.md). Otherwise it is the best set that
// computes bf16 in f32. The choice depends only on the CPU's features, maker and family, so one machine always gives
// the same bits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::kernels {

/// Returns the sets that this build has and this CPU and operating system support, in the order above.
std::vector<std::string_view> instruction_sets();
/// Selects a set for the process; "auto" returns to the choice of POOLGRAD_ISA. Throws ValueError for a name outside
/// instruction_sets().
void set_instruction_set(std::string_view name);
/// Returns the set in use. Throws ValueError if POOLGRAD_ISA names no available set.
std::string_view instruction_set();
/// Returns why the set is in use: its origin, or the reason for bf16 or f32. Empty if there was no choice.
std::string instruction_set_reason();

}  // namespace poolgrad::kernels
