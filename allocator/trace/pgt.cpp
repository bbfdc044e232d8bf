#include "allocator/trace/pgt.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "allocator/base/fnv1a.h"
#include "allocator/base/printable.h"
#include "allocator/trace/bytes.h"

namespace poolgrad {

namespace {

constexpr std::uint32_t version = 1;
constexpr std::size_t field_count = 11;
constexpr std::array<const char*, field_count> field_names = {
    "allocation", "address", "size", "ticket", "location", "scope", "stream", "slack", "category", "stage", "flags"};
constexpr std::array<std::string_view, 7> section_names = {"META", "STRM", "SCOP", "LOCA", "BLKS", "EVNT", "END "};
enum Section : std::size_t { meta, streams, scopes, locations, blocks, events, end_of_file };

using Fields = std::array<std::uint64_t, field_count>;

Fields fields_of(const TraceEvent& event) {
  return {event.allocation, event.address,  event.size,
          event.ticket,     event.location, event.scope,
          event.stream,     event.slack,    static_cast<std::uint64_t>(event.category),
          event.stage,      event.flags};
}

TraceEvent event_of(TraceKind kind, std::uint64_t time, const Fields& fields) {
  return {.time = time,
          .allocation = fields[0],
          .address = fields[1],
          .size = fields[2],
          .ticket = fields[3],
          .location = fields[4],
          .scope = static_cast<std::uint32_t>(fields[5]),
          .stream = static_cast<std::uint32_t>(fields[6]),
          .slack = static_cast<std::uint32_t>(fields[7]),
          .kind = kind,
          .category = static_cast<Category>(fields[8]),
          .stage = static_cast<std::uint8_t>(fields[9]),
          .flags = static_cast<std::uint8_t>(fields[10])};
}

// For each kind, the reference event of the next difference.
class References {
 public:
  Fields& of(TraceKind kind) {
    const TraceKind same = kind == TraceKind::free_completed ? TraceKind::free_requested : kind;
    return fields_[static_cast<std::size_t>(same)];
  }
  std::uint64_t time = 0;

 private:
  std::array<Fields, trace_kind_count> fields_{};
};

std::uint64_t checksum(std::string_view bytes) {
  Fnv1a hash;
  for (; !bytes.empty(); bytes.remove_prefix(std::min<std::size_t>(8, bytes.size()))) {
    std::uint64_t word = 0;
    for (std::size_t i = std::min<std::size_t>(8, bytes.size()); i-- > 0;)
      word = word << 8 | static_cast<std::uint8_t>(bytes[i]);
    hash.mix(word);
  }
  return hash.value();
}

class Saver {
 public:
  template <class Value>
  void byte(const char*, const Value& value, std::uint64_t = 0) {
    out.u8(static_cast<std::uint8_t>(value));
  }
  template <class Value>
  void number(const char*, const Value& value, std::uint64_t = 0) {
    out.varint(value);
  }
  void difference(const char*, std::uint64_t value, std::uint64_t from) { out.varint(zigzag(value - from)); }
  void text(const char*, const std::string& value) { out.text(value); }
  template <class List, class Each>
  void list(const char*, std::size_t, const List& items, Each each) {
    out.varint(items.size());
    for (const auto& item : items) each(item);
  }

  void events(const Trace& trace) {
    out.varint(trace.events.size());
    References references;
    for (const TraceEvent& event : trace.events) {
      Fields& reference = references.of(event.kind);
      const Fields fields = fields_of(event);
      unsigned mask = 0;
      for (std::size_t i = 0; i < field_count; ++i) mask |= static_cast<unsigned>(fields[i] != reference[i]) << i;
      out.u8(static_cast<std::uint8_t>(static_cast<unsigned>(event.kind) | (mask >> 8) << 4));
      out.u8(static_cast<std::uint8_t>(mask));
      out.varint(zigzag(event.time - references.time));
      for (; mask != 0; mask &= mask - 1) {
        const auto i = static_cast<std::size_t>(std::countr_zero(mask));
        out.varint(zigzag(fields[i] - reference[i]));
      }
      reference = fields;
      references.time = event.time;
    }
  }

  ByteWriter out;
};

class Loader {
 public:
  explicit Loader(ByteReader& in) : in_(in) {}

  template <class Value>
  void byte(const char* what, Value& value, std::uint64_t most = UINT8_MAX) {
    value = static_cast<Value>(at_most(most, in_.u8(what), what));
  }
  template <class Value>
  void number(const char* what, Value& value, std::uint64_t most = UINT64_MAX) {
    value = static_cast<Value>(at_most(most, in_.varint(what), what));
  }
  template <class Value>
  void difference(const char* what, Value& value, std::uint64_t from) {
    value = from + unzigzag(in_.varint(what));
  }
  void text(const char* what, std::string& value) { value = in_.text(what); }
  /// Each item takes at least `least` bytes.
  template <class List, class Each>
  void list(const char* what, std::size_t least, List& items, Each each) {
    items.resize(in_.count(what, least));
    for (auto& item : items) each(item);
  }

  void events(Trace& trace) {
    // Index 0 means "none" and is valid for an empty table.
    const auto last = [](const auto& table) -> std::uint64_t { return table.empty() ? 0 : table.size() - 1; };
    constexpr std::uint64_t any = UINT64_MAX;
    const Fields limits = {any,
                           any,
                           any,
                           any,
                           last(trace.locations),
                           last(trace.scopes),
                           last(trace.streams),
                           UINT32_MAX,
                           category_count - 1,
                           UINT8_MAX,
                           UINT8_MAX};
    const std::uint64_t count = in_.count("events", 3);
    trace.events.reserve(count);
    References references;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint8_t head = in_.u8("event");
      const unsigned kind = head & 15u;
      if (kind >= trace_kind_count) in_.fail("event kind " + std::to_string(kind));
      unsigned mask = static_cast<unsigned>(head >> 4) << 8 | in_.u8("event");
      if (mask >> field_count != 0) in_.fail("an unknown field of an event");
      references.time += unzigzag(in_.varint("time"));
      Fields& fields = references.of(static_cast<TraceKind>(kind));
      for (; mask != 0; mask &= mask - 1)
        fields[static_cast<std::size_t>(std::countr_zero(mask))] += unzigzag(in_.varint("a field of an event"));
      for (std::size_t field = 0; field < field_count; ++field)
        if (fields[field] > limits[field])
          in_.fail(std::string(field_names[field]) + " " + std::to_string(fields[field]) + " of an event");
      trace.events.push_back(event_of(static_cast<TraceKind>(kind), references.time, fields));
    }
  }

 private:
  std::uint64_t at_most(std::uint64_t most, std::uint64_t value, const char* what) const {
    if (value > most) in_.fail(std::string(what) + " " + std::to_string(value));
    return value;
  }

  ByteReader& in_;
};

// One description of each section for both directions.
template <class Archive, class AnyTrace>
void transfer(Archive& archive, Section section, AnyTrace& trace) {
  switch (section) {
    case meta:
      archive.byte("device type", trace.device.type, static_cast<std::uint64_t>(DeviceType::sim));
      archive.byte("device index", trace.device.index);
      archive.number("start", trace.start_us);
      archive.number("lost events", trace.lost);
      archive.text("settings", trace.settings);
      break;
    case streams: archive.list("streams", 1, trace.streams, [&](auto& id) { archive.number("stream", id); }); break;
    case scopes: archive.list("scopes", 1, trace.scopes, [&](auto& scope) { archive.text("scope", scope); }); break;
    case locations:
      archive.list("locations", 3, trace.locations, [&](auto& location) {
        archive.text("file", location.file);
        archive.text("function", location.function);
        archive.number("line", location.line, UINT32_MAX);
      });
      break;
    case blocks: {
      const std::size_t most_scope = std::max<std::size_t>(trace.scopes.size(), 1) - 1;
      std::uint64_t end = 0;
      std::uint64_t window = 0;
      archive.list("blocks", 6, trace.blocks, [&](auto& block) {
        archive.difference("address", block.address, end);
        archive.number("size", block.size);
        archive.byte("block state", block.state, static_cast<std::uint64_t>(BlockState::magazine));
        archive.number("stream", block.stream);
        archive.number("epoch", block.epoch);
        archive.difference("window", block.window, window);
        if (block.is_held()) {
          archive.number("number", block.number);
          archive.number("requested bytes", block.requested);
          archive.byte("category", block.tag.category, category_count - 1);
          archive.number("scope", block.tag.scope, most_scope);
        }
        end = block.address + block.size;
        window = block.window;
      });
      break;
    }
    case events: archive.events(trace); break;
    case end_of_file: break;
  }
}

}  // namespace

std::string encode_pgt(const Trace& trace) {
  ByteWriter file;
  file.raw(pgt_magic);
  file.u32(version);
  for (std::size_t i = 0; i < section_names.size(); ++i) {
    Saver section;
    transfer(section, static_cast<Section>(i), trace);
    const std::string_view payload = section.out.view();
    file.raw(section_names[i]);
    file.u32(0);
    file.u64(payload.size());
    file.u64(checksum(payload));
    file.raw(payload);
  }
  return std::string(file.view());
}

Trace decode_pgt(std::string_view bytes, const std::string& path) {
  ByteReader in(bytes, path);
  if (!bytes.starts_with(pgt_magic)) in.fail("not a .pgt file");
  in.take(pgt_magic.size(), "magic");
  const std::uint32_t found = in.u32("version");
  if (found != version) in.fail_at(pgt_magic.size(), "version " + std::to_string(found) + ", known is 1");
  Trace trace;
  for (std::size_t next = 0; next < section_names.size();) {
    const std::size_t start = in.offset();
    const std::string_view name = in.take(4, "section");
    if (in.u32("section") != 0) in.fail_at(start + 4, "a reserved field that is not 0");
    const std::uint64_t size = in.u64("section");
    const std::uint64_t expected = in.u64("section");
    const std::size_t begin = in.offset();
    const std::string_view payload = in.take(size, "section");
    if (checksum(payload) != expected) in.fail_at(begin, "the checksum of section " + in_quotes(name) + " is wrong");
    if (name == section_names[next]) {
      ByteReader section(payload, path, begin);
      Loader loader(section);
      transfer(loader, static_cast<Section>(next), trace);
      if (section.remaining() != 0)
        section.fail(std::to_string(section.remaining()) + " bytes too many in section " + std::string(name));
      ++next;
    } else if (std::ranges::find(section_names, name) != section_names.end()) {
      in.fail_at(start, "section " + std::string(name) + " instead of " + std::string(section_names[next]));
    }
  }
  if (in.remaining() != 0) in.fail(std::to_string(in.remaining()) + " bytes behind the end");
  return trace;
}

}  // namespace poolgrad
