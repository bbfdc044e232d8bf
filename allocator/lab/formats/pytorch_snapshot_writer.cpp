#include "allocator/lab/formats/trace_file.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "allocator/base/salted_map.h"
#include "allocator/error.h"
#include "allocator/lab/formats/address_map.h"
#include "allocator/lab/formats/emitters.h"

namespace poolgrad {

namespace {

template <typename Emitter>
class SnapshotWriter {
 public:
  explicit SnapshotWriter(std::span<const WindowedTrace> traces) : traces_(traces) {
    for (std::size_t i = 0; i < category_count; ++i) categories_[i] = out_.token(to_string(static_cast<Category>(i)));
  }

  std::string write() {
    out_.begin_dict();
    out_.key("segments");
    out_.begin_list();
    for (const WindowedTrace& trace : traces_) write_segments(trace.trace);
    out_.end_list();
    out_.key("device_traces");
    write_device_traces();
    out_.key("allocator_settings");
    write_settings();
    out_.key("external_annotations");
    out_.begin_list();
    for (const WindowedTrace& trace : traces_) write_annotations(trace.trace);
    out_.end_list();
    out_.end_dict();
    return out_.finish();
  }

 private:
  using Token = typename Emitter::Token;

  struct Frames {
    const Trace* trace = nullptr;  // the owner of the shared lists
    AddressMap<Token> lists;
  };

  void frame(Emitter& out, std::string_view name, std::string_view file, std::uint64_t line) {
    out.item();
    out.begin_dict();
    out.field("name", name);
    out.field("filename", file);
    out.field("line", line);
    out.end_dict();
  }

  void write_frames(const Trace& trace, std::uint64_t location, std::uint32_t scope) {
    if (frames_.trace != &trace) frames_ = {&trace, {}};
    const std::uint64_t both = location << 32 | scope;
    Token* known = frames_.lists.find(both);
    const Token list = known != nullptr ? *known : out_.shared();
    if (known == nullptr) frames_.lists.insert(both, list);
    out_.shared_list(list, [&](Emitter& out) {
      if (location != 0) {
        const TraceLocation& place = trace.locations[location];
        frame(out, place.function, place.file, place.line);
      }
      std::string_view path = trace.scopes[scope];
      while (!path.empty()) {
        const std::size_t dot = path.rfind('.');
        frame(out, path.substr(dot + 1), "scope", 0);
        path = dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
      }
    });
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
    out_.field(device_, trace.device.index);
    out_.field(address_, blocks.front().address);
    out_.field(total_size_, total);
    out_.field(allocated_size_, allocated);
    out_.field(active_size_, active);
    out_.field(requested_size_, requested);
    out_.field(stream_, 0u);
    out_.field(segment_type_, large_);
    out_.key(segment_pool_id_);
    out_.pair(0, 0);
    out_.key(is_expandable_);
    out_.boolean(true);
    out_.key(frames_key_);
    write_frames(trace, 0, 0);
    out_.key(blocks_);
    out_.begin_list();
    for (const BlockSnapshot& block : blocks) write_block(trace, block);
    out_.end_list();
    out_.end_dict();
  }

  void write_block(const Trace& trace, const BlockSnapshot& block) {
    out_.item();
    out_.begin_dict();
    out_.field(address_, block.address);
    out_.field(size_, block.size);
    out_.field(requested_size_, block.is_held() ? std::uint64_t{block.requested} : 0);
    out_.field(state_, block.state == BlockState::live      ? active_allocated_
                       : block.state == BlockState::pending ? active_pending_free_
                                                            : inactive_);
    if (block.is_held()) out_.field(category_, categories_[static_cast<std::size_t>(block.tag.category)]);
    out_.key(frames_key_);
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

  /// Viewers support numbers up to 2^53. Remains of destroyed streams, and streams of threads, have larger ids: they
  /// get small unused ones instead.
  static std::vector<std::uint64_t> names_of_streams(const Trace& trace) {
    std::vector<std::uint64_t> names = trace.streams;
    const SaltedNumbers taken(names.begin(), names.end());
    std::uint64_t next = 1;
    for (std::uint64_t& name : names) {
      if (name <= std::uint64_t{1} << 53) continue;
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
    write_entry(trace, end, snapshot_);
  }

  void write_entry(const Trace& trace, const TraceEvent& event) {
    switch (event.kind) {
      case TraceKind::allocate: return write_entry(trace, event, alloc_);
      case TraceKind::free_requested: return write_entry(trace, event, free_requested_);
      case TraceKind::free_completed: return write_entry(trace, event, free_completed_);
      case TraceKind::segment_map: return write_entry(trace, event, segment_map_);
      case TraceKind::segment_unmap: return write_entry(trace, event, segment_unmap_);
      case TraceKind::out_of_memory: return write_entry(trace, event, oom_);
      case TraceKind::stage:
      case TraceKind::stream_use:
      case TraceKind::stream_order:
      case TraceKind::step: return;
    }
  }

  void write_entry(const Trace& trace, const TraceEvent& event, Token action) {
    const bool is_segment = event.kind == TraceKind::segment_map || event.kind == TraceKind::segment_unmap;
    out_.item();
    out_.begin_dict();
    out_.field(action_, action);
    out_.field(event.kind == TraceKind::out_of_memory ? device_free_ : addr_, event.address);
    out_.field(size_, event.size);
    out_.field(stream_, is_segment ? 0u : streams_[event.stream]);
    out_.field(time_us_, trace.start_us + event.time / 1000);
    out_.field(compile_context_, not_available_);
    if (!is_segment) out_.field(category_, categories_[static_cast<std::size_t>(event.category)]);
    out_.key(frames_key_);
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
      out_.field(device_, trace.device.index);
      out_.field(time_us_, trace.start_us + time / 1000);
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

  void write_settings() {
    out_.begin_dict();
    out_.field("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    out_.key("max_split_size");
    out_.minus_one();
    out_.key("garbage_collection_threshold");
    out_.number(0.0);
    out_.key("expandable_segments");
    out_.boolean(true);
    out_.field("pinned_num_register_threads", 1u);
    for (const char* name :
         {"release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse"}) {
      out_.key(name);
      out_.boolean(false);
    }
    out_.key("roundup_power2_divisions");
    out_.begin_dict();
    for (std::uint64_t size = 1; size <= 32768; size *= 2) {
      out_.field(std::to_string(size), 0u);
    }
    out_.end_dict();
    const bool overflowed =
        std::ranges::any_of(traces_, [](const WindowedTrace& trace) { return trace.trace.lost > 0; });
    out_.key("trace_alloc_overflowed");
    out_.boolean(overflowed);
    out_.key("poolgrad");
    out_.begin_list();
    for (const WindowedTrace& trace : traces_) write_own_settings(trace.trace);
    out_.end_list();
    out_.end_dict();
  }

  void write_own_settings(const Trace& trace) {
    out_.item();
    out_.begin_dict();
    out_.field("device", to_string(trace.device));
    out_.field("allocator", trace.settings);
    out_.field("start_us", trace.start_us);
    out_.field("lost", trace.lost);
    out_.end_dict();
  }

  Emitter out_;
  std::span<const WindowedTrace> traces_;
  Frames frames_;
  std::vector<std::uint64_t> streams_;  // of the trace whose entries are written
  std::array<Token, category_count> categories_{};

  Token text(const char* value) { return out_.token(value); }
  // Keys and values that are written for each event or block.
  const Token action_ = text("action"), addr_ = text("addr"), size_ = text("size"), stream_ = text("stream"),
              time_us_ = text("time_us"), frames_key_ = text("frames"), category_ = text("category"),
              compile_context_ = text("compile_context"), not_available_ = text("N/A"),
              device_free_ = text("device_free"), alloc_ = text("alloc"), free_requested_ = text("free_requested"),
              free_completed_ = text("free_completed"), segment_map_ = text("segment_map"),
              segment_unmap_ = text("segment_unmap"), oom_ = text("oom"), snapshot_ = text("snapshot"),
              device_ = text("device"), address_ = text("address"), total_size_ = text("total_size"),
              allocated_size_ = text("allocated_size"), active_size_ = text("active_size"),
              requested_size_ = text("requested_size"), segment_type_ = text("segment_type"), large_ = text("large"),
              segment_pool_id_ = text("segment_pool_id"), is_expandable_ = text("is_expandable"),
              blocks_ = text("blocks"), state_ = text("state"), active_allocated_ = text("active_allocated"),
              active_pending_free_ = text("active_pending_free"), inactive_ = text("inactive");
};

}  // namespace

std::string encode_pytorch_snapshot(std::span<const WindowedTrace> traces, SnapshotEncoding encoding) {
  for (std::size_t i = 0; i < traces.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (traces[i].trace.device.index == traces[j].trace.device.index)
        throw ValueError("[write] two traces of one device index: " + to_string(traces[j].trace.device) + ", " +
                         to_string(traces[i].trace.device));
  if (encoding == SnapshotEncoding::json) return SnapshotWriter<JsonEmitter>(traces).write();
  return SnapshotWriter<PickleEmitter>(traces).write();
}

std::string encode_pytorch_snapshot(const Trace& trace, SnapshotEncoding encoding, const TraceWindow& window) {
  const WindowedTrace cut = cut_trace(trace, window);
  return encode_pytorch_snapshot(std::span(&cut, 1), encoding);
}

}  // namespace poolgrad
