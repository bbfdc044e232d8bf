// A program made for a newer CPU than the one it runs on ends before main() with one sentence, in place of SIGILL.
#pragma once

#include <cstdint>

namespace poolgrad {

/// The instruction sets that the library was compiled for, one bit each.
extern const std::uint32_t compiled_instruction_sets;

/// Those that this CPU and its operating system support, less the one named by the environment variable
/// POOLGRAD_CPU_WITHOUT (to try the check).
std::uint32_t supported_instruction_sets();

/// The name of the first instruction set of `compiled` that is not in `supported`, such as "avx2"; nullptr if none.
const char* missing_instruction_set(std::uint32_t compiled, std::uint32_t supported);

}  // namespace poolgrad
