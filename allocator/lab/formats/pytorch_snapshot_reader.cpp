#include "allocator/lab/formats/trace_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/lab/formats/address_map.h"
#include "allocator/lab/formats/trace_parts.h"
#include "allocator/lab/formats/value_tree.h"

namespace poolgrad {

namespace {

Category category_of(std::string_view name) {
  if (name == "temporary") return Category::temp;  // the name that PyTorch's profiler has for it
  for (std::size_t i = 0; i < category_count; ++i)
    if (name == to_string(static_cast<Category>(i))) return static_cast<Category>(i);
  return Category::unknown;
}

// Frames of the unwinder itself, which the public viewer hides too.
bool is_unwinder(std::string_view function) {
  for (const std::string_view part : {"unwind::unwind", "CapturedTraceback::gather", "gather_with_cpp"})
    if (function.find(part) != std::string_view::npos) return true;
  return false;
}

void append_to_path(std::string& path, std::string_view name) {
  if (!path.empty() && !name.empty()) path += '.';
  path += name;
}

// The trace of one device as read so far.
struct DeviceTrace {
  Trace trace;
  TraceNames names{trace};
  struct Origin {
    std::uint64_t location = 0;
    std::uint32_t scope = 0;
  };
  std::unordered_map<std::uint64_t, Origin> origins;  // by number of the list of frames
  std::uint64_t first_us = UINT64_MAX;                // of the entries
  bool in_pickle = false;                             // read while the pickle was parsed
  // The newest allocation at an address.
  struct Last {
    std::size_t allocation = SIZE_MAX;  // index of its event; SIZE_MAX: before the trace
    bool requested = false;             // its free
    bool completed = false;
    std::uint32_t annotation = 0;  // the metadata alone, of an allocation before the trace
  };
  AddressMap<Last> last;
  struct PrivateSegment {
    std::uint64_t begin = 0, end = 0;
    std::string pool;
  };
  std::vector<PrivateSegment> private_segments;
};

class SnapshotReader {
 public:
  SnapshotReader(std::string_view bytes, const std::string& path)
      : bytes_(bytes),
        path_(path),
        tree_(bytes.size()),
        in_(tree_, path),
        text_budget_((std::size_t{1} << 20) + 16 * bytes.size()) {}

  std::vector<Trace> read() {
    if (bytes_.starts_with('\x80')) {
      read_pickle(bytes_, path_, tree_, [&](std::size_t list, std::size_t index, std::span<const Value> pairs) {
        const bool first = devices_.empty();
        DeviceTrace& on = device(list);
        if (first) on.trace.events.reserve(bytes_.size() / 40);  // only pages that are used take memory
        on.in_pickle = true;
        in_.at = {"device_traces", list, "", index};
        read_entry(on, pairs);
      });
    } else {
      read_json(bytes_, path_, tree_);
    }
    const Value root = tree_.root;
    if (root.kind == ValueKind::list) {
      const std::span<const Value> items = std::as_const(tree_).items(root);
      if (!items.empty() && in_.find(items[0], "ph") != nullptr) refuse_chrome_trace();
      read_segments(root);
      return finish();
    }
    if (root.kind != ValueKind::dict) in_.fail("a snapshot is a dictionary or a list");
    const Value* segments = in_.find(root, "segments");
    const Value* traces = in_.find(root, "device_traces");
    if (segments == nullptr && traces == nullptr) {
      if (in_.find(root, "traceEvents") != nullptr) refuse_chrome_trace();
      in_.fail("not a memory snapshot: neither 'segments' nor 'device_traces'");
    }
    if (const Value* settings = in_.find(root, "allocator_settings")) read_settings(*settings);
    // Entries come first, as from a pickle, so that both number names alike.
    if (traces != nullptr) read_traces(*traces);
    if (segments != nullptr) read_segments(*segments);
    return finish();
  }

 private:
  [[noreturn]] void refuse_chrome_trace() const { in_.fail("a Chrome trace cannot be read back"); }

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
      } else if (is_unwinder(in_.text(frame, "name", ""))) {
        continue;
      } else if (!frames.innermost || (file.ends_with(".py") && !in_python)) {
        frames.innermost = frame;
        in_python = file.ends_with(".py");
      }
    }
    for (std::size_t i = scopes.size(); i-- > 0;) frames.scope += copy(scopes[i]) + (i > 0 ? "." : "");
    return frames;
  }

  DeviceTrace::Origin origin(DeviceTrace& device, Value list) {
    const auto known = device.origins.find(list.bits);
    if (known != device.origins.end()) return known->second;
    const Frames& frames = read_frames(list);
    DeviceTrace::Origin origin;
    if (frames.innermost) {
      const std::uint64_t line = std::min<std::uint64_t>(in_.number(*frames.innermost, "line", 0), UINT32_MAX);
      origin.location =
          device.names.location(copy(in_.text(*frames.innermost, "filename", "")),
                                copy(in_.text(*frames.innermost, "name", "")), static_cast<std::uint32_t>(line));
    }
    origin.scope = device.names.scope(copy(frames.scope));
    device.origins.emplace(list.bits, origin);
    return origin;
  }

  // The name of a private pool (a CUDA graph's); empty for the usual pool.
  std::string pool_name(Value pool) const {
    if (pool.kind != ValueKind::list) return "";
    const std::span<const Value> id = std::as_const(tree_).items(pool);
    if (id.size() != 2 || id[0].kind != ValueKind::integer || id[1].kind != ValueKind::integer)
      in_.fail("the id of a pool is not two whole numbers");
    if (id[0].bits == 0 && id[1].bits == 0) return "";
    return "pool " + std::to_string(id[0].bits) + "," + std::to_string(id[1].bits);
  }
  // The scope `base` inside `pool`, with `metadata` as innermost part.
  std::uint32_t scope_of(DeviceTrace& on, std::string_view pool, std::string_view metadata, std::uint32_t base) {
    if (pool.empty() && metadata.empty()) return base;
    std::string path(pool);
    append_to_path(path, on.trace.scopes[base]);
    append_to_path(path, metadata);
    return on.names.scope(copy(path));
  }
  // A dictionary as JSON, of its texts and numbers.
  std::string metadata_text(Value value) {
    if (value.kind == ValueKind::text) return std::string(tree_.text_of(value));
    if (value.kind != ValueKind::dict) return "";
    const std::span<const Value> pairs = std::as_const(tree_).items(in_.dictionary(value));
    std::string text;
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const Value item = pairs[i + 1];
      const bool number = item.kind == ValueKind::integer;
      if (pairs[i].kind != ValueKind::text || (!number && item.kind != ValueKind::text)) continue;
      text += (text.empty() ? "" : ", ") + json_text(copy(tree_.text_of(pairs[i]))) + ": ";
      if (number)
        text += item.negative ? std::to_string(static_cast<std::int64_t>(item.bits)) : std::to_string(item.bits);
      else
        text += json_text(copy(tree_.text_of(item)));
    }
    return text.empty() ? "" : "{" + text + "}";
  }

  void read_segments(Value list) {
    in_.for_each(list, "segments",
                 [&](Value segment, std::size_t index) { read_segment(in_.dictionary(segment), index); });
  }

  void read_segment(Value segment, std::size_t index) {
    DeviceTrace& on = device(in_.number(segment, "device", 0));
    const std::uint64_t stream = in_.number(segment, "stream", 0), total = in_.number(segment, "total_size");
    const Value blocks = in_.need(segment, "blocks");
    const Value* pool_id = in_.find(segment, "segment_pool_id");
    const std::string pool = pool_id == nullptr ? "" : pool_name(*pool_id);
    std::uint64_t address = in_.number(segment, "address", 0), left = total;
    if (total > UINT64_MAX - address) in_.fail("addresses beyond 64 bits");
    if (!pool.empty()) on.private_segments.push_back({address, address + total, pool});
    std::size_t number = 0;
    for (const Value block : in_.list(blocks, "blocks")) {
      in_.at = {"segments", index, ".blocks", number++};
      const std::uint64_t size = in_.number(in_.dictionary(block), "size");
      if (size == 0 || size > left) in_.fail("a block of " + std::to_string(size) + " bytes");
      BlockSnapshot& entry = on.trace.blocks.emplace_back(read_block(on, block, size));
      entry.address = address;
      entry.stream = stream;
      if (entry.is_held()) entry.tag.scope = scope_of(on, pool, "", entry.tag.scope);
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
    const Value* frames = in_.frames(in_.find(block, "frames") != nullptr ? block : source);
    if (frames != nullptr) entry.tag.scope = origin(on, *frames).scope;
    return entry;
  }

  void read_traces(Value list) {
    in_.for_each(list, "device_traces", [&](Value entries, std::size_t index) {
      const std::span<const Value> items = in_.list(entries, "device_traces");
      for (std::size_t i = 0; i < items.size(); ++i) {
        in_.at = {"device_traces", index, "", i};
        if (device(index).in_pickle) {
          if (items[i].kind != ValueKind::none) in_.fail("entries of several forms");
          continue;
        }
        read_entry(device(index), std::as_const(tree_).items(in_.dictionary(items[i])));
      }
    });
  }

  // The keys of entries, and the texts of their values.
  enum class Key : std::uint8_t {
    action,
    time_us,
    addr,
    device_free,
    size,
    stream,
    category,
    frames,
    pool_id,
    segment_pool_id,
    user_metadata,
    other
  };
  static constexpr std::size_t key_count = static_cast<std::size_t>(Key::other);
  struct Meaning {
    Key key = Key::other;
    bool is_action = false;  // names `kind`
    TraceKind kind = TraceKind::allocate;
    Category category = Category::unknown;
    bool completes = false;  // the old name of both halves of a free
    bool annotates = false;
  };

  static Meaning meaning_of(std::string_view text) {
    static constexpr std::array<std::string_view, key_count> keys = {
        "action",   "time_us", "addr",    "device_free",     "size",         "stream",
        "category", "frames",  "pool_id", "segment_pool_id", "user_metadata"};
    static const std::unordered_map<std::string_view, TraceKind> kinds = {{"alloc", TraceKind::allocate},
                                                                          {"free_requested", TraceKind::free_requested},
                                                                          {"free", TraceKind::free_requested},
                                                                          {"free_completed", TraceKind::free_completed},
                                                                          {"segment_alloc", TraceKind::segment_map},
                                                                          {"segment_map", TraceKind::segment_map},
                                                                          {"segment_free", TraceKind::segment_unmap},
                                                                          {"segment_unmap", TraceKind::segment_unmap},
                                                                          {"oom", TraceKind::out_of_memory}};
    Meaning meaning;
    meaning.key = static_cast<Key>(std::ranges::find(keys, text) - keys.begin());
    meaning.category = category_of(text);
    const auto kind = kinds.find(text);
    meaning.is_action = kind != kinds.end();
    if (meaning.is_action) meaning.kind = kind->second;
    meaning.completes = text == "free";
    meaning.annotates = text == "annotate";
    return meaning;
  }

  // Texts have numbers, so each is compared once.
  const Meaning& meaning(Value text) {
    while (meanings_.size() <= text.bits)
      meanings_.push_back(
          meaning_of(std::as_const(tree_).text_of({ValueKind::text, false, std::uint64_t{meanings_.size()}})));
    return meanings_[text.bits];
  }

  void read_entry(DeviceTrace& on, std::span<const Value> pairs) {
    if (pairs.size() > 128) in_.fail("a dictionary of more than 64 keys");
    std::array<Value, key_count + 1> values{};
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2)
      if (pairs[i].kind == ValueKind::text) values[static_cast<std::size_t>(meaning(pairs[i]).key)] = pairs[i + 1];
    const auto value = [&](Key key) { return values[static_cast<std::size_t>(key)]; };
    const auto has = [&](Key key) { return value(key).kind != ValueKind::none; };
    const auto number = [&](Key key, const char* name) {
      if (!has(key)) in_.fail("no '" + std::string(name) + "'");
      return in_.number_of(value(key), name);
    };
    const std::uint64_t time = has(Key::time_us) ? number(Key::time_us, "time_us") : 0;
    if (time > UINT64_MAX / 1000) in_.fail("a time beyond 64 bits");
    on.first_us = std::min(on.first_us, time);
    if (!has(Key::action)) in_.fail("no 'action'");
    in_.text_of(value(Key::action), "action");
    const Meaning action = meaning(value(Key::action));
    if (action.annotates) return annotate(on, number(Key::addr, "addr"), value(Key::user_metadata));
    if (!action.is_action) return;
    const bool failed = action.kind == TraceKind::out_of_memory;
    TraceEvent event{.time = time,
                     .address = failed ? number(Key::device_free, "device_free") : number(Key::addr, "addr"),
                     .size = number(Key::size, "size"),
                     .kind = action.kind};
    if (!failed && event.size > UINT64_MAX - event.address) in_.fail("addresses beyond 64 bits");
    event.stream = on.names.stream(has(Key::stream) ? number(Key::stream, "stream") : 0);
    if (has(Key::category)) {
      in_.text_of(value(Key::category), "category");
      event.category = meaning(value(Key::category)).category;
    }
    if (has(Key::frames)) {
      if (value(Key::frames).kind != ValueKind::list) in_.fail("'frames' is not a list");
      const DeviceTrace::Origin from = origin(on, value(Key::frames));
      event.location = from.location;
      event.scope = from.scope;
    }
    const Value pool = value(has(Key::pool_id) ? Key::pool_id : Key::segment_pool_id);
    names_pools_ |= pool.kind != ValueKind::none;
    event.scope = scope_of(on, pool_name(pool), metadata_text(value(Key::user_metadata)), event.scope);
    add(on, event);
    if (action.completes) {
      event.kind = TraceKind::free_completed;
      add(on, event);
    }
  }

  // A free that completes without a request gets one: its request is older than the ring, or was not recorded.
  void add(DeviceTrace& on, TraceEvent event) {
    const bool allocates = event.kind == TraceKind::allocate, completes = event.kind == TraceKind::free_completed;
    if (allocates || completes || event.kind == TraceKind::free_requested) {
      DeviceTrace::Last* last = on.last.find(event.address);
      if (last == nullptr) {
        on.last.insert(event.address, {});
        last = on.last.find(event.address);
      }
      if (allocates) {
        *last = {.allocation = on.trace.events.size()};
      } else {
        if (last->allocation == SIZE_MAX) event.scope = scope_of(on, "", annotation_of(on, *last), event.scope);
        if (completes && !last->requested && !last->completed) {
          event.kind = TraceKind::free_requested;
          on.trace.events.push_back(event);
          event.kind = TraceKind::free_completed;
        }
        last->requested = !completes;
        last->completed = completes;
      }
    }
    on.trace.events.push_back(event);
  }

  // The metadata becomes the innermost part of the scope of the allocation at that address.
  void annotate(DeviceTrace& on, std::uint64_t address, Value metadata) {
    DeviceTrace::Last* last = on.last.find(address);
    if (last == nullptr) {
      on.last.insert(address, {});
      last = on.last.find(address);
    }
    std::uint32_t& scope = last->allocation == SIZE_MAX ? last->annotation : on.trace.events[last->allocation].scope;
    scope = scope_of(on, "", metadata_text(metadata), scope);
  }
  static std::string annotation_of(const DeviceTrace& on, const DeviceTrace::Last& last) {
    return on.trace.scopes[last.annotation];
  }

  // In older snapshots only segments name their pool, so each entry belongs to the pool of the segment at its address.
  void name_pools(DeviceTrace& on) {
    if (names_pools_ || on.private_segments.empty()) return;
    std::ranges::sort(on.private_segments, {}, &DeviceTrace::PrivateSegment::begin);
    std::map<std::pair<std::string_view, std::uint32_t>, std::uint32_t> known;  // pool and scope: the scope inside it
    for (TraceEvent& event : on.trace.events) {
      if (event.kind == TraceKind::out_of_memory) continue;
      const auto next =
          std::ranges::upper_bound(on.private_segments, event.address, {}, &DeviceTrace::PrivateSegment::begin);
      if (next == on.private_segments.begin() || event.address >= (next - 1)->end) continue;
      const std::string& pool = (next - 1)->pool;
      const auto [entry, added] = known.try_emplace({pool, event.scope});
      if (added) entry->second = scope_of(on, pool, "", event.scope);
      event.scope = entry->second;
    }
  }

  void read_settings(Value settings) {
    const Value* overflowed = in_.find(settings, "trace_alloc_overflowed");
    overflowed_ = overflowed != nullptr && overflowed->kind == ValueKind::boolean && overflowed->bits != 0;
  }

  std::vector<Trace> finish() {
    std::vector<Trace> traces;
    in_.at = {"device_traces"};
    for (auto& [index, on] : devices_) {
      if (on.first_us != UINT64_MAX) on.trace.start_us = on.first_us;
      for (TraceEvent& event : on.trace.events) event.time = 1000 * (event.time - on.first_us);
      name_pools(on);
      if (overflowed_) on.trace.lost = 1;
      if (on.trace.streams.empty()) on.trace.streams.push_back(0);
      std::ranges::stable_sort(on.trace.blocks, {}, &BlockSnapshot::address);
      for (BlockSnapshot& block : on.trace.blocks)
        if (const auto* last = on.last.find(block.address);
            block.is_held() && last != nullptr && last->allocation == SIZE_MAX)
          block.tag.scope = scope_of(on, "", annotation_of(on, *last), block.tag.scope);
      number_allocations(on.trace);
      traces.push_back(std::move(on.trace));
    }
    return traces;
  }

  std::string_view bytes_;
  const std::string& path_;
  ValueTree tree_;
  SnapshotElements in_;
  std::size_t text_budget_;
  bool overflowed_ = false;
  bool names_pools_ = false;  // an entry names its pool
  std::map<std::uint64_t, DeviceTrace> devices_;
  std::unordered_map<std::uint64_t, Frames> frames_;  // by number of the list
  std::vector<Meaning> meanings_;                     // by number of the text
};

}  // namespace

std::vector<Trace> decode_pytorch_snapshot(std::string_view bytes, const std::string& path) {
  return SnapshotReader(bytes, path).read();
}

}  // namespace poolgrad
