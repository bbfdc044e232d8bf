#include "allocator/report/oom_report.h"

#include <algorithm>

#include "allocator/caching_allocator.h"

namespace poolgrad {

namespace {

constexpr std::size_t scopes_shown = 5;
constexpr std::size_t pinners_shown = 5;

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

std::string in_scope(Tag tag) { return tag.scope == 0 ? std::string() : " in " + scope_name(tag.scope); }

std::string said(Category category) {
  return category == Category::unknown ? "untagged" : std::string(to_string(category));
}

// " for scores in block2.attention"; "" for untagged memory.
std::string for_what(Tag tag) {
  return (tag.category == Category::unknown ? "" : " for " + said(tag.category)) + in_scope(tag);
}

// "; pinned by 1000 B of gradient in loss (2.00 MiB), ..."
std::string pinned_by(std::vector<Pinner> pinners) {
  std::ranges::stable_sort(pinners, [](const Pinner& a, const Pinner& b) { return a.stranded > b.stranded; });
  std::string text;
  for (std::size_t i = 0; i < std::min(pinners.size(), pinners_shown); ++i) {
    const Pinner& pinner = pinners[i];
    text += (i == 0 ? "\n  pinned by: " : ", ") + format_bytes(pinner.requested) + " of " + said(pinner.tag.category) +
            in_scope(pinner.tag) + " (" + format_bytes(pinner.stranded) + ")";
  }
  if (pinners.size() > pinners_shown) text += ", " + std::to_string(pinners.size() - pinners_shown) + " others";
  return text;
}

// "commit 4.00 MiB in 12 us"; without the time for a stage that did not run.
std::string outcome(const ReclaimResult& yield) {
  std::string text = yield.stage + " " + format_bytes(yield.bytes);
  if (yield.runs != 0) text += " in " + std::to_string((yield.nanoseconds + 999) / 1000) + " us";
  return text;
}

}  // namespace

std::string oom_report(const OomFacts& facts) {
  std::vector<std::pair<std::string, std::size_t>> categories;
  for (std::size_t i = 0; i < category_count; ++i) {
    categories.emplace_back(said(static_cast<Category>(i)), facts.live_by_category[i]);
  }
  std::vector<std::pair<std::string, std::size_t>> scopes;
  for (const auto& [scope, bytes] : facts.live_by_scope) {
    if (scope != 0) scopes.emplace_back(scope_name(scope), bytes);
  }
  std::string text =
      "[allocate] out of memory on " + to_string(facts.device) + ": " + exact(facts.requested) + for_what(facts.tag);
  if (!facts.requester.empty()) text += "\n  asked for by " + facts.requester;
  if (facts.rounded >= facts.requested)
    text += "\n  rounded to " + exact(facts.rounded);  // otherwise too large to be rounded
  text += "\n  budget " + exact(facts.budget) + ", reserved " + format_bytes(facts.reserved) + ", free on the device " +
          format_bytes(facts.device_free);
  text += "\n  live " + format_bytes(facts.live) + ", rounding waste " + format_bytes(facts.rounding) +
          ", pending free " + format_bytes(facts.pending) + ", releasable cache " + format_bytes(facts.releasable) +
          ", stranded free " + format_bytes(facts.stranded) + ", largest free run " + format_bytes(facts.largest_free);
  text += pinned_by(facts.pinners);
  text += "\n  live by category:" + ranking(std::move(categories), category_count);
  text += "\n  live by scope:" + ranking(std::move(scopes), scopes_shown);
  text += "\n  tried:";
  for (std::size_t i = 0; i < facts.yields.size(); ++i) text += (i == 0 ? " " : "; ") + outcome(facts.yields[i]);
  for (const std::string& remark : facts.remarks) text += "\n  " + remark;
  for (const std::string& advice : facts.advice) text += "\n  " + advice;
  const std::size_t enough = facts.reserved + facts.missing_pages;
  if (facts.missing_pages != 0 && enough > facts.budget && facts.missing_pages <= facts.device_free) {
    text += "\n  a budget of " + exact(enough) + " would have held this request";
  }
  return text;
}

}  // namespace poolgrad
