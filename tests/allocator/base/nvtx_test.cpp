// Scopes reported to a profiler. A stub in this program stands in for Nsight Systems.
#define NVTX_NO_IMPL  // types alone
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

#include "allocator/memory_scope.h"

namespace {

std::vector<std::string> told;
char domain;  // target of its handle

nvtxDomainHandle_t create_domain(const char* name) {
  told.push_back("domain " + std::string(name));
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}
int push_range(nvtxDomainHandle_t in, const nvtxEventAttributes_t* range) {
  const bool complete = reinterpret_cast<char*>(in) == &domain && range->version == NVTX_VERSION &&
                        range->size == NVTX_EVENT_ATTRIB_STRUCT_SIZE && range->messageType == NVTX_MESSAGE_TYPE_ASCII;
  told.push_back(complete ? range->message.ascii : "incomplete");
  return 0;
}
int pop_range(nvtxDomainHandle_t in) {
  told.emplace_back(reinterpret_cast<char*>(in) == &domain ? "end" : "end of another domain");
  return 0;
}

int attach(NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&create_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&push_range);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop_range);
  return 1;
}

}  // namespace

extern "C" {
extern NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = &attach;
}

namespace poolgrad {
namespace {

TEST(Nvtx, ScopesAreRangesOfADomainOfTheirOwn) {
  ScopeListener* const before = listen_to_scopes(nvtx_listener());
  {
    const MemoryScope outer("block3");
    const MemoryScope inner(std::string(200, 'x'), Category::workspace);
  }
  listen_to_scopes(before);
  EXPECT_EQ(told, (std::vector<std::string>{"domain poolgrad", "block3", std::string(127, 'x'), "end", "end"}));
}

}  // namespace
}  // namespace poolgrad
