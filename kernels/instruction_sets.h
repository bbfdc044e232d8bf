// The attention kernels exist for several instruction sets; the CPU at hand decides. Names:
//
//   avx2 (or what the library is compiled for)
//   avx512                     the kernels compiled for AVX-512
//   avx512_bf16, amx           besides, products of bf16 by vdpbf16ps or tdpbf16ps; otherwise bf16 is computed in f32
//   emulated_bf16              the same products in plain code: slow, to test them on any CPU
//
// The environment variable POOLGRAD_ISA names the one to use, which forces any lower one that the build has: a build
// for x86-64-v3 has them all. "auto", the default, is amx where the CPU has it; else avx512_bf16 on CPUs where it was
// measured to be faster than f32 (docs/measurements.md): AMD's family 25; else the best that computes bf16 in f32. That
// is a function of the CPU's features, maker and family alone, so that a machine gives the same bits every time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::kernels {

/// Those that this build has and this CPU and its operating system support, in the order above.
std::vector<std::string_view> instruction_sets();
/// Chooses one for the process; "auto" goes back to what POOLGRAD_ISA says. Throws ValueError for a name that is not
/// among instruction_sets().
void set_instruction_set(std::string_view name);
/// The one in use. Throws ValueError where POOLGRAD_ISA names none.
std::string_view instruction_set();
/// Why it is in use, in a few words: what named it, or what decided between bf16 and f32. Empty where there was no
/// choice.
std::string instruction_set_reason();

}  // namespace poolgrad::kernels
