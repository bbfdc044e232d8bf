#include <fmt/format.h>

#include "examples/headline/report.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

constexpr std::string_view style = R"(
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --text: #222; --page: #fdfdfc; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #161618; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
       max-width: 92rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { max-width: 60rem; margin: .3rem 0 .8rem; } .behind { opacity: .8; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; } tr:hover td { background: var(--soft); }
ul { font-size: .88rem; padding-left: 1.2rem; }
)";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  return result;
}

std::string table_html(const MeasuredGroup& group) {
  std::string html = "<div class=\"wide\"><table><thead><tr>";
  for (const std::string& column : headline_columns())
    html += "<th>" + escaped(column.starts_with('<') ? column.substr(1) : column) + "</th>";
  html += "</tr></thead><tbody>\n";
  std::string remarks;
  for (const Measured& measured : group.rows) {
    html += "<tr>";
    for (const std::string& cell : headline_cells(measured)) html += "<td>" + escaped(cell) + "</td>";
    html += "</tr>\n";
    if (!measured.outcome.remark.empty())
      remarks += "<li><b>" + escaped(measured.row->id) + "</b>: " + escaped(measured.outcome.remark) + "</li>\n";
  }
  html += "</tbody></table></div>\n";
  return html + (remarks.empty() ? "" : "<ul>" + remarks + "</ul>\n");
}

}  // namespace

std::string headline_html(const std::vector<MeasuredGroup>& groups, const Bench& bench, const std::string& machine) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>poolgrad: headline tables</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"><style>{}</style></head><body>\n"
      "<h1>Headline tables</h1>\n<p>{}, {} threads, {}, {}. \"theirs\" is what the report says of a GTX 1080, the "
      "ratio theirs over ours; the line under each "
      "title says what it measured.</p>\n",
      style, escaped(machine), kernels::num_threads(), to_string(bench.device), to_string(bench.dtype));
  for (const MeasuredGroup& group : groups)
    html += "<h2>" + escaped(group.group->title) + "</h2>\n<p class=\"behind\">" + escaped(group.group->behind) +
            "</p>\n" + table_html(group);
  return html + "</body></html>\n";
}

}  // namespace poolgrad::examples
