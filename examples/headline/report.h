// What the headline program says: a table for people, JSON for programs, a page for both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "examples/headline/row.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

struct Measured {
  const Row* row;
  Outcome outcome;
};

struct MeasuredGroup {
  const Group* group;
  std::vector<Measured> rows;
};

/// The cells of a row, in the order of headline_columns(): what the table and the page show.
std::vector<std::string> headline_cells(const Measured& measured);
const std::vector<std::string>& headline_columns();

/// Title, what is behind it, table, remarks.
std::string group_text(const MeasuredGroup& group);
Json headline_json(const std::vector<MeasuredGroup>& groups, const Bench& bench, const std::string& machine);
/// One self-contained file.
std::string headline_html(const std::vector<MeasuredGroup>& groups, const Bench& bench, const std::string& machine);

}  // namespace poolgrad::examples
