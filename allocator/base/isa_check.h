// Ends a program built for a newer CPU before main() with an error message instead of SIGILL.
#pragma once

#include <cstdint>

// All known instruction sets: X(bit, the compiler's macro, its name). A second list has the sets whose names some
// compilers' __builtin_cpu_supports() does not know (Clang 16).
#define POOLGRAD_INSTRUCTION_SETS(X)  \
  POOLGRAD_NAMED_SETS(X)              \
  X(3, __F16C__, "f16c")              \
  X(6, __LZCNT__, "lzcnt")            \
  X(19, __AVX512FP16__, "avx512fp16") \
  X(20, __AVXVNNI__, "avxvnni")
#define POOLGRAD_NAMED_SETS(X)                  \
  X(0, __AVX__, "avx")                          \
  X(1, __AVX2__, "avx2")                        \
  X(2, __FMA__, "fma")                          \
  X(4, __BMI__, "bmi")                          \
  X(5, __BMI2__, "bmi2")                        \
  X(7, __AVX512F__, "avx512f")                  \
  X(8, __AVX512BW__, "avx512bw")                \
  X(9, __AVX512CD__, "avx512cd")                \
  X(10, __AVX512DQ__, "avx512dq")               \
  X(11, __AVX512VL__, "avx512vl")               \
  X(12, __AVX512IFMA__, "avx512ifma")           \
  X(13, __AVX512VBMI__, "avx512vbmi")           \
  X(14, __AVX512VBMI2__, "avx512vbmi2")         \
  X(15, __AVX512VNNI__, "avx512vnni")           \
  X(16, __AVX512BITALG__, "avx512bitalg")       \
  X(17, __AVX512VPOPCNTDQ__, "avx512vpopcntdq") \
  X(18, __AVX512BF16__, "avx512bf16")

namespace poolgrad {

/// The instruction sets that the library was compiled for, as a bit mask.
extern const std::uint32_t compiled_instruction_sets;

/// The instruction sets that this CPU and its operating system support, without the one named by the environment
/// variable POOLGRAD_CPU_WITHOUT (for tests).
std::uint32_t supported_instruction_sets();

/// The name of the first instruction set of `compiled` that is not in `supported`, such as "avx2"; nullptr if none.
const char* missing_instruction_set(std::uint32_t compiled, std::uint32_t supported);

}  // namespace poolgrad
