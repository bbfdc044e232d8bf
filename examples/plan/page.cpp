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

std::string lines_html(const std::string& text) {
  std::string html;
  for (const std::string_view line : split(text, '\n'))
    if (!line.empty()) html += "<p>" + escaped(std::string(line)) + "</p>\n";
  return html;
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
  html += "<h2>Memory</h2>\n" + html_table(row_table(plan)) + lines_html(measurement_notes(plan));
  if (!plan.devices.empty())
    html +=
        "<h2>Longest contexts</h2>\n<p>The longest contexts that train, to a thousandth, found by simulating two "
        "steps.</p>\n" +
        lines_html(longest_text(plan)) + html_table(device_table(plan));
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
  html += "<h2>Holders of memory at the fullest moment</h2>\n" +
          html_table(holder_table(plan, plan.picture.holders.size()));
  return html_page("poolgrad: plan", "", html);
}

}  // namespace poolgrad::examples
