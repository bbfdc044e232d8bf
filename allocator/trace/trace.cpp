#include "allocator/trace/trace.h"

#include <array>

namespace poolgrad {

std::string_view to_string(TraceKind kind) {
  static constexpr std::array<std::string_view, trace_kind_count> names = {
      "allocate", "free_requested", "free_completed", "segment_map",  "segment_unmap",
      "rung",     "out_of_memory",  "stream_use",     "stream_order", "step"};
  const auto index = static_cast<std::size_t>(kind);
  return index < names.size() ? names[index] : "invalid";
}

}  // namespace poolgrad
