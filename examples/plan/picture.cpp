// Pictures of memory over one step: a large one of the first row, small ones of all rows on common axes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "allocator/caching_allocator.h"
#include "examples/lab/page.h"
#include "examples/plan/plan.h"
#include "examples/support/svg.h"

namespace poolgrad::examples {

namespace {

/// The drawing area of a step.
struct Frame {
  double left = 0, top = 0, width = 0, height = 0;
  double bytes = 1;  // at the top

  double y(double value) const { return top + height * (1 - value / bytes); }
};

std::uint64_t most_bytes(const StepPicture& picture) {
  std::uint64_t most = 1;
  for (const Sample& sample : picture.samples) most = std::max({most, sample.reserved, sample.requested_in_all()});
  return most;
}

/// The requested bytes of a step, stacked by category, under the reserved bytes.
class StepDrawing {
 public:
  StepDrawing(const StepPicture& picture, const Frame& frame) : picture_(picture), frame_(frame) {}

  std::string areas() const {
    std::string text;
    std::vector<std::uint64_t> below(picture_.samples.size());
    for (const Category category : stacking) text += area(category, below);
    return text;
  }

  std::string reserved() const {
    std::string points;
    std::uint64_t before = 0;
    for (const Sample& sample : picture_.samples) {
      if (holds(sample)) points += point(sample, before);
      before = sample.reserved;
      points += point(sample, before);
    }
    return fmt::format("<polyline class=\"reserved\" points=\"{}\"><title>reserved</title></polyline>\n", points);
  }

  /// Marks the start of a part of the step, with its name if there is room.
  std::string mark(const std::string& name, Moment moment, Moment end) const {
    const double bottom = frame_.top + frame_.height, letters = 7.8 * static_cast<double>(name.size());
    std::string text = svg_line("mark", x(moment), frame_.top, x(moment), bottom + 4, name);
    if (x(end) - x(moment) > letters) text += svg_text("", x(moment) + 4, bottom + 16, name);
    return text;
  }

  std::string marks() const {
    const auto end = static_cast<Moment>(picture_.events + 1);
    const Moment update = picture_.update ? picture_.update : end;
    const Moment backward = picture_.backward ? picture_.backward : update;
    std::string text = mark("forward", 0, backward);
    if (backward < update) text += mark("backward", backward, update);
    if (update < end) text += mark("update", update, end);
    return text;
  }

 private:
  double x(Moment moment) const {
    const std::vector<std::uint64_t>& times = picture_.times;
    if (times.empty()) return frame_.left + frame_.width * moment / static_cast<double>(picture_.events + 1);
    const std::size_t event =
        std::clamp<std::size_t>(moment, 1, times.size()) - 1;  // else the state before the first event
    const auto all = static_cast<double>(std::max<std::uint64_t>(times.back() - times.front(), 1));
    return frame_.left + frame_.width * static_cast<double>(times[event] - times.front()) / all;
  }

  /// Whether bytes stay constant until the next request, as over time.
  bool holds(const Sample& sample) const { return !picture_.times.empty() && &sample != picture_.samples.data(); }
  std::string point(const Sample& sample, std::uint64_t bytes) const {
    return fmt::format("{:.1f},{:.1f} ", x(sample.moment), frame_.y(static_cast<double>(bytes)));
  }

  /// Raises `below` by the category. Empty for areas too thin to be visible.
  std::string area(Category category, std::vector<std::uint64_t>& below) const {
    const auto index = static_cast<std::size_t>(category);
    std::string upper, lower;
    std::uint64_t most = 0, lower_before = 0, upper_before = 0;
    for (std::size_t i = 0; i < below.size(); ++i) {
      const Sample& sample = picture_.samples[i];
      if (holds(sample)) {
        lower = point(sample, lower_before) + lower;
        upper += point(sample, upper_before);
      }
      lower_before = below[i];
      lower = point(sample, lower_before) + lower;
      most = std::max(most, sample.requested[index]);
      upper_before = below[i] += sample.requested[index];
      upper += point(sample, upper_before);
    }
    if (static_cast<double>(most) * frame_.height / frame_.bytes < 0.3) return "";
    return fmt::format("<polygon class=\"{0}\" points=\"{1}{2}\"><title>{0}: at most {3}</title></polygon>\n",
                       to_string(category), upper, lower, format_bytes(most));
  }

  const StepPicture& picture_;
  const Frame& frame_;
};

/// Horizontal lines at powers of two of bytes, at least three; with labels to the left if `named`.
std::string grid(const Frame& frame, bool named) {
  const double step = std::exp2(std::floor(std::log2(frame.bytes / 3)));
  std::string text;
  for (double bytes = 0; bytes <= frame.bytes; bytes += step) {
    text += svg_line("grid", frame.left, frame.y(bytes), frame.left + frame.width, frame.y(bytes));
    if (named)
      text += svg_text("end", frame.left - 6, frame.y(bytes) + 4, format_bytes(static_cast<std::size_t>(bytes)));
  }
  return text;
}

std::string limit_line(const Frame& frame, std::size_t memory) {
  const double y = frame.y(static_cast<double>(memory));
  return svg_line("limit", frame.left, y, frame.left + frame.width, y, "limit: " + format_bytes(memory));
}

/// A limit far above would flatten the steps.
bool shows_limit(std::size_t memory, std::uint64_t most) { return memory < most / 2 * 3; }

double top_for(std::size_t memory, std::uint64_t most) {
  return 1.05 * static_cast<double>(shows_limit(memory, most) ? std::max<std::uint64_t>(most, memory) : most);
}

/// Small pictures in columns, one line per group.
class RowPictures {
 public:
  explicit RowPictures(const Plan& plan) : plan_(plan) {
    for (const PlanRow& row : plan.rows) most_ = std::max(most_, most_bytes(row.picture));
  }

  std::string svg(bool alone) {
    body_ = "";
    bottom_ = 0;
    legend();
    std::string group;
    int column = 0;
    for (std::size_t i = 0; i < plan_.rows.size(); ++i) {
      const PlanRow& row = plan_.rows[i];
      if (!row.policy.empty() && row.group != group) {
        group = row.group;
        if (column > 0) bottom_ += line_height;
        column = 0;
        body_ += svg_text("group", 0, bottom_ + 20, group);
        bottom_ += 30;
      }
      panel(row, column);
      if (++column < columns) continue;
      column = 0;
      bottom_ += line_height;
    }
    if (column > 0) bottom_ += line_height;
    constexpr const char* label = "Memory over one training step of each run";
    return alone ? svg_file(total_width, bottom_, label, body_) : svg_picture(total_width, bottom_, label, body_);
  }

 private:
  static constexpr int columns = 3;
  static constexpr double left = 78, width = 310, height = 130, gap = 24, line_height = height + 58;
  static constexpr double total_width = left + columns * width + (columns - 1) * gap + 6;

  void swatch(double& x, const std::string& mark, const std::string& name) {
    const double needs = 30 + 7.8 * static_cast<double>(name.size());
    if (x + needs > total_width) {
      x = left;
      bottom_ += 20;
    }
    body_ += fmt::format("<g transform=\"translate({} {})\">{}{}</g>\n", x, bottom_, mark, svg_text("", 18, 10, name));
    x += needs;
  }

  void legend() {
    double x = left;
    bottom_ = 4;
    for (const Category category : stacking) {
      std::uint64_t most = 0;
      for (const PlanRow& row : plan_.rows)
        for (const Sample& sample : row.picture.samples)
          most = std::max(most, sample.requested[static_cast<std::size_t>(category)]);
      if (most * 100 > most_)
        swatch(x, fmt::format("<rect class=\"{}\" width=\"12\" height=\"12\"/>", to_string(category)),
               std::string(to_string(category)));
    }
    swatch(x, svg_line("reserved", 0, 6, 13, 6), "reserved");
    if (shows_limit(plan_.memory, most_))
      swatch(x, svg_line("limit", 0, 6, 13, 6), "limit " + format_bytes(plan_.memory));
    bottom_ += 24;
  }

  /// As wide as its step is long, relative to the longest of the group.
  void panel(const PlanRow& row, int column) {
    double longest = plan_.relative_time(row);
    for (const PlanRow& other : plan_.rows)
      if (other.reference == row.reference) longest = std::max(longest, plan_.relative_time(other));
    const double time = plan_.relative_time(row);
    Frame frame{left + column * (width + gap), bottom_ + 24, width, height, top_for(plan_.memory, most_)};
    const std::string name = row.policy.empty() ? row.group : row.policy;
    std::string figures = format_bytes(row.run.peak_live);
    if (time > 0) figures += fmt::format(", {}", time_text(plan_, row));
    body_ +=
        svg_text("name", frame.left, bottom_ + 16, name) + svg_text("end", frame.left + width, bottom_ + 16, figures);
    body_ += grid(frame, column == 0);
    const Frame step{frame.left, frame.top, time > 0 ? width * time / longest : width, height, frame.bytes};
    const StepDrawing drawing(row.picture, step);
    body_ += drawing.areas() + drawing.reserved();
    if (shows_limit(plan_.memory, most_)) body_ += limit_line(frame, plan_.memory);
    body_ += drawing.marks();
  }

  const Plan& plan_;
  std::uint64_t most_ = 1;
  double bottom_ = 0;
  std::string body_;
};

}  // namespace

std::string step_svg(const StepPicture& picture, std::size_t limit, double width, double height) {
  constexpr double left = 84;
  const std::uint64_t most = most_bytes(picture);
  const Frame frame{left, 8, width - left, height, top_for(limit, most)};
  const StepDrawing drawing(picture, frame);
  std::string text = grid(frame, true) + drawing.areas() + drawing.reserved();
  if (shows_limit(limit, most)) text += limit_line(frame, limit);
  text += drawing.marks();
  if (!picture.times.empty())
    text += svg_text("end", width, height + 40,
                     format_time(static_cast<double>(picture.times.back() - picture.times.front())) + " in all");
  return svg_picture(width, height + 48, "Memory over one training step", text);
}

std::string rows_svg(const Plan& plan, bool alone) { return RowPictures(plan).svg(alone); }

}  // namespace poolgrad::examples
