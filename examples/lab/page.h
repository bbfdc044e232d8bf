// What the page of a report shows, as JSON with packed columns of numbers.
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

/// How much of a trace the page holds. What is left out is the least of its kind, and the page says so.
struct PageLimits {
  std::size_t blocks = 40000;
  std::size_t samples = 8192;
  std::size_t marks = 4000;
};

struct PageInput {
  const Trace& trace;
  std::string title;
  std::string source;                      // where the trace is from, shown below the title
  const Comparison* comparison = nullptr;  // of one workload; nullptr: the page has no table of policies
  bool timed = true;                       // the times mean something; else the page begins with events
};

Json page_data(const PageInput& input, const PageLimits& limits = {});

/// The whole page. It refers to nothing outside itself, and text from the trace stays text.
std::string page_html(const PageInput& input, const PageLimits& limits = {});

/// Base 64 of variable-length integers (LEB128) of the zigzag of differences: small for columns that change slowly.
std::string pack_column(const std::vector<std::uint64_t>& values);

/// JSON that may stand inside <script>: no '<', '>' or '&', no "//", and no invalid UTF-8.
std::string embeddable(const Json& json);

/// What stays is stacked below what comes and goes.
inline constexpr std::array<Category, category_count> stacking = {
    Category::parameter,  Category::optimizer_state, Category::gradient, Category::input, Category::cache,
    Category::activation, Category::query,           Category::key,      Category::value, Category::output,
    Category::scores,     Category::weights,         Category::mask,     Category::comm,  Category::temp,
    Category::workspace,  Category::unknown};

/// The words and tables of the page.
struct PageTables {
  std::string subtitle;
  Json tiles = Json::array();     // [name, value]
  Json policies = Json::array();  // objects, in the order of the comparison
  std::string policies_note, tight;
  Json peak = Json::array();        // who holds memory at the fullest moment, most first
  Json statistics = Json::array();  // {name, rows: [[name, value]]}
};

PageTables page_tables(const PageInput& input, const History& history, const std::vector<Sample>& samples);

/// {kind, title, rows} of a rung or a failure, the event-th event.
Json mark_of(const Trace& trace, const TraceEvent& event, std::size_t index);

/// Nanoseconds since the trace began.
std::uint64_t time_of(const Trace& trace, Moment moment);

/// "tensor/creation.cpp:41 poolgrad::zeros"; "" for none.
std::string to_text(const TraceLocation& location);

}  // namespace poolgrad::examples
