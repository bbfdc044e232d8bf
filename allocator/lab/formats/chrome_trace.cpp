#include "allocator/lab/formats/trace_file.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "allocator/lab/formats/emitters.h"
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
    out_.begin_dict();
    out_.field("displayTimeUnit", "ns");
    out_.key("traceEvents");
    out_.begin_list();
    name_process();
    const auto& events = trace_.events;
    const TraceEvent* step = nullptr;
    sample(events.empty() ? 0 : events.front().time);
    for (std::size_t i = 0; i < events.size(); ++i) {
      totals_.apply(events[i]);
      if (i + 1 == events.size() || events[i + 1].time / 1000 != events[i].time / 1000) sample(events[i].time);
      switch (events[i].kind) {
        case TraceKind::stage: write_stage(events[i]); break;
        case TraceKind::out_of_memory: write_out_of_memory(events[i]); break;
        case TraceKind::step:
          if (step != nullptr) write_step(*step, events[i].time);
          step = &events[i];
          break;
        default: break;
      }
    }
    if (step != nullptr) write_step(*step, events.back().time);
    out_.end_list();
    out_.end_dict();
    return out_.finish();
  }

 private:
  void begin(std::string_view name, std::string_view phase) {
    out_.item();
    out_.begin_dict();
    out_.field(name_, name);
    out_.field(ph_, phase);
    out_.field(pid_, 0u);
    out_.field(tid_, 0u);
  }
  void begin(std::string_view name, std::string_view phase, std::uint64_t nanoseconds) {
    begin(name, phase);
    time(ts_, nanoseconds);
  }
  // Microseconds with three decimals.
  void time(JsonEmitter::Token key, std::uint64_t nanoseconds) {
    out_.key(key);
    out_.decimal(nanoseconds, 3);
  }
  void begin_arguments() {
    out_.key("args");
    out_.begin_dict();
  }
  void end() {
    out_.end_dict();
    out_.end_dict();
  }

  void name_process() {
    begin("process_name", "M");
    begin_arguments();
    out_.field("name", "poolgrad " + to_string(trace_.device));
    end();
  }

  void counter(std::string_view name, std::uint64_t nanoseconds, std::uint64_t value) {
    begin(name, "C", nanoseconds);
    begin_arguments();
    out_.field("bytes", value);
    end();
  }

  // Writes the counters that changed since the last sample.
  void sample(std::uint64_t nanoseconds) {
    const std::uint64_t active = totals_.allocated + totals_.pending;
    const std::uint64_t cached = totals_.reserved > active ? totals_.reserved - active : 0;
    if (!sampled_ || totals_.allocated != last_.allocated || totals_.reserved != last_.reserved ||
        totals_.pending != last_.pending) {
      begin("memory", "C", nanoseconds);
      begin_arguments();
      out_.field("allocated", totals_.allocated);
      out_.field("pending", totals_.pending);
      out_.field("cached", cached);
      end();
    }
    if (!sampled_ || totals_.reserved != last_.reserved) counter("reserved", nanoseconds, totals_.reserved);
    for (std::size_t i = 0; i < category_count; ++i)
      if (totals_.categories[i] != last_.categories[i])
        counter(to_string(static_cast<Category>(i)), nanoseconds, totals_.categories[i]);
    last_ = totals_;
    sampled_ = true;
  }

  void write_stage(const TraceEvent& event) {
    begin(event.stage < reclaim_stage_count ? to_string(static_cast<ReclaimStageId>(event.stage)) : "stage", "i",
          event.time);
    out_.field("s", "p");
    begin_arguments();
    out_.field("bytes", event.size);
    out_.field("nanoseconds", event.address);
    end();
  }

  void write_out_of_memory(const TraceEvent& event) {
    begin("out of memory", "i", event.time);
    out_.field("s", "g");
    begin_arguments();
    out_.field("requested", event.size);
    out_.field("device free", event.address);
    out_.field("scope", trace_.scopes[event.scope]);
    end();
  }

  void write_step(const TraceEvent& step, std::uint64_t until) {
    begin("step " + std::to_string(step.size), "X", step.time);
    time(dur_, until - step.time);
    begin_arguments();
    end();
  }

  const Trace& trace_;
  JsonEmitter out_;
  Totals totals_, last_;
  bool sampled_ = false;
  JsonEmitter::Token name_ = out_.token("name"), ph_ = out_.token("ph"), pid_ = out_.token("pid"),
                     tid_ = out_.token("tid"), ts_ = out_.token("ts"), dur_ = out_.token("dur");
};

}  // namespace

std::string encode_chrome_trace(const WindowedTrace& trace) { return ChromeWriter(trace).write(); }

}  // namespace poolgrad
