// The page of a plan: its tables and pictures.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "allocator/caching_allocator.h"
#include "examples/lab/page.h"
#include "examples/plan/plan.h"

namespace poolgrad::examples {

namespace {

constexpr std::string_view plan_style = R"(
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --text: #222; --page: #fdfdfc; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #161618; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
       max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { max-width: 60rem; margin: .3rem 0 .8rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .left { text-align: left; } tr:hover td { background: var(--soft); }
svg { width: 100%; height: auto; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .5em; border-radius: 2px; }
)";

std::string table_row(const std::vector<std::string>& cells, const char* cell = "td") {
  std::string html = "<tr>";
  for (const std::string& text : cells) html += fmt::format("<{0}>{1}</{0}>", cell, text);
  return html + "</tr>\n";
}

std::string html_table(const std::vector<std::string>& head, const std::string& rows) {
  return "<div class=\"wide\"><table><thead>" + table_row(head, "th") + "</thead><tbody>\n" + rows +
         "</tbody></table></div>\n";
}

std::string category_table(const Plan& plan) {
  std::string rows;
  for (const Category category : stacking) {
    const auto index = static_cast<std::size_t>(category);
    if (const std::uint64_t peak = plan.rows.front().run.peak_by_category[index])
      rows +=
          table_row({fmt::format("<span class=\"swatch {0}\"></span>{0}", to_string(category)),
                     format_bytes(plan.picture.fullest.requested[index]), format_bytes(peak), format_integer(peak)});
  }
  return html_table({"category", "at the fullest moment", "own peak", "bytes"}, rows);
}

std::string holder_table(const Plan& plan) {
  std::string rows;
  for (const Json& holder : plan.picture.holders)
    rows += table_row({escaped(holder["scope"].get<std::string>()), escaped(holder["category"].get<std::string>()),
                       format_bytes(holder["bytes"].get<std::size_t>()), format_percent(holder["share"].get<double>()),
                       format_integer(holder["blocks"].get<std::uint64_t>())});
  return html_table({"scope", "category", "bytes", "share", "blocks"}, rows);
}

std::string row_table(const Plan& plan) {
  std::vector<std::string> head{
      "run", "peak live", "peak reserved", "bytes", "fits in " + format_bytes(plan.memory), "time of a step"};
  if (plan.measure > 0) head.insert(head.end(), {"ms a step", "peaks as measured"});
  if (plan.longest) head.push_back("longest context in it");
  std::string rows;
  for (const PlanRow& row : plan.rows) {
    std::vector<std::string> cells{escaped(row.name().empty() ? "as told" : row.name()),
                                   format_bytes(row.run.peak_live),
                                   format_bytes(row.run.peak_reserved),
                                   format_integer(row.run.peak_reserved),
                                   row.fits ? "yes" : "no",
                                   time_text(plan, row)};
    if (plan.measure > 0) {
      cells.push_back(milliseconds_text(row));
      cells.push_back(row.measured->failure.empty() ? agreement_text(row) : escaped(row.measured->failure));
    }
    if (plan.longest) cells.push_back(tokens_text(plan, row.longest));
    rows += table_row(cells);
  }
  return html_table(head, rows);
}

std::string device_table(const Plan& plan) {
  std::vector<std::string> head{"device"};
  for (const PlanRow& row : plan.rows) head.push_back(escaped(row.name().empty() ? "longest context" : row.name()));
  std::string rows;
  const auto tokens = [&](const Longest& longest) {
    const auto context = static_cast<std::uint64_t>(longest.context);
    return tokens_text(plan, longest) +
           (context ? fmt::format(" ({} B a token)", format_integer(longest.run.peak_reserved / context)) : "");
  };
  const auto add = [&](const std::string& device, const auto& longest_of) {
    std::vector<std::string> cells{escaped(device)};
    for (const PlanRow& row : plan.rows) cells.push_back(tokens(longest_of(row)));
    rows += table_row(cells);
  };
  add(format_bytes(plan.memory), [](const PlanRow& row) -> const Longest& { return row.longest; });
  for (std::size_t d = 0; d < plan.devices.size(); ++d)
    add(plan.devices[d].name, [&](const PlanRow& row) -> const Longest& { return row.devices[d]; });
  return html_table(head, rows);
}

}  // namespace

std::string plan_html(const Plan& plan) {
  const PlanRow& first = plan.rows.front();
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>poolgrad: plan</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"><style>{}{}</style></head><body>\n"
      "<h1>Plan of a training run</h1>\n<p>{}: {} parameters. {} of memory {}. "
      "Every byte is counted by going through the steps without arithmetic.</p>\n",
      picture_style(), plan_style, escaped(describe_model(first.options)),
      nn::format_count(static_cast<double>(first.run.parameters)), format_bytes(plan.memory), whose_memory(plan));
  html += "<h2>What it needs</h2>\n" + row_table(plan);
  if (!plan.devices.empty())
    html += "<h2>Longest contexts</h2>\n<p>What trains, to a thousandth; two steps are gone through.</p>\n" +
            device_table(plan);
  if (plan.rows.size() > 1)
    html +=
        "<h2>Memory over one step of each run</h2>\n<p>Bytes that tensors ask for, by category, at each request. A "
        "picture is as wide as its step is long; peaks are of live bytes.</p>\n<div class=\"wide\">" +
        rows_svg(plan, false) + "</div>\n";
  html += fmt::format(
      "<h2>Memory over one step</h2>\n<p>{}Bytes that tensors ask for, by category, at each of {} "
      "requests; the line above them is what is reserved{}.</p>\n",
      first.name().empty() ? "" : escaped(first.name()) + ". ", format_integer(plan.picture.events),
      plan.memory ? ", the dashed one the limit where it is near" : "");
  html += step_svg(plan) + category_table(plan);
  html += "<h2>Who holds memory at the fullest moment</h2>\n" + holder_table(plan);
  return html + "</body></html>\n";
}

}  // namespace poolgrad::examples
