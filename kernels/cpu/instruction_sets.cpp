#include "kernels/cpu/instruction_sets.h"

#include <algorithm>
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

/// Whether the CPU has bf16 tiles, the operating system saves them, and this process may use them. A process must ask
/// for permission (Linux, Documentation/arch/x86/xstate.rst).
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

/// Same order as instruction_sets().
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

const AutomaticSet& automatic() {
  static const AutomaticSet chosen_here = automatic_instruction_set(instruction_sets(), cpu_family());
  return chosen_here;
}

const InstructionSet* find(std::string_view name, const char* asked_by) {
  const std::vector<InstructionSet>& all = available();
  if (name == "auto") name = automatic().name;
  std::string names;
  for (const InstructionSet& set : all) {
    if (name == set.name) return &set;
    names += std::string(names.empty() ? "" : ", ") + set.name;
  }
  throw ValueError("[" + std::string(asked_by) + "] instruction set '" + std::string(name) +
                   "' is not available in this build on this CPU; available: auto, " + names);
}

const InstructionSet* from_environment() { return find(forced_instruction_set(), "POOLGRAD_ISA"); }

std::atomic<const InstructionSet*> chosen = nullptr;
std::atomic<bool> named_by_program = false;

}  // namespace

CpuFamily cpu_family() {
  CpuFamily cpu;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return cpu;
  cpu.maker = b == signature_AMD_ebx ? "AMD" : b == signature_INTEL_ebx ? "Intel" : "";
  if (!__get_cpuid(1, &a, &b, &c, &d)) return cpu;
  const unsigned family = a >> 8 & 0xf, extended = a >> 20 & 0xff;
  cpu.number = family == 0xf ? family + extended : family;
#endif
  return cpu;
}

AutomaticSet automatic_instruction_set(const std::vector<std::string_view>& available, const CpuFamily& cpu) {
  const auto has = [&](std::string_view name) {
    return std::find(available.begin(), available.end(), name) != available.end();
  };
  if (has("amx")) return {"amx", "bf16 in tiles"};
  // vdpbf16ps was measured to be faster than f32 on AMD's family 25 (Zen 4), and slower on Intel's 6
  // (docs/archive/measurements.md).
  if (has("avx512_bf16") && cpu.maker == "AMD" && cpu.number == 25)
    return {"avx512_bf16", "bf16 in pairs is faster than f32 on " + cpu.to_string()};
  std::string_view best;
  for (const std::string_view name : available)
    if (!name.ends_with("_bf16")) best = name;
  return {best, has("avx512_bf16") ? "bf16 in f32: pairs are not known to be faster on " + cpu.to_string() : ""};
}

std::string_view forced_instruction_set() {
  const char* name = std::getenv("POOLGRAD_ISA");
  return name && *name ? name : "auto";
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
  named_by_program = name != "auto";
}
std::string_view instruction_set() { return instruction_set_in_use().name; }
std::string instruction_set_reason() {
  if (named_by_program) return "chosen by the program";
  return forced_instruction_set() == "auto" ? automatic().reason : "chosen by POOLGRAD_ISA";
}

}  // namespace poolgrad::kernels
