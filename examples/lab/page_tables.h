// The words and tables of a report's page, and marks on its plots.
#pragma once

#include <string>
#include <vector>

#include "examples/lab/history.h"
#include "examples/lab/page.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

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
