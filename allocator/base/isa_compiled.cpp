// Compiled with the flags of the library, but contains one constant and no code, so that any CPU can read it.
#include "allocator/base/isa_check.h"

namespace poolgrad {

// Expands to "1" for a macro that the compiler defines, and to the macro's name for another.
#define POOLGRAD_TEXT(macro) #macro
#define POOLGRAD_BIT(bit, macro, name) | (POOLGRAD_TEXT(macro)[0] == '1' ? 1u << bit : 0u)
constinit const std::uint32_t compiled_instruction_sets = 0u POOLGRAD_INSTRUCTION_SETS(POOLGRAD_BIT);

}  // namespace poolgrad
