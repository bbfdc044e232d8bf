// Delta debugging: finds a short script that still fails by removing and simplifying operations.
#pragma once

#include <functional>
#include <utility>

#include "tests/allocator/fuzz/operation.h"

namespace poolgrad::testing {

/// Calls `fails` at most about `attempts` times.
inline Script shrink(Script script, const std::function<bool(const Script&)>& fails, std::size_t attempts = 2000) {
  const auto try_out = [&](Script candidate) {
    if (attempts == 0) return false;
    --attempts;
    if (!fails(candidate)) return false;
    script = std::move(candidate);
    return true;
  };
  // Remove ever smaller pieces, from the back, until no single operation can be removed.
  for (std::size_t piece = (script.size() + 1) / 2; piece > 0 && attempts > 0;) {
    bool shorter = false;
    for (std::size_t end = script.size(); end > 0 && attempts > 0;) {
      const std::size_t start = end > piece ? end - piece : 0;
      Script candidate(script.begin(), script.begin() + static_cast<std::ptrdiff_t>(start));
      candidate.insert(candidate.end(), script.begin() + static_cast<std::ptrdiff_t>(end), script.end());
      shorter |= try_out(std::move(candidate));
      end = start;
    }
    if (piece == 1 && !shorter) break;
    if (!shorter || piece > script.size()) piece = std::max<std::size_t>(piece / 2, 1);
  }
  for (std::size_t i = 0; i < script.size(); ++i) {
    const auto simpler = [&](auto change) {
      Script candidate = script;
      change(candidate[i]);
      return to_string(candidate[i]) != to_string(script[i]) && try_out(std::move(candidate));
    };
    simpler([](Operation& o) { o.thread = 0; });
    simpler([](Operation& o) { o.alignment = 64; });
    simpler([](Operation& o) { o.category = Category::activation; });
    for (std::size_t unit = std::size_t{1} << 63; unit > 1; unit /= 2)
      simpler([unit](Operation& o) { o.bytes = o.bytes / unit * unit; });
  }
  return script;
}

}  // namespace poolgrad::testing
