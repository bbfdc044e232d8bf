// The latency tables that were compiled in, as text: allocator/latency/*.txt.
#pragma once

#include <string_view>
#include <vector>

namespace poolgrad {

struct LatencyText {
  std::string_view name;
  std::string_view text;
};

const std::vector<LatencyText>& latency_texts();

}  // namespace poolgrad
