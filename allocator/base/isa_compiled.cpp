// Compiled with the flags of the library, but holds one constant and no code, so that it can be read on any CPU.
#include "allocator/base/isa_check.h"

namespace poolgrad {

// An undefined macro stays a name, which does not start with a digit: "1" says that the compiler defines it.
#define POOLGRAD_TEXT(macro) #macro
#define POOLGRAD_BIT(bit, macro, name) | (POOLGRAD_TEXT(macro)[0] == '1' ? 1u << bit : 0u)
constinit const std::uint32_t compiled_instruction_sets = 0u POOLGRAD_INSTRUCTION_SETS(POOLGRAD_BIT);

}  // namespace poolgrad
