// The attention kernels exist for several instruction sets; the CPU at hand decides. Names, the fastest last:
//
//   avx2 (or what the library is compiled for)
//   avx512                     the kernels compiled for AVX-512
//   avx512_bf16, amx           besides, products of bf16 by vdpbf16ps or tdpbf16ps; otherwise bf16 is computed in f32
//   emulated_bf16              the same products in plain code: slow, to test them on any CPU
//
// The environment variable POOLGRAD_ISA names the one to use; "auto", the default, is the fastest.
#pragma once

#include <string_view>
#include <vector>

namespace poolgrad::kernels {

/// Those that this build has and this CPU and its operating system support, the fastest last, then emulated_bf16.
std::vector<std::string_view> instruction_sets();
/// Chooses one for the process, or "auto". Throws ValueError for a name that is not among instruction_sets().
void set_instruction_set(std::string_view name);
/// The one in use. Throws ValueError where POOLGRAD_ISA names none.
std::string_view instruction_set();

}  // namespace poolgrad::kernels
