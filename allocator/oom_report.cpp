#include "allocator/oom_report.h"

#include <algorithm>

#include "allocator/caching_allocator.h"

namespace poolgrad {

namespace {

constexpr std::size_t scopes_shown = 5;

std::string exact(std::size_t bytes) { return format_bytes(bytes) + " (" + std::to_string(bytes) + " B)"; }

// "  activation 6.00 MiB, gradient 1.00 MiB", largest first; "  none" if everything is zero.
std::string ranking(std::vector<std::pair<std::string, std::size_t>> entries, std::size_t shown) {
  std::erase_if(entries, [](const auto& entry) { return entry.second == 0; });
  std::ranges::stable_sort(entries, [](const auto& a, const auto& b) { return a.second > b.second; });
  if (entries.empty()) return " none";
  std::string text;
  std::size_t rest = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i >= shown) {
      rest += entries[i].second;
      continue;
    }
    text += (i == 0 ? " " : ", ") + entries[i].first + " " + format_bytes(entries[i].second);
  }
  if (rest != 0) text += ", others " + format_bytes(rest);
  return text;
}

}  // namespace

std::string oom_report(const OomFacts& facts) {
  std::vector<std::pair<std::string, std::size_t>> categories;
  for (std::size_t i = 0; i < category_count; ++i) {
    categories.emplace_back(to_string(static_cast<Category>(i)), facts.live_by_category[i]);
  }
  std::string text = "[allocate] out of memory on " + to_string(facts.device) + ": " + exact(facts.requested) +
                     " for " + std::string(to_string(facts.tag.category));
  if (facts.tag.scope != 0) text += " in " + scope_name(facts.tag.scope);
  text += "\n  rounded to " + exact(facts.rounded);
  text += "\n  budget " + exact(facts.budget) + ", reserved " + format_bytes(facts.reserved) + ", free on the device " +
          format_bytes(facts.device_free);
  text += "\n  live " + format_bytes(facts.live) + ", cached " + format_bytes(facts.cached) + ", pending " +
          format_bytes(facts.pending) + ", largest free run " + format_bytes(facts.largest_free);
  text += "\n  live by category:" + ranking(std::move(categories), category_count);
  text += "\n  live by scope:" + ranking(facts.live_by_scope, scopes_shown);
  text += "\n  tried:";
  for (std::size_t i = 0; i < facts.yields.size(); ++i) {
    const Yield& yield = facts.yields[i];
    text += (i == 0 ? " " : "; ") + yield.rung + " " + format_bytes(yield.bytes);
  }
  const std::size_t enough = facts.reserved + facts.missing_pages;
  if (facts.missing_pages != 0 && enough > facts.budget && facts.missing_pages <= facts.device_free) {
    text += "\n  a budget of " + exact(enough) + " would have held this request";
  }
  return text;
}

}  // namespace poolgrad
