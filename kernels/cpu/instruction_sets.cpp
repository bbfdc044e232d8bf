#include "kernels/cpu/instruction_sets.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

#include "allocator/base/isa_check.h"
#include "allocator/error.h"
#include "kernels/instruction_sets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace poolgrad::kernels {
namespace {

#if defined(__AVX512F__)
constexpr const char* compiled_for = "avx512";
#elif defined(__AVX2__)
constexpr const char* compiled_for = "avx2";
#else
constexpr const char* compiled_for = "baseline";
#endif
#if defined(POOLGRAD_AVX512_VARIANT)
constexpr bool has_variant = true;
#else
constexpr bool has_variant = false;
#endif
constexpr bool compiled_for_avx512 = std::string_view(compiled_for) == "avx512";

bool supports(std::initializer_list<std::string_view> names) {
#define POOLGRAD_ENTRY(bit, macro, name) {1u << bit, name},
  static constexpr std::pair<std::uint32_t, std::string_view> sets[] = {POOLGRAD_INSTRUCTION_SETS(POOLGRAD_ENTRY)};
#undef POOLGRAD_ENTRY
  const std::uint32_t supported = supported_instruction_sets();
  std::size_t found = 0;
  for (const auto& [bit, set] : sets)
    for (const std::string_view name : names)
      if (name == set && (supported & bit)) ++found;
  return found == names.size();
}

/// The CPU has tiles of bf16, the operating system saves them, and this process may use them, for which it must ask
/// (Linux, Documentation/arch/x86/xstate.rst).
bool may_use_amx() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;  // leaf 7, EDX
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned tile_state = 3u << 17;
  if ((low & tile_state) != tile_state) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

/// In the order of instruction_sets().
const std::vector<InstructionSet>& available() {
  static const std::vector<InstructionSet> all = [] {
    std::vector<InstructionSet> sets{{compiled_for, false, nullptr}};
    const bool variant = has_variant && supports({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
    if (variant) sets.push_back({"avx512", true, nullptr});
    if (variant || compiled_for_avx512) {
      if (supports({"avx512bf16"})) sets.push_back({"avx512_bf16", variant, &pair_product_avx512_bf16});
      if (may_use_amx()) sets.push_back({"amx", variant, &pair_product_amx});
    }
    sets.push_back({"emulated_bf16", variant, &pair_product_emulated});
    return sets;
  }();
  return all;
}

/// Products by vdpbf16ps were slower than those of f32 on the CPU that they were measured on (docs/measurements.md), so
/// nothing but a name chooses them. The rule asks for features alone: one machine gives the same bits every time.
const InstructionSet& fastest() {
  const InstructionSet* best = nullptr;
  for (const InstructionSet& set : available())
    if (!set.products || set.products == &pair_product_amx) best = &set;
  return *best;
}

const InstructionSet* find(std::string_view name, const char* asked_by) {
  const std::vector<InstructionSet>& all = available();
  if (name == "auto") return &fastest();
  std::string names;
  for (const InstructionSet& set : all) {
    if (name == set.name) return &set;
    names += std::string(names.empty() ? "" : ", ") + set.name;
  }
  throw ValueError("[" + std::string(asked_by) + "] instruction set '" + std::string(name) +
                   "' is not one that this build and this CPU have: auto, " + names);
}

const InstructionSet* from_environment() { return find(forced_instruction_set(), "POOLGRAD_ISA"); }

std::atomic<const InstructionSet*> chosen = nullptr;

}  // namespace

std::string_view forced_instruction_set() {
  const char* name = std::getenv("POOLGRAD_ISA");
  return name ? name : "auto";
}

const InstructionSet& instruction_set_in_use() {
  const InstructionSet* set = chosen.load(std::memory_order_acquire);
  if (set) return *set;
  set = from_environment();
  chosen.store(set, std::memory_order_release);
  return *set;
}

std::vector<std::string_view> instruction_sets() {
  std::vector<std::string_view> names;
  for (const InstructionSet& set : available()) names.emplace_back(set.name);
  return names;
}
void set_instruction_set(std::string_view name) {
  chosen.store(name == "auto" ? from_environment() : find(name, "set_instruction_set"), std::memory_order_release);
}
std::string_view instruction_set() { return instruction_set_in_use().name; }

}  // namespace poolgrad::kernels
