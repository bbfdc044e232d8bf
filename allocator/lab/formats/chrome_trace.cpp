#include "allocator/lab/formats/trace_file.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "allocator/lab/formats/value_tree.h"
#include "allocator/reclaim_stage.h"

namespace poolgrad {

namespace {

// The pool's byte counts as events go by.
struct Totals {
  std::uint64_t allocated = 0;  // live, as requested
  std::uint64_t pending = 0;
  std::uint64_t reserved = 0;
  std::array<std::uint64_t, category_count> categories{};

  void apply(const TraceEvent& event) {
    const auto category = static_cast<std::size_t>(event.category);
    switch (event.kind) {
      case TraceKind::allocate:
        allocated += event.size;
        categories[category] += event.size;
        break;
      case TraceKind::free_requested:
        allocated -= event.size;
        categories[category] -= event.size;
        pending += event.size;
        break;
      case TraceKind::free_completed: pending -= event.size; break;
      case TraceKind::segment_map: reserved += event.size; break;
      case TraceKind::segment_unmap: reserved -= event.size; break;
      default: break;
    }
  }
};

class ChromeWriter {
 public:
  explicit ChromeWriter(const WindowedTrace& window) : trace_(window.trace) {
    totals_.reserved = window.reserved_before;
    for (const BlockSnapshot& block : window.before) {
      if (block.state == BlockState::pending) {
        totals_.pending += block.requested;
        continue;
      }
      totals_.allocated += block.requested;
      totals_.categories[static_cast<std::size_t>(block.tag.category)] += block.requested;
    }
  }

  std::string write() {
    const auto& events = trace_.events;
    const TraceEvent* step = nullptr;
    add("process_name", 'M', 0, {{"name", json_text("poolgrad " + to_string(trace_.device))}});
    sample(events.empty() ? 0 : events.front().time);
    for (std::size_t i = 0; i < events.size(); ++i) {
      const TraceEvent& event = events[i];
      totals_.apply(event);
      if (i + 1 == events.size() || events[i + 1].time / 1000 != event.time / 1000) sample(event.time);
      if (event.kind == TraceKind::stage) {
        add(event.stage < reclaim_stage_count ? to_string(static_cast<ReclaimStageId>(event.stage)) : "stage", 'i',
            event.time, {number("bytes", event.size), number("nanoseconds", event.address)}, R"("s":"p",)");
      } else if (event.kind == TraceKind::out_of_memory) {
        add("out of memory", 'i', event.time,
            {number("requested", event.size),
             number("device free", event.address),
             {"scope", json_text(trace_.scopes[event.scope])}},
            R"("s":"g",)");
      } else if (event.kind == TraceKind::step) {
        if (step != nullptr) add_step(*step, event.time);
        step = &event;
      }
    }
    if (step != nullptr) add_step(*step, events.back().time);
    return out_ + "]}";
  }

 private:
  using Argument = std::pair<std::string_view, std::string>;

  static Argument number(std::string_view name, std::uint64_t value) { return {name, std::to_string(value)}; }
  /// In microseconds with three decimals.
  static std::string time(std::uint64_t nanoseconds) {
    return std::to_string(nanoseconds / 1000) + "." + std::to_string(1000 + nanoseconds % 1000).substr(1);
  }
  /// Adds an event; `fields` are further ones, each with a comma.
  void add(std::string_view name, char phase, std::uint64_t nanoseconds, std::initializer_list<Argument> arguments,
           const std::string& fields = "") {
    if (out_.back() != '[') out_ += ',';
    out_ += "{\"name\":" + json_text(name) + ",\"ph\":\"" + phase + "\",\"pid\":0,\"tid\":0,\"ts\":";
    out_ += time(nanoseconds) + ',' + fields + "\"args\":{";
    for (const auto& [argument, value] : arguments) {
      if (out_.back() != '{') out_ += ',';
      out_ += json_text(argument) + ':' + value;
    }
    out_ += "}}";
  }
  void add_step(const TraceEvent& step, std::uint64_t until) {
    add("step " + std::to_string(step.size), 'X', step.time, {}, "\"dur\":" + time(until - step.time) + ',');
  }

  // Writes the counters that changed since the last sample.
  void sample(std::uint64_t nanoseconds) {
    const std::uint64_t active = totals_.allocated + totals_.pending;
    if (!sampled_ || totals_.allocated != last_.allocated || totals_.reserved != last_.reserved ||
        totals_.pending != last_.pending)
      add("memory", 'C', nanoseconds,
          {number("allocated", totals_.allocated), number("pending", totals_.pending),
           number("cached", totals_.reserved > active ? totals_.reserved - active : 0)});
    if (!sampled_ || totals_.reserved != last_.reserved)
      add("reserved", 'C', nanoseconds, {number("bytes", totals_.reserved)});
    for (std::size_t i = 0; i < category_count; ++i)
      if (totals_.categories[i] != last_.categories[i])
        add(to_string(static_cast<Category>(i)), 'C', nanoseconds, {number("bytes", totals_.categories[i])});
    last_ = totals_;
    sampled_ = true;
  }

  const Trace& trace_;
  std::string out_ = R"({"displayTimeUnit":"ns","traceEvents":[)";
  Totals totals_, last_;
  bool sampled_ = false;
};

}  // namespace

std::string encode_chrome_trace(const WindowedTrace& trace) { return ChromeWriter(trace).write(); }

}  // namespace poolgrad
