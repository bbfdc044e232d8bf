// The page of a plan: tables, and a picture of memory over one step.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "allocator/caching_allocator.h"
#include "examples/lab/page.h"
#include "examples/plan/plan.h"
#include "kernels/instruction_sets.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

// Colours as in lab/page/colour.js.
constexpr std::string_view plan_style = R"(
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --text: #222; --page: #fdfdfc; --limit: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #161618; --limit: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
       max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { max-width: 60rem; margin: .3rem 0 .8rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .left { text-align: left; } tr:hover td { background: var(--soft); }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
.grid { stroke: var(--line); } .limit { stroke: var(--limit); stroke-dasharray: 6 4; } .reserved { stroke: var(--text);
       fill: none; } .swatch { display: inline-block; width: .8em; height: .8em; margin-right: .5em; border-radius: 2px; }
.parameter { fill: #3f74bd; background: #3f74bd; } .gradient { fill: #e0862a; background: #e0862a; }
.optimizer_state { fill: #8b62b8; background: #8b62b8; } .activation { fill: #419c62; background: #419c62; }
.input { fill: #bda22b; background: #bda22b; } .workspace { fill: #71808f; background: #71808f; }
.unknown { fill: #9299a3; background: #9299a3; } .query { fill: #22a39c; background: #22a39c; }
.key { fill: #167d90; background: #167d90; } .value { fill: #63bf90; background: #63bf90; }
.output { fill: #7c9630; background: #7c9630; } .scores { fill: #cf4357; background: #cf4357; }
.weights { fill: #e5799a; background: #e5799a; } .temp { fill: #a6744b; background: #a6744b; }
.comm { fill: #bf5bb1; background: #bf5bb1; } .mask { fill: #66712f; background: #66712f; }
.cache { fill: #4bb0e6; background: #4bb0e6; }
)";

/// The requested bytes of a step, stacked by category, below what is reserved and the limit.
class StepPlot {
 public:
  explicit StepPlot(const Plan& plan) : plan_(plan), picture_(plan.picture) {
    std::uint64_t most = 1;
    for (const Sample& sample : picture_.samples) most = std::max({most, sample.reserved, sample.requested_in_all()});
    shows_limit_ = plan.memory < most * 3 / 2;  // a limit far above would press the step to the ground
    most_ = static_cast<double>(shows_limit_ ? std::max<std::uint64_t>(most, plan.memory) : most) * 1.05;
  }

  std::string svg() const {
    std::string text = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", width, height + 24);
    for (int i = 0; i <= 4; ++i) {
      const double bytes = most_ * i / 4;
      text += fmt::format(
          "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
          "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
          left, width, y(bytes), left - 6, y(bytes) + 4, format_bytes(static_cast<std::size_t>(bytes)));
    }
    std::vector<std::uint64_t> below(picture_.samples.size());
    for (const Category category : stacking) text += area(category, below);
    text += line("reserved", "reserved", [](const Sample& sample) { return sample.reserved; });
    if (shows_limit_)
      text += fmt::format(
          "<line class=\"limit\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"><title>{3}</title></line>\n", left,
          width, y(static_cast<double>(plan_.memory)), format_bytes(plan_.memory));
    text += mark("forward", 0);
    if (picture_.backward) text += mark("backward", picture_.backward);
    if (picture_.update) text += mark("update", picture_.update);
    return text + "</svg>\n";
  }

 private:
  static constexpr double width = 1100, height = 340, left = 84;

  double x(Moment moment) const {
    return left + (width - left) * moment / static_cast<double>(std::max<std::size_t>(1, picture_.events + 1));
  }
  double y(double bytes) const { return height * (1 - bytes / most_); }

  /// `below` rises by the category.
  std::string area(Category category, std::vector<std::uint64_t>& below) const {
    const auto index = static_cast<std::size_t>(category);
    std::string upper, lower;
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < below.size(); ++i) {
      const Sample& sample = picture_.samples[i];
      lower = fmt::format("{:.1f},{:.1f} ", x(sample.moment), y(static_cast<double>(below[i]))) + lower;
      below[i] += sample.requested[index];
      most = std::max(most, sample.requested[index]);
      upper += fmt::format("{:.1f},{:.1f} ", x(sample.moment), y(static_cast<double>(below[i])));
    }
    if (most == 0) return "";
    return fmt::format("<polygon class=\"{0}\" points=\"{1}{2}\"><title>{0}: at most {3}</title></polygon>\n",
                       to_string(category), upper, lower, format_bytes(most));
  }

  template <class F>
  std::string line(const char* style, const char* name, const F& value) const {
    std::string points;
    for (const Sample& sample : picture_.samples)
      points += fmt::format("{:.1f},{:.1f} ", x(sample.moment), y(static_cast<double>(value(sample))));
    return fmt::format("<polyline class=\"{}\" points=\"{}\"><title>{}</title></polyline>\n", style, points, name);
  }

  std::string mark(const char* name, Moment moment) const {
    return fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1}\"/>"
        "<text x=\"{2:.1f}\" y=\"{3}\">{4}</text>\n",
        x(moment), height, x(moment) + 4, height + 16, name);
  }

  const Plan& plan_;
  const StepPicture& picture_;
  bool shows_limit_ = false;
  double most_ = 1;
};

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
  std::string rows;
  for (const PlanRow& row : plan.rows)
    rows += table_row({escaped(row.name.empty() ? "as told" : row.name), format_bytes(row.run.peak_live),
                       format_bytes(row.run.peak_reserved), format_integer(row.run.peak_reserved),
                       row.fits ? "yes" : "no", fmt::format("{:.2f}x", row.seconds / plan.rows.front().seconds)});
  return html_table(
      {"run", "peak live", "peak reserved", "bytes", "fits in " + format_bytes(plan.memory), "time of a step"}, rows);
}

std::string device_table(const Plan& plan) {
  std::vector<std::string> head{"device"};
  for (const PlanRow& row : plan.rows) head.push_back(escaped(row.name.empty() ? "longest context" : row.name));
  std::string rows;
  const auto tokens = [&](const Longest& longest) {
    const auto context = static_cast<std::uint64_t>(longest.context);
    return (longest.context == plan.most ? "at least " : "") + format_integer(context) +
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
      "<meta name=\"viewport\" content=\"width=device-width\"><style>{}</style></head><body>\n"
      "<h1>Plan of a training run</h1>\n<p>{}: {} parameters. {} of memory like this machine's CPU ({} threads, {}). "
      "Every byte is counted by going through the steps without arithmetic.</p>\n",
      plan_style, escaped(describe_model(first.options)), nn::format_count(static_cast<double>(first.run.parameters)),
      format_bytes(plan.memory), kernels::num_threads(), kernels::instruction_set());
  html += "<h2>What it needs</h2>\n" + row_table(plan);
  if (plan.longest)
    html += "<h2>Longest contexts</h2>\n<p>What trains, to a thousandth; two steps are gone through.</p>\n" +
            device_table(plan);
  html += fmt::format(
      "<h2>Memory over one step</h2>\n<p>{}Bytes that tensors ask for, by category, at each of {} "
      "requests; the line above them is what is reserved{}.</p>\n",
      first.name.empty() ? "" : escaped(first.name) + ". ", format_integer(plan.picture.events),
      plan.memory ? ", the dashed one the limit where it is near" : "");
  html += StepPlot(plan).svg() + category_table(plan);
  html += "<h2>Who holds memory at the fullest moment</h2>\n" + holder_table(plan);
  return html + "</body></html>\n";
}

}  // namespace poolgrad::examples
