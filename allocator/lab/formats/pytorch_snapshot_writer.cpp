#include "allocator/lab/formats/trace_file.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "allocator/base/salted_map.h"
#include "allocator/error.h"
#include "allocator/lab/formats/address_map.h"
#include "allocator/lab/formats/value_tree.h"
#include "allocator/trace/bytes.h"

namespace poolgrad {

namespace {

/// Protocol 2 with the few opcodes that the public memory viewer supports. Writes each text once and then refers to it.
class PickleEmitter {
 public:
  PickleEmitter() { out_.raw("\x80\x02"); }

  void begin_dict() { out_.raw("}("); }
  void end_dict() { out_.u8('u'); }
  void begin_list() {
    out_.u8(']');
    lists_.push_back(0);
  }
  /// The same; returns the number by which repeat() refers to the list.
  std::uint32_t begin_shared_list() {
    begin_list();
    return remember();
  }
  void repeat(std::uint32_t memo) { refer('h', 'j', memo); }
  /// Before each item. Batches are short because the viewer passes a batch as arguments of one call.
  void item() {
    std::size_t& items = lists_.back();
    if (items % longest_batch == 0) out_.raw(items == 0 ? "(" : "e(");
    ++items;
  }
  void end_list() {
    if (lists_.back() > 0) out_.u8('e');
    lists_.pop_back();
  }

  /// A value, or the key of the next one.
  void value(std::string_view text) {
    Known& recent = recent_[std::hash<std::string_view>()(text) % recent_.size()];
    if (recent.text.data() != nullptr && recent.text == text) return repeat(recent.memo);
    const auto [known, added] = texts_.try_emplace(std::string(text), memo_);
    recent = {known->first, known->second};
    if (!added) return repeat(recent.memo);
    const std::string valid = utf8_text(text);
    out_.u8('X');
    out_.u32(static_cast<std::uint32_t>(valid.size()));
    out_.raw(valid);
    remember();
  }
  /// Clamps numbers to 2^63 - 1: viewers reject more than eight bytes.
  void value(std::uint64_t number) {
    number = std::min<std::uint64_t>(number, std::numeric_limits<std::int64_t>::max());
    if (number <= 0xff) {
      out_.u8('K');
      out_.u8(static_cast<std::uint8_t>(number));
    } else if (number <= 0xffff) {
      out_.u8('M');
      out_.u16(static_cast<std::uint16_t>(number));
    } else if (number <= 0x7fffffff) {
      out_.u8('J');
      out_.u32(static_cast<std::uint32_t>(number));
    } else {
      std::uint8_t bytes = 4;  // the highest bit is the sign
      while (number >> (8 * bytes - 1) != 0) ++bytes;
      out_.u8(0x8a);
      out_.u8(bytes);
      char* to = out_.room(8);
      for (unsigned i = 0; i < 8; ++i) to[i] = static_cast<char>(number >> (8 * i));
      out_.wrote(bytes);
    }
  }
  void boolean(bool value) { out_.u8(value ? 0x88 : 0x89); }
  void minus_one() { out_.raw(std::string_view("J\xff\xff\xff\xff", 5)); }
  void zero() { out_.raw(std::string_view("G\0\0\0\0\0\0\0\0", 9)); }  // a real number
  void pair(std::uint64_t first, std::uint64_t second) {
    value(first);
    value(second);
    out_.u8(0x86);
  }
  template <typename Value>
  void field(std::string_view key, const Value& content) {
    value(key);
    value(content);
  }

  std::string finish() {
    out_.u8('.');
    return std::string(out_.view());
  }

 private:
  static constexpr std::size_t longest_batch = 1000;
  struct Known {
    std::string_view text;
    std::uint32_t memo = 0;
  };

  std::uint32_t remember() {
    refer('q', 'r', memo_);
    return memo_++;
  }
  void refer(std::uint8_t short_opcode, std::uint8_t long_opcode, std::uint32_t memo) {
    out_.u8(memo < 256 ? short_opcode : long_opcode);
    if (memo < 256)
      out_.u8(static_cast<std::uint8_t>(memo));
    else
      out_.u32(memo);
  }

  ByteWriter out_;
  SaltedTextMap<std::uint32_t> texts_;  // their memo numbers
  std::array<Known, 256> recent_;       // avoids the slower hash of texts_
  std::vector<std::size_t> lists_;      // items so far of each open list
  std::uint32_t memo_ = 0;
};

class SnapshotWriter {
 public:
  explicit SnapshotWriter(std::span<const WindowedTrace> traces) : traces_(traces) {}

  std::string write() {
    out_.begin_dict();
    out_.value("segments");
    out_.begin_list();
    for (const WindowedTrace& trace : traces_) write_segments(trace.trace);
    out_.end_list();
    out_.value("device_traces");
    write_device_traces();
    out_.value("allocator_settings");
    write_settings();
    out_.value("external_annotations");
    out_.begin_list();
    for (const WindowedTrace& trace : traces_) write_annotations(trace.trace);
    out_.end_list();
    out_.end_dict();
    return out_.finish();
  }

 private:
  struct Frames {
    const Trace* trace = nullptr;  // the owner of the shared lists
    AddressMap<std::uint32_t> lists;
  };

  void frame(std::string_view name, std::string_view file, std::uint64_t line) {
    out_.item();
    out_.begin_dict();
    out_.field("name", name);
    out_.field("filename", file);
    out_.field("line", line);
    out_.end_dict();
  }

  void write_frames(const Trace& trace, std::uint64_t location, std::uint32_t scope) {
    out_.value("frames");
    if (frames_.trace != &trace) frames_ = {&trace, {}};
    const std::uint64_t both = location << 32 | scope;
    if (const std::uint32_t* known = frames_.lists.find(both)) return out_.repeat(*known);
    frames_.lists.insert(both, out_.begin_shared_list());
    if (location != 0) {
      const TraceLocation& place = trace.locations[location];
      frame(place.function, place.file, place.line);
    }
    std::string_view path = trace.scopes[scope];
    while (!path.empty()) {
      const std::size_t dot = path.rfind('.');
      frame(path.substr(dot + 1), "scope", 0);
      path = dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
    }
    out_.end_list();
  }

  void write_segments(const Trace& trace) {
    const auto& blocks = trace.blocks;
    for (std::size_t begin = 0; begin < blocks.size();) {
      std::size_t end = begin + 1;
      if (blocks[begin].state != BlockState::uncommitted) {
        while (end < blocks.size() && blocks[end].state != BlockState::uncommitted &&
               blocks[end].window == blocks[begin].window &&
               blocks[end].address == blocks[end - 1].address + blocks[end - 1].size)
          ++end;
        write_segment(trace, std::span(blocks).subspan(begin, end - begin));
      }
      begin = end;
    }
  }

  void write_segment(const Trace& trace, std::span<const BlockSnapshot> blocks) {
    std::uint64_t total = 0, allocated = 0, active = 0, requested = 0;
    for (const BlockSnapshot& block : blocks) {
      total += block.size;
      if (block.state == BlockState::live) allocated += block.size;
      if (block.is_held()) active += block.size, requested += block.requested;
    }
    out_.item();
    out_.begin_dict();
    out_.field("device", trace.device.index);
    out_.field("address", blocks.front().address);
    out_.field("total_size", total);
    out_.field("allocated_size", allocated);
    out_.field("active_size", active);
    out_.field("requested_size", requested);
    out_.field("stream", 0u);
    out_.field("segment_type", "large");
    out_.value("segment_pool_id");
    out_.pair(0, 0);
    out_.value("is_expandable");
    out_.boolean(true);
    write_frames(trace, 0, 0);
    out_.value("blocks");
    out_.begin_list();
    for (const BlockSnapshot& block : blocks) write_block(trace, block);
    out_.end_list();
    out_.end_dict();
  }

  void write_block(const Trace& trace, const BlockSnapshot& block) {
    out_.item();
    out_.begin_dict();
    out_.field("address", block.address);
    out_.field("size", block.size);
    out_.field("requested_size", block.is_held() ? std::uint64_t{block.requested} : 0);
    out_.field("state", block.state == BlockState::live      ? "active_allocated"
                        : block.state == BlockState::pending ? "active_pending_free"
                                                             : "inactive");
    if (block.is_held()) out_.field("category", to_string(block.tag.category));
    write_frames(trace, 0, block.is_held() ? block.tag.scope : 0);
    out_.end_dict();
  }

  void write_device_traces() {
    std::size_t devices = 0;
    for (const WindowedTrace& trace : traces_) devices = std::max<std::size_t>(devices, trace.trace.device.index + 1u);
    out_.begin_list();
    for (std::size_t device = 0; device < devices; ++device) {
      out_.item();
      out_.begin_list();
      for (const WindowedTrace& trace : traces_)
        if (trace.trace.device.index == device) write_entries(trace.trace);
      out_.end_list();
    }
    out_.end_list();
  }

  /// Viewers support numbers below 2^53. Remains of destroyed streams, and streams of threads, have larger ids: they
  /// get small unused ones instead.
  static std::vector<std::uint64_t> names_of_streams(const Trace& trace) {
    std::vector<std::uint64_t> names = trace.streams;
    const SaltedNumbers taken(names.begin(), names.end());
    std::uint64_t next = 1;
    for (std::uint64_t& name : names) {
      if (name < std::uint64_t{1} << 53) continue;
      while (taken.contains(next)) ++next;
      name = next++;
    }
    return names;
  }

  void write_entries(const Trace& trace) {
    streams_ = names_of_streams(trace);
    for (const TraceEvent& event : trace.events) write_entry(trace, event);
    TraceEvent end;
    end.time = trace.events.empty() ? 0 : trace.events.back().time;
    for (const BlockSnapshot& block : trace.blocks)
      if (block.is_held()) end.size += block.requested;
    write_entry(trace, end, "snapshot");
  }

  void write_entry(const Trace& trace, const TraceEvent& event) {
    switch (event.kind) {
      case TraceKind::allocate: return write_entry(trace, event, "alloc");
      case TraceKind::free_requested: return write_entry(trace, event, "free_requested");
      case TraceKind::free_completed: return write_entry(trace, event, "free_completed");
      case TraceKind::segment_map: return write_entry(trace, event, "segment_map");
      case TraceKind::segment_unmap: return write_entry(trace, event, "segment_unmap");
      case TraceKind::out_of_memory: return write_entry(trace, event, "oom");
      case TraceKind::stage:
      case TraceKind::stream_use:
      case TraceKind::stream_order:
      case TraceKind::step: return;
    }
  }

  void write_entry(const Trace& trace, const TraceEvent& event, std::string_view action) {
    const bool is_segment = event.kind == TraceKind::segment_map || event.kind == TraceKind::segment_unmap;
    out_.item();
    out_.begin_dict();
    out_.field("action", action);
    out_.field(event.kind == TraceKind::out_of_memory ? "device_free" : "addr", event.address);
    out_.field("size", event.size);
    out_.field("stream", is_segment ? 0u : streams_[event.stream]);
    out_.field("time_us", trace.start_us + event.time / 1000);
    out_.field("compile_context", "N/A");
    if (!is_segment) out_.field("category", to_string(event.category));
    write_frames(trace, event.location, event.scope);
    out_.end_dict();
  }

  void write_annotations(const Trace& trace) {
    const TraceEvent* open = nullptr;
    const auto annotate = [&](const char* stage, std::uint64_t time) {
      out_.item();
      out_.begin_dict();
      out_.field("name", "step " + std::to_string(open->size));
      out_.field("stage", stage);
      out_.field("device", trace.device.index);
      out_.field("time_us", trace.start_us + time / 1000);
      out_.end_dict();
    };
    for (const TraceEvent& event : trace.events) {
      if (event.kind != TraceKind::step) continue;
      if (open != nullptr) annotate("END", event.time);
      open = &event;
      annotate("START", event.time);
    }
    if (open != nullptr) annotate("END", trace.events.back().time);
  }

  /// PyTorch's keys say: segments expand, any block may be split, and neither collection nor rounding is configured.
  void write_settings() {
    out_.begin_dict();
    out_.field("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    out_.value("expandable_segments");
    out_.boolean(true);
    out_.value("max_split_size");
    out_.minus_one();
    out_.value("garbage_collection_threshold");
    out_.zero();
    out_.value("roundup_power2_divisions");
    out_.begin_dict();
    for (unsigned size = 1; size <= 32768; size *= 2) out_.field(std::to_string(size), 0u);
    out_.end_dict();
    bool overflowed = false;
    for (const WindowedTrace& trace : traces_) {
      overflowed = overflowed || trace.trace.lost > 0;
      out_.field("poolgrad on " + to_string(trace.trace.device), trace.trace.settings);
    }
    out_.value("trace_alloc_overflowed");
    out_.boolean(overflowed);
    out_.end_dict();
  }

  PickleEmitter out_;
  std::span<const WindowedTrace> traces_;
  Frames frames_;
  std::vector<std::uint64_t> streams_;  // of the trace whose entries are written
};

}  // namespace

std::string encode_pytorch_snapshot(std::span<const WindowedTrace> traces, SnapshotEncoding encoding) {
  for (std::size_t i = 0; i < traces.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (traces[i].trace.device.index == traces[j].trace.device.index)
        throw ValueError("[write] two traces of one device index: " + to_string(traces[j].trace.device) + ", " +
                         to_string(traces[i].trace.device));
  std::string pickle = SnapshotWriter(traces).write();
  if (encoding == SnapshotEncoding::pickle) return pickle;
  ValueTree tree(pickle.size());
  read_pickle(pickle, "snapshot", tree);
  std::string().swap(pickle);  // frees memory for the text
  return json_text(tree);
}

}  // namespace poolgrad
