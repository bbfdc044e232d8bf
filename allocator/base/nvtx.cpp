// NVTX ranges for scopes. NVTX is header-only (CUDA toolkit); without a profiler its calls return at once.
#include "allocator/memory_scope.h"

#if __has_include(<nvtx3/nvToolsExt.h>)

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>

namespace poolgrad {

namespace {

class NvtxRanges : public ScopeListener {
 public:
  void begins(std::string_view name) noexcept override {
    std::array<char, 128> text{};
    std::copy_n(name.data(), std::min(name.size(), text.size() - 1), text.data());
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = text.data();
    nvtxDomainRangePushEx(domain_, &range);
  }
  void ends() noexcept override { nvtxDomainRangePop(domain_); }

 private:
  const nvtxDomainHandle_t domain_ = nvtxDomainCreateA("poolgrad");
};

}  // namespace

// Never destroyed: scopes of other threads may end after every static object.
ScopeListener* nvtx_listener() {
  static auto* const ranges = new NvtxRanges;
  return ranges;
}

}  // namespace poolgrad

#else

namespace poolgrad {

ScopeListener* nvtx_listener() { return nullptr; }

}  // namespace poolgrad

#endif
