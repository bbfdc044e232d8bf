#include "allocator/trace/trace_file.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/trace/internal/trace_parts.h"
#include "allocator/trace/internal/value_tree.h"

namespace poolgrad {

namespace {

Category category_of(std::string_view name) {
  if (name == "temporary") return Category::temp;  // the name that PyTorch's profiler has for it
  for (std::size_t i = 0; i < category_count; ++i)
    if (name == to_string(static_cast<Category>(i))) return static_cast<Category>(i);
  return Category::unknown;
}

// The trace of one device as read so far.
struct DeviceTrace {
  Trace trace;
  TraceNames names{trace};
  struct Origin {
    std::uint64_t location = 0;
    std::uint32_t scope = 0;
  };
  std::unordered_map<std::uint64_t, Origin> origins;           // by number of the list of frames
  std::vector<std::pair<std::uint64_t, std::uint64_t>> steps;  // microseconds since 1970, number
  std::uint64_t start_us = 0;
  bool has_start = false;
};

class SnapshotReader {
 public:
  SnapshotReader(ValueTree tree, const std::string& path, std::size_t bytes)
      : tree_(std::move(tree)), in_(tree_, path), text_budget_((std::size_t{1} << 20) + 16 * bytes) {}

  std::vector<Trace> read() {
    const Value root = tree_.root;
    if (root.kind == ValueKind::list) {
      read_segments(root);
      return finish();
    }
    if (root.kind != ValueKind::dict) in_.fail("a snapshot is a dictionary or a list");
    const Value* segments = in_.find(root, "segments");
    const Value* traces = in_.find(root, "device_traces");
    if (segments == nullptr && traces == nullptr)
      in_.fail(in_.find(root, "traceEvents") != nullptr
                   ? "a Chrome trace cannot be read back"
                   : "not a memory snapshot: neither 'segments' nor 'device_traces'");
    if (const Value* settings = in_.find(root, "allocator_settings")) read_settings(*settings);
    if (segments != nullptr) read_segments(*segments);
    if (traces != nullptr) read_traces(*traces);
    if (const Value* annotations = in_.find(root, "external_annotations")) read_annotations(*annotations);
    return finish();
  }

 private:
  DeviceTrace& device(std::uint64_t index) {
    if (index > 255) in_.fail("device " + std::to_string(index) + ", but indices end at 255");
    const auto [entry, added] = devices_.try_emplace(index);
    if (added) entry->second.trace.device = {DeviceType::cuda, static_cast<std::uint8_t>(index)};
    return entry->second;
  }

  // Limits memory: a few bytes of the file can refer to a long text repeatedly.
  std::string copy(std::string_view text) {
    if (text.size() > text_budget_) in_.fail("texts that are repeated too often");
    text_budget_ -= text.size();
    return std::string(text);
  }

  // The location and scope in a list of frames.
  struct Frames {
    std::optional<Value> innermost;  // frame, of a Python file if there is one
    std::string scope;
  };

  // All devices may share one long list, so each is read once.
  const Frames& read_frames(Value list) {
    const auto [entry, added] = frames_.try_emplace(list.bits);
    Frames& frames = entry->second;
    if (!added) return frames;
    bool in_python = false;
    std::vector<std::string_view> scopes;  // innermost first
    for (const Value item : std::as_const(tree_).items(list)) {
      const Value frame = in_.dictionary(item);
      const std::string_view file = in_.text(frame, "filename", "");
      if (file == "scope" && in_.number(frame, "line", 0) == 0) {
        scopes.push_back(in_.text(frame, "name", ""));
      } else if (!frames.innermost || (file.ends_with(".py") && !in_python)) {
        frames.innermost = frame;
        in_python = file.ends_with(".py");
      }
    }
    for (std::size_t i = scopes.size(); i-- > 0;) frames.scope += copy(scopes[i]) + (i > 0 ? "." : "");
    return frames;
  }

  DeviceTrace::Origin origin(DeviceTrace& device, Value dict) {
    const Value* list = in_.frames(dict);
    if (list == nullptr) return {};
    const auto known = device.origins.find(list->bits);
    if (known != device.origins.end()) return known->second;
    const Frames& frames = read_frames(*list);
    DeviceTrace::Origin origin;
    if (frames.innermost) {
      const std::uint64_t line = std::min<std::uint64_t>(in_.number(*frames.innermost, "line", 0), UINT32_MAX);
      origin.location =
          device.names.location(copy(in_.text(*frames.innermost, "filename", "")),
                                copy(in_.text(*frames.innermost, "name", "")), static_cast<std::uint32_t>(line));
    }
    origin.scope = device.names.scope(copy(frames.scope));
    device.origins.emplace(list->bits, origin);
    return origin;
  }

  void read_segments(Value list) {
    in_.for_each(list, "segments",
                 [&](Value segment, std::size_t index) { read_segment(in_.dictionary(segment), index); });
  }

  void read_segment(Value segment, std::size_t index) {
    DeviceTrace& on = device(in_.number(segment, "device", 0));
    const std::uint64_t stream = in_.number(segment, "stream", 0), total = in_.number(segment, "total_size");
    const Value blocks = in_.need(segment, "blocks");
    std::uint64_t address = in_.number(segment, "address", 0), left = total;
    if (total > UINT64_MAX - address) in_.fail("addresses beyond 64 bits");
    std::size_t number = 0;
    for (const Value block : in_.list(blocks, "blocks")) {
      in_.at = {"segments", index, ".blocks", number++};
      const std::uint64_t size = in_.number(in_.dictionary(block), "size");
      if (size == 0 || size > left) in_.fail("a block of " + std::to_string(size) + " bytes");
      BlockSnapshot& entry = on.trace.blocks.emplace_back(read_block(on, block, size));
      entry.address = address;
      entry.stream = stream;
      entry.window = index;
      address += size;
      left -= size;
    }
    in_.at = {"segments", index};
    if (left != 0) in_.fail("its blocks are " + std::to_string(left) + " bytes fewer than total_size");
  }

  BlockSnapshot read_block(DeviceTrace& on, Value block, std::uint64_t size) {
    BlockSnapshot entry;
    entry.size = size;
    const std::string_view state = in_.text(block, "state");
    if (state == "inactive") return entry;
    if (state == "active_allocated") {
      entry.state = BlockState::live;
    } else if (state == "active_pending_free" || state == "active_awaiting_free") {
      entry.state = BlockState::pending;
    } else {
      in_.fail("unknown state " + in_quotes(state));
    }
    // In old snapshots a block has the history of its address, newest first.
    Value source = block;
    const Value* history = in_.find(block, "history");
    if (history != nullptr && history->kind == ValueKind::list && !std::as_const(tree_).items(*history).empty())
      source = in_.dictionary(std::as_const(tree_).items(*history).front());
    entry.requested = in_.number(block, "requested_size", in_.number(source, "real_size", size));
    if (entry.requested > size) in_.fail("requested_size is above size");
    entry.tag.category = category_of(in_.text(block, "category", ""));
    entry.tag.scope = origin(on, in_.find(block, "frames") != nullptr ? block : source).scope;
    return entry;
  }

  void read_traces(Value list) {
    in_.for_each(list, "device_traces", [&](Value entries, std::size_t index) {
      const std::span<const Value> items = in_.list(entries, "device_traces");
      if (!items.empty()) read_entries(device(index), items, index);
    });
  }

  void read_entries(DeviceTrace& on, std::span<const Value> entries, std::size_t index) {
    if (!on.has_start) {
      on.start_us = UINT64_MAX;
      for (std::size_t i = 0; i < entries.size(); ++i) {
        in_.at = {"device_traces", index, "", i};
        on.start_us = std::min(on.start_us, in_.number(in_.dictionary(entries[i]), "time_us", 0));
      }
    }
    on.trace.events.reserve(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      in_.at = {"device_traces", index, "", i};
      read_entry(on, in_.dictionary(entries[i]));
    }
  }

  std::uint64_t nanoseconds(const DeviceTrace& on, std::uint64_t time_us) const {
    const std::uint64_t since = time_us < on.start_us ? 0 : time_us - on.start_us;
    if (since > UINT64_MAX / 1000) in_.fail("a time beyond 64 bits");
    return since * 1000;
  }

  void read_entry(DeviceTrace& on, Value entry) {
    static const std::unordered_map<std::string_view, TraceKind> kinds = {{"alloc", TraceKind::allocate},
                                                                          {"free_requested", TraceKind::free_requested},
                                                                          {"free", TraceKind::free_requested},
                                                                          {"free_completed", TraceKind::free_completed},
                                                                          {"segment_alloc", TraceKind::segment_map},
                                                                          {"segment_map", TraceKind::segment_map},
                                                                          {"segment_free", TraceKind::segment_unmap},
                                                                          {"segment_unmap", TraceKind::segment_unmap},
                                                                          {"oom", TraceKind::out_of_memory}};
    const std::string_view action = in_.text(entry, "action");
    const auto kind = kinds.find(action);
    if (kind == kinds.end()) return;
    const bool failed = kind->second == TraceKind::out_of_memory;
    TraceEvent event{.time = nanoseconds(on, in_.number(entry, "time_us", 0)),
                     .address = in_.number(entry, failed ? "device_free" : "addr"),
                     .size = in_.number(entry, "size"),
                     .kind = kind->second};
    if (!failed && event.size > UINT64_MAX - event.address) in_.fail("addresses beyond 64 bits");
    event.stream = on.names.stream(in_.number(entry, "stream", 0));
    event.category = category_of(in_.text(entry, "category", ""));
    const DeviceTrace::Origin from = origin(on, entry);
    event.location = from.location;
    event.scope = from.scope;
    on.trace.events.push_back(event);
    if (action == "free") {
      event.kind = TraceKind::free_completed;
      on.trace.events.push_back(event);
    }
  }

  void read_annotations(Value list) {
    in_.for_each(list, "external_annotations", [&](Value item, std::size_t) {
      const Value annotation = in_.dictionary(item);
      const std::string_view name = in_.text(annotation, "name", "");
      if (!name.starts_with("step ") || in_.text(annotation, "stage", "") != "START") return;
      if (const auto number = number_in<std::uint64_t>(name.substr(5)))
        device(in_.number(annotation, "device", 0)).steps.emplace_back(in_.number(annotation, "time_us", 0), *number);
    });
  }

  void read_settings(Value settings) {
    in_.at = {"allocator_settings"};
    const Value* own = in_.find(settings, "poolgrad");
    const Value* overflowed = in_.find(settings, "trace_alloc_overflowed");
    overflowed_ = overflowed != nullptr && overflowed->kind == ValueKind::boolean && overflowed->bits != 0;
    if (own == nullptr) return;
    for (const Value item : in_.list(*own, "poolgrad")) {
      const Value dict = in_.dictionary(item);
      Device named;
      try {
        named = Device::parse(in_.text(dict, "device"));
      } catch (const ValueError& error) {
        in_.fail(error.what());
      }
      DeviceTrace& on = device(named.index);
      on.trace.device = named;
      on.trace.settings = copy(in_.text(dict, "allocator", ""));
      on.trace.lost = in_.number(dict, "lost", 0);
      on.start_us = in_.number(dict, "start_us", 0);
      on.has_start = true;
    }
  }

  // Inserts steps before other events of the same microsecond.
  void insert_steps(DeviceTrace& on) {
    if (on.steps.empty()) return;
    std::ranges::stable_sort(on.steps);
    std::vector<TraceEvent> events;
    events.reserve(on.trace.events.size() + on.steps.size());
    auto step = on.steps.begin();
    const auto insert_until = [&](std::uint64_t time) {
      for (; step != on.steps.end() && nanoseconds(on, step->first) <= time; ++step)
        events.push_back({.time = nanoseconds(on, step->first), .size = step->second, .kind = TraceKind::step});
    };
    for (const TraceEvent& event : on.trace.events) {
      insert_until(event.time);
      events.push_back(event);
    }
    insert_until(UINT64_MAX);
    on.trace.events = std::move(events);
  }

  std::vector<Trace> finish() {
    std::vector<Trace> traces;
    for (auto& [index, on] : devices_) {
      on.trace.start_us = on.start_us;
      if (overflowed_ && on.trace.lost == 0 && !on.has_start) on.trace.lost = 1;
      insert_steps(on);
      if (on.trace.streams.empty()) on.trace.streams.push_back(0);
      std::ranges::stable_sort(on.trace.blocks, {}, &BlockSnapshot::address);
      number_allocations(on.trace);
      traces.push_back(std::move(on.trace));
    }
    return traces;
  }

  ValueTree tree_;
  SnapshotElements in_;
  std::size_t text_budget_;
  bool overflowed_ = false;
  std::map<std::uint64_t, DeviceTrace> devices_;
  std::unordered_map<std::uint64_t, Frames> frames_;  // by number of the list
};

}  // namespace

std::vector<Trace> decode_pytorch_snapshot(std::string_view bytes, const std::string& path) {
  ValueTree tree = bytes.starts_with('\x80') ? read_pickle(bytes, path) : read_json(bytes, path);
  return SnapshotReader(std::move(tree), path, bytes.size()).read();
}

}  // namespace poolgrad
