// The page of a plan: its tables and pictures.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "allocator/caching_allocator.h"
#include "examples/lab/page.h"
#include "examples/plan/plan.h"
#include "examples/support/html.h"

namespace poolgrad::examples {

namespace {

std::string holder_table(const Plan& plan) {
  std::string rows;
  for (const Json& holder : plan.picture.holders)
    rows += html_row({escaped(holder["scope"].get<std::string>()), escaped(holder["category"].get<std::string>()),
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
    rows += html_row(cells);
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
    rows += html_row(cells);
  };
  add(format_bytes(plan.memory), [](const PlanRow& row) -> const Longest& { return row.longest; });
  for (std::size_t d = 0; d < plan.devices.size(); ++d)
    add(plan.devices[d].name, [&](const PlanRow& row) -> const Longest& { return row.devices[d]; });
  return html_table(head, rows);
}

}  // namespace

std::string category_table(const StepPicture& picture, const std::array<std::uint64_t, category_count>& peaks) {
  std::string rows;
  for (const Category category : stacking) {
    const auto index = static_cast<std::size_t>(category);
    if (peaks[index] > 0)
      rows += html_row({fmt::format("<span class=\"swatch {0}\"></span>{0}", to_string(category)),
                        format_bytes(picture.fullest.requested[index]), format_bytes(peaks[index]),
                        format_integer(peaks[index])});
  }
  return html_table({"category", "at the fullest moment", "own peak", "bytes"}, rows);
}

std::string plan_html(const Plan& plan) {
  const PlanRow& first = plan.rows.front();
  std::string html = fmt::format(
      "<h1>Plan of a training run</h1>\n<p>{}: {} parameters. {} of memory {}. Bytes are counted by running the steps "
      "without arithmetic.</p>\n",
      escaped(describe_model(first.options)), nn::format_count(static_cast<double>(first.run.parameters)),
      format_bytes(plan.memory), whose_memory(plan));
  html += "<h2>Memory</h2>\n" + row_table(plan);
  if (!plan.devices.empty())
    html +=
        "<h2>Longest contexts</h2>\n<p>The longest contexts that train, to a thousandth, found by simulating two "
        "steps.</p>\n" +
        device_table(plan);
  if (plan.rows.size() > 1)
    html +=
        "<h2>Memory over one step of each run</h2>\n<p>Requested bytes by category, at each request. The width of a "
        "picture is the length of its step; peaks are of live bytes.</p>\n<div class=\"wide\">" +
        rows_svg(plan, false) + "</div>\n";
  html += fmt::format(
      "<h2>Memory over one step</h2>\n<p>{}Requested bytes by category, at each of {} requests; the line above them "
      "shows reserved bytes{}.</p>\n",
      first.name().empty() ? "" : escaped(first.name()) + ". ", format_integer(plan.picture.events),
      plan.memory ? ", the dashed one the limit where it is near" : "");
  html += step_svg(plan.picture, plan.memory) + category_table(plan.picture, first.run.peak_by_category);
  html += "<h2>Holders of memory at the fullest moment</h2>\n" + holder_table(plan);
  return html_page("poolgrad: plan", "", html);
}

}  // namespace poolgrad::examples
