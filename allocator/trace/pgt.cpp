#include "allocator/trace/pgt.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "allocator/trace/internal/byte_reader.h"
#include "allocator/trace/internal/byte_writer.h"

namespace poolgrad {

namespace {

constexpr std::uint32_t version = 1;
constexpr std::size_t field_count = 11;
constexpr std::array<std::string_view, 7> section_names = {"META", "STRM", "SCOP", "LOCA", "BLKS", "EVNT", "END "};
enum Section : std::size_t { meta, streams, scopes, locations, blocks, events, end_of_file };

using Fields = std::array<std::uint64_t, field_count>;

Fields fields_of(const TraceEvent& event) {
  return {event.allocation, event.address,  event.size,
          event.ticket,     event.location, event.scope,
          event.stream,     event.slack,    static_cast<std::uint64_t>(event.category),
          event.rung,       event.flags};
}

std::uint64_t zigzag(std::uint64_t difference) {
  const auto value = static_cast<std::int64_t>(difference);
  return (difference << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
std::uint64_t unzigzag(std::uint64_t coded) { return (coded >> 1) ^ (~(coded & 1) + 1); }

// The event that the next one of a kind is compared with.
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
  constexpr std::uint64_t prime = 0x100000001b3;
  std::uint64_t hash = 0xcbf29ce484222325;
  for (; !bytes.empty(); bytes.remove_prefix(std::min<std::size_t>(8, bytes.size()))) {
    std::uint64_t word = 0;
    for (std::size_t i = std::min<std::size_t>(8, bytes.size()); i-- > 0;)
      word = word << 8 | static_cast<std::uint8_t>(bytes[i]);
    hash = (hash ^ word) * prime;
  }
  return hash;
}

// --- writing

void write_section(ByteWriter& file, Section section, std::string_view payload) {
  file.raw(section_names[section]);
  file.u32(0);
  file.u64(payload.size());
  file.u64(checksum(payload));
  file.raw(payload);
}

void write_blocks(ByteWriter& out, const std::vector<BlockSnapshot>& all) {
  out.varint(all.size());
  std::uint64_t end = 0;
  std::uint64_t window = 0;
  for (const BlockSnapshot& block : all) {
    out.varint(zigzag(block.address - end));
    out.varint(block.size);
    out.u8(static_cast<std::uint8_t>(block.state));
    out.varint(block.stream);
    out.varint(block.epoch);
    out.varint(zigzag(block.window - window));
    if (block.is_held()) {
      out.varint(block.number);
      out.varint(block.requested);
      out.u8(static_cast<std::uint8_t>(block.tag.category));
      out.varint(block.tag.scope);
    }
    end = block.address + block.size;
    window = block.window;
  }
}

void write_events(ByteWriter& out, const std::vector<TraceEvent>& all) {
  out.varint(all.size());
  References references;
  for (const TraceEvent& event : all) {
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

// --- reading

std::vector<BlockSnapshot> read_blocks(ByteReader& in, const Trace& trace) {
  std::vector<BlockSnapshot> all(in.count("blocks", 6));
  std::uint64_t end = 0;
  std::uint64_t window = 0;
  for (BlockSnapshot& block : all) {
    block.address = end + unzigzag(in.varint("address"));
    block.size = in.varint("size");
    const std::uint8_t state = in.u8("state");
    if (state > static_cast<std::uint8_t>(BlockState::magazine)) in.fail("block state " + std::to_string(state));
    block.state = static_cast<BlockState>(state);
    block.stream = in.varint("stream");
    block.epoch = in.varint("epoch");
    block.window = window += unzigzag(in.varint("window"));
    if (block.is_held()) {
      block.number = in.varint("number");
      block.requested = in.varint("requested bytes");
      const std::uint8_t category = in.u8("category");
      if (category >= category_count) in.fail("category " + std::to_string(category));
      const std::uint64_t scope = in.varint("scope");
      if (scope >= std::max<std::size_t>(trace.scopes.size(), 1)) in.fail("scope " + std::to_string(scope));
      block.tag = {static_cast<Category>(category), static_cast<std::uint32_t>(scope)};
    }
    end = block.address + block.size;
  }
  return all;
}

TraceEvent event_of(const ByteReader& in, TraceKind kind, std::uint64_t time, const Fields& fields,
                    const Fields& limits) {
  static constexpr std::array<const char*, field_count> names = {
      "allocation", "address", "size", "ticket", "location", "scope", "stream", "slack", "category", "rung", "flags"};
  for (std::size_t i = 0; i < field_count; ++i)
    if (fields[i] > limits[i]) in.fail(std::string(names[i]) + " " + std::to_string(fields[i]) + " of an event");
  TraceEvent event;
  event.time = time;
  event.kind = kind;
  event.allocation = fields[0];
  event.address = fields[1];
  event.size = fields[2];
  event.ticket = fields[3];
  event.location = fields[4];
  event.scope = static_cast<std::uint32_t>(fields[5]);
  event.stream = static_cast<std::uint32_t>(fields[6]);
  event.slack = static_cast<std::uint32_t>(fields[7]);
  event.category = static_cast<Category>(fields[8]);
  event.rung = static_cast<std::uint8_t>(fields[9]);
  event.flags = static_cast<std::uint8_t>(fields[10]);
  return event;
}

std::vector<TraceEvent> read_events(ByteReader& in, const Trace& trace) {
  // Index 0 means "none" and is allowed where there is no table.
  const auto last = [](std::size_t size) { return size == 0 ? 0 : size - 1; };
  constexpr std::uint64_t any = UINT64_MAX;
  const Fields limits = {any,
                         any,
                         any,
                         any,
                         last(trace.locations.size()),
                         last(trace.scopes.size()),
                         last(trace.streams.size()),
                         UINT32_MAX,
                         category_count - 1,
                         UINT8_MAX,
                         UINT8_MAX};
  const std::uint64_t count = in.count("events", 3);
  std::vector<TraceEvent> all;
  all.reserve(count);
  References references;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint8_t head = in.u8("event");
    const unsigned kind = head & 15u;
    if (kind >= trace_kind_count) in.fail("event kind " + std::to_string(kind));
    unsigned mask = static_cast<unsigned>(head >> 4) << 8 | in.u8("event");
    if (mask >> field_count != 0) in.fail("an unknown field of an event");
    references.time += unzigzag(in.varint("time"));
    Fields& fields = references.of(static_cast<TraceKind>(kind));
    for (; mask != 0; mask &= mask - 1)
      fields[static_cast<std::size_t>(std::countr_zero(mask))] += unzigzag(in.varint("a field of an event"));
    all.push_back(event_of(in, static_cast<TraceKind>(kind), references.time, fields, limits));
  }
  return all;
}

void read_section(ByteReader& in, Section section, Trace& trace) {
  switch (section) {
    case meta: {
      const std::uint8_t type = in.u8("device type");
      if (type > static_cast<std::uint8_t>(DeviceType::sim)) in.fail("device type " + std::to_string(type));
      trace.device = {static_cast<DeviceType>(type), in.u8("device index")};
      trace.start_us = in.varint("start");
      trace.lost = in.varint("lost events");
      trace.settings = in.text("settings");
      break;
    }
    case streams:
      trace.streams.resize(in.count("streams", 1));
      for (std::uint64_t& id : trace.streams) id = in.varint("stream");
      break;
    case scopes:
      trace.scopes.resize(in.count("scopes", 1));
      for (std::string& scope : trace.scopes) scope = in.text("scope");
      break;
    case locations:
      trace.locations.resize(in.count("locations", 3));
      for (TraceLocation& location : trace.locations) {
        location.file = in.text("file");
        location.function = in.text("function");
        const std::uint64_t line = in.varint("line");
        if (line > UINT32_MAX) in.fail("line " + std::to_string(line));
        location.line = static_cast<std::uint32_t>(line);
      }
      break;
    case blocks: trace.blocks = read_blocks(in, trace); break;
    case events: trace.events = read_events(in, trace); break;
    case end_of_file: break;
  }
  if (in.remaining() != 0)
    in.fail(std::to_string(in.remaining()) + " bytes too many in section " + std::string(section_names[section]));
}

}  // namespace

std::string encode_pgt(const Trace& trace) {
  std::array<ByteWriter, end_of_file + 1> sections;
  sections[meta].u8(static_cast<std::uint8_t>(trace.device.type));
  sections[meta].u8(trace.device.index);
  sections[meta].varint(trace.start_us);
  sections[meta].varint(trace.lost);
  sections[meta].text(trace.settings);
  sections[streams].varint(trace.streams.size());
  for (const std::uint64_t id : trace.streams) sections[streams].varint(id);
  sections[scopes].varint(trace.scopes.size());
  for (const std::string& scope : trace.scopes) sections[scopes].text(scope);
  sections[locations].varint(trace.locations.size());
  for (const TraceLocation& location : trace.locations) {
    sections[locations].text(location.file);
    sections[locations].text(location.function);
    sections[locations].varint(location.line);
  }
  write_blocks(sections[blocks], trace.blocks);
  write_events(sections[events], trace.events);

  ByteWriter file;
  file.raw(pgt_magic);
  file.u32(version);
  for (std::size_t i = 0; i < sections.size(); ++i) write_section(file, static_cast<Section>(i), sections[i].view());
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
    if (checksum(payload) != expected) in.fail_at(begin, "the checksum of section " + std::string(name) + " is wrong");
    if (name == section_names[next]) {
      ByteReader section(payload, path, begin);
      read_section(section, static_cast<Section>(next), trace);
      ++next;
    } else {
      for (const std::string_view known : section_names)
        if (name == known)
          in.fail_at(start, "section " + std::string(known) + " instead of " + std::string(section_names[next]));
    }
  }
  if (in.remaining() != 0) in.fail(std::to_string(in.remaining()) + " bytes behind the end");
  return trace;
}

}  // namespace poolgrad
