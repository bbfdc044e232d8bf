// A report page: its tables as HTML, and its plots as JSON with packed columns of numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "allocator/trace/trace.h"
#include "examples/lab/comparison.h"
#include "examples/lab/history.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

/// Limits on the contents of the page. Drops the smallest items of each kind and says so.
struct PageLimits {
  std::size_t blocks = 40000;
  std::size_t samples = 8192;
  std::size_t marks = 4000;
};

struct PageInput {
  const Trace& trace;
  std::string title;
  std::string source;                      // origin of the trace, shown below the title
  const Comparison* comparison = nullptr;  // of one workload; nullptr: the page has no table of policies
  bool timed = true;                       // timestamps are meaningful; else the page starts with events
};

/// The whole page, without external references; escapes text from the trace.
std::string page_html(const PageInput& input, const PageLimits& limits = {});

struct PageParts {
  Json data;           // of the plots, with the texts around them
  std::string tables;  // HTML
};
PageParts page_parts(const PageInput& input, const PageLimits& limits = {});

/// Base 64 of LEB128 integers of zigzag-coded differences: compact for slowly changing columns.
std::string pack_column(const std::vector<std::uint64_t>& values);

/// JSON that is safe inside <script>: no '<', '>', '&' or "//", and valid UTF-8.
std::string embeddable(const Json& json);

/// Persistent categories are stacked below transient ones.
inline constexpr std::array<Category, category_count> stacking = {
    Category::parameter,  Category::optimizer_state, Category::gradient, Category::input, Category::cache,
    Category::activation, Category::query,           Category::key,      Category::value, Category::output,
    Category::scores,     Category::weights,         Category::mask,     Category::comm,  Category::temp,
    Category::workspace,  Category::unknown};

struct PageTables {
  std::string subtitle;
  Json tiles = Json::array();  // [name, value]
  std::string html;            // policies, holders of memory at the fullest moment, statistics
};

PageTables page_tables(const PageInput& input, const History& history, const std::vector<Sample>& samples);

/// Objects {bytes, share, blocks, category, scope, location} of the live blocks at a moment with `requested` bytes,
/// largest first.
Json holders_of(const Trace& trace, const History& history, Moment moment, std::uint64_t requested);

/// {kind, title, rows} of a reclaim stage or a failure at event `index`.
Json mark_of(const Trace& trace, const TraceEvent& event, std::size_t index);

/// Nanoseconds since the trace began.
std::uint64_t time_of(const Trace& trace, Moment moment);

/// "tensor/creation.cpp:41 poolgrad::zeros"; "" for none.
std::string to_text(const TraceLocation& location);

}  // namespace poolgrad::examples
