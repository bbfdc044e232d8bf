// Compiled for baseline x86-64, and free of templates and inline functions of the standard library: the linker might
// take their code from an object file that was compiled for a newer CPU.
#include "allocator/base/isa_check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace poolgrad {
namespace {

struct InstructionSet {
  std::uint32_t bit;
  const char* name;
};
#define POOLGRAD_ENTRY(bit, macro, name) {1u << bit, name},
constexpr InstructionSet instruction_sets[] = {POOLGRAD_INSTRUCTION_SETS(POOLGRAD_ENTRY)};

#if defined(__x86_64__)
// The CPUID bit of an instruction set without a compiler name: leaf, subleaf, register (eax, ebx, ecx, edx) and bit,
// and a named set whose registers the operating system must save for it.
struct NamelessSet {
  unsigned set, needs, leaf, subleaf, word, bit;
};
constexpr NamelessSet nameless_sets[] = {
    {3, 0, 1, 0, 2, 29}, {6, 0, 0x80000001, 0, 2, 5}, {19, 7, 7, 0, 3, 23}, {20, 0, 7, 1, 0, 4}};
#endif

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

}  // namespace

std::uint32_t supported_instruction_sets() {
  std::uint32_t supported = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
#define POOLGRAD_ASK(bit, macro, name) supported |= __builtin_cpu_supports(name) ? 1u << bit : 0u;
  POOLGRAD_NAMED_SETS(POOLGRAD_ASK)
  for (const NamelessSet& it : nameless_sets) {
    unsigned words[4];
    const bool known = __get_cpuid_count(it.leaf, it.subleaf, &words[0], &words[1], &words[2], &words[3]) != 0;
    if (known && (words[it.word] >> it.bit & 1) && (supported >> it.needs & 1)) supported |= 1u << it.set;
  }
#endif
  if (const char* without = std::getenv("POOLGRAD_CPU_WITHOUT")) {
    for (const InstructionSet& set : instruction_sets)
      if (std::strcmp(set.name, without) == 0) supported &= ~set.bit;
  }
  return supported;
}

const char* missing_instruction_set(std::uint32_t compiled, std::uint32_t supported) {
  for (const InstructionSet& set : instruction_sets)
    if (compiled & ~supported & set.bit) return set.name;
  return nullptr;
}

}  // namespace poolgrad

// Runs before all other static initializers. allocator/CMakeLists.txt makes the linker keep it.
extern "C" __attribute__((constructor(101))) void poolgrad_isa_check() {
  using namespace poolgrad;
  const char* missing = missing_instruction_set(compiled_instruction_sets, supported_instruction_sets());
  if (missing == nullptr) return;
  say("poolgrad was compiled for a CPU with ");
  say(missing);
  say(", which this one lacks: build with -DPOOLGRAD_ISA=native on this machine, or -DPOOLGRAD_ISA=x86-64-v3.\n");
  _exit(1);
}
