#include "allocator/lab/formats/trace_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/base/rounding.h"
#include "allocator/base/salted_map.h"
#include "allocator/error.h"
#include "allocator/lab/formats/address_map.h"
#include "allocator/lab/formats/trace_parts.h"
#include "allocator/trace/bytes.h"

namespace poolgrad {

namespace {

constexpr std::string_view header = "Thread,Time,Action,Pointer,Size,Stream",
                           plain_header = "time,action,id,size,stream";
constexpr std::uint64_t second_us = 1'000'000, day_us = 24 * 60 * 60 * second_us;
constexpr std::uint64_t page = std::uint64_t{2} << 20;

// --- writing

void write_padded(ByteWriter& out, std::uint64_t value, std::size_t digits) {
  char* to = out.room(digits);
  for (std::size_t i = digits; i-- > 0; value /= 10) to[i] = static_cast<char>('0' + value % 10);
  out.wrote(digits);
}

void write_line(ByteWriter& out, std::uint64_t time_us, std::string_view action, std::uint64_t pointer,
                std::uint64_t size, std::uint64_t stream) {
  const std::uint64_t in_day = time_us % day_us, seconds = in_day / second_us;
  out.raw("1,");
  write_padded(out, seconds / 3600, 2);
  out.u8(':');
  write_padded(out, seconds / 60 % 60, 2);
  out.u8(':');
  write_padded(out, seconds % 60, 2);
  out.u8('.');
  write_padded(out, in_day % second_us, 6);
  out.u8(',');
  out.raw(action);
  out.raw(pointer == 0 ? ",(nil)" : ",0x");
  if (pointer != 0) out.digits(pointer, 16);
  out.u8(',');
  out.digits(size);
  out.raw(stream == 0 ? "," : ",0x");
  out.digits(stream, 16);
  out.u8('\n');
}

// --- reading

class CsvReader {
 public:
  CsvReader(std::string_view bytes, const std::string& path) : rest_(bytes), path_(path) {}

  Trace read() {
    std::string_view line;
    if (!next_line(line) || (line != header && line != plain_header))
      fail("the header is neither '" + std::string(header) + "' nor '" + std::string(plain_header) + "'");
    const bool plain = line == plain_header;
    trace_.device = {DeviceType::cuda, 0};
    while (next_line(line))
      if (!line.empty()) plain ? read_plain_line(line) : read_line(line);
    if (trace_.streams.empty()) trace_.streams.push_back(0);
    trace_.start_us = start_us_;
    add_blocks();
    number_allocations(trace_);
    return std::move(trace_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw FileError("[read] " + printable_path(path_) + ": line " + std::to_string(line_) + ": " + reason);
  }

  bool next_line(std::string_view& line) {
    if (rest_.empty()) return false;
    const std::size_t end = rest_.find('\n');
    line = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++line_;
    return true;
  }

  std::uint64_t number(std::string_view text, const char* what, int base = 10) const {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (text.empty() || error != std::errc() || end != text.data() + text.size())
      fail(in_quotes(text) + " is not a valid " + what);
    return value;
  }
  // Streams and pointers as printf and iostreams show them.
  std::uint64_t pointer(std::string_view text, const char* what) const {
    if (text == "(nil)" || text == "nullptr") return 0;
    if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
    return number(text, what, 16);
  }

  // "12:34:56.123456", in microseconds; fewer digits of the fraction are fine.
  std::uint64_t time_of_day(std::string_view text) const {
    const auto bad = [&] { fail(in_quotes(text) + " is not a time HH:MM:SS.ffffff"); };
    if (text.size() < 8 || text.size() > 15 || text[2] != ':' || text[5] != ':') bad();
    const std::uint64_t hours = number(text.substr(0, 2), "hour"), minutes = number(text.substr(3, 2), "minute"),
                        seconds = number(text.substr(6, 2), "second");
    if (hours > 23 || minutes > 59 || seconds > 60) bad();
    std::uint64_t fraction = 0;
    if (text.size() > 8) {
      if ((text[8] != '.' && text[8] != ':') || text.size() == 9) bad();
      fraction = number(text.substr(9), "fraction of a second");
      for (std::size_t digits = text.size() - 9; digits < 6; ++digits) fraction *= 10;
    }
    return (hours * 3600 + minutes * 60 + seconds) * second_us + fraction;
  }

  // Nanoseconds since the first line.
  std::uint64_t time(std::string_view text) {
    const std::uint64_t now = time_of_day(text);
    if (trace_.events.empty()) start_us_ = latest_us_ = now;
    std::uint64_t at = latest_us_ - latest_us_ % day_us + now;
    if (at + day_us / 2 < latest_us_) at += day_us;
    if (at > latest_us_ + day_us / 2) at -= std::min(at, day_us);
    latest_us_ = std::max(latest_us_, at);
    return (latest_us_ - start_us_) * 1000;
  }

  template <std::size_t count>
  std::array<std::string_view, count> fields_of(std::string_view line) const {
    std::array<std::string_view, count> fields;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t comma = i + 1 < count ? line.find(',') : line.size();
      if (comma == std::string_view::npos)
        fail(std::to_string(count) + " fields wanted, " + std::to_string(i + 1) + " found");
      fields[i] = line.substr(0, comma);
      line = comma < line.size() ? line.substr(comma + 1) : std::string_view();
    }
    return fields;
  }

  void read_line(std::string_view line) {
    const auto [thread, when, action, address, size, stream] = fields_of<6>(line);
    TraceEvent event;
    event.time = time(when);
    event.address = pointer(address, "pointer");
    event.size = number(size, "size");
    event.stream = names_.stream(pointer(stream, "stream"));
    if (event.address > UINT64_MAX - page || event.size > UINT64_MAX - page - event.address)
      fail("addresses beyond 64 bits");
    if (action == "allocate") {
      event.kind = TraceKind::allocate;
    } else if (action == "free") {
      event.kind = TraceKind::free_requested;
      trace_.events.push_back(event);
      event.kind = TraceKind::free_completed;
    } else if (action == "allocate failure") {
      event.kind = TraceKind::out_of_memory;
      event.address = 0;
    } else {
      fail("unknown action " + in_quotes(action));
    }
    trace_.events.push_back(event);
  }

  // A log without addresses: each allocation gets its own, in order.
  void read_plain_line(std::string_view line) {
    const auto [when, action, id, size, stream] = fields_of<5>(line);
    const std::uint64_t now = number(when, "time in microseconds");
    if (trace_.events.empty()) start_us_ = latest_us_ = now;
    latest_us_ = std::max(latest_us_, now);
    if (latest_us_ - start_us_ > UINT64_MAX / 1000) fail("a time beyond 64 bits");
    TraceEvent event{.time = (latest_us_ - start_us_) * 1000, .size = number(size, "size")};
    event.stream = names_.stream(number(stream, "stream"));
    const bool allocates = action == "alloc";
    if (!allocates && action != "free") fail("unknown action " + in_quotes(action) + ", known are alloc and free");
    const auto [known, added] = plain_.try_emplace(number(id, "id"));
    PlainBlock& block = known->second;
    if (allocates && block.live) fail("id " + printable(id) + " is allocated while it is live");
    if (!allocates && !block.live && !added) fail("id " + printable(id) + " is freed twice");
    if (!allocates && !added && event.size != block.size)
      fail("id " + printable(id) + " of " + std::to_string(block.size) + " bytes is freed as " +
           std::to_string(event.size) + " bytes");
    if (allocates || added) {
      if (event.size > largest_plain || next_address_ > largest_plain) fail("addresses beyond 2^62");
      block.address = next_address_;
      block.size = event.size;
      next_address_ += round_up(std::max<std::uint64_t>(event.size, 1), std::uint64_t{512});
    }
    block.live = allocates;
    event.address = block.address;
    event.kind = allocates ? TraceKind::allocate : TraceKind::free_requested;
    trace_.events.push_back(event);
    if (allocates) return;
    event.kind = TraceKind::free_completed;
    trace_.events.push_back(event);
  }

  void add_blocks() {
    std::vector<CommittedPiece> pieces;
    AddressMap<BlockSnapshot> live;
    for (const TraceEvent& event : trace_.events) {
      if (event.kind == TraceKind::out_of_memory) continue;
      const std::uint64_t end = event.address + std::max<std::uint64_t>(event.size, 1);
      pieces.push_back({round_down(event.address, page), round_up(end, page), 0});
      if (live.find(event.address) != nullptr) live.erase(event.address);
      if (event.kind != TraceKind::allocate) continue;
      live.insert(event.address, {.address = event.address,
                                  .size = end - event.address,
                                  .state = BlockState::live,
                                  .stream = trace_.streams[event.stream],
                                  .requested = event.size,
                                  .tag = {}});
    }
    std::ranges::sort(pieces, {}, &CommittedPiece::begin);
    std::vector<CommittedPiece> joined;
    for (const CommittedPiece& piece : pieces) {
      if (joined.empty() || piece.begin > joined.back().end)
        joined.push_back({piece.begin, piece.end, joined.size()});
      else
        joined.back().end = std::max(joined.back().end, piece.end);
    }
    std::vector<BlockSnapshot> held;
    live.for_each([&](std::uint64_t, const BlockSnapshot& block) { held.push_back(block); });
    trace_.blocks = tile_blocks(joined, std::move(held));
  }

  std::string_view rest_;
  const std::string& path_;
  std::size_t line_ = 0;
  Trace trace_;
  TraceNames names_{trace_};
  std::uint64_t start_us_ = 0, latest_us_ = 0;

  static constexpr std::uint64_t largest_plain = std::uint64_t{1} << 62;
  struct PlainBlock {
    std::uint64_t address = 0, size = 0;
    bool live = false;
  };
  SaltedMap<PlainBlock> plain_;  // by id
  std::uint64_t next_address_ = page;
};

}  // namespace

std::string encode_rmm_csv(const WindowedTrace& window) {
  const Trace& trace = window.trace;
  ByteWriter out;
  out.raw(header);
  out.u8('\n');
  const std::uint64_t start = trace.start_us + (trace.events.empty() ? 0 : trace.events.front().time / 1000);
  for (const BlockSnapshot& block : window.before)
    if (block.state == BlockState::live)
      write_line(out, start, "allocate", block.address, block.requested, block.stream);
  for (const TraceEvent& event : trace.events) {
    const std::uint64_t time_us = trace.start_us + event.time / 1000, stream = trace.streams[event.stream];
    if (event.kind == TraceKind::allocate) write_line(out, time_us, "allocate", event.address, event.size, stream);
    if (event.kind == TraceKind::free_requested) write_line(out, time_us, "free", event.address, event.size, stream);
    if (event.kind == TraceKind::out_of_memory) write_line(out, time_us, "allocate failure", 0, event.size, stream);
  }
  return std::string(out.view());
}

Trace decode_csv(std::string_view bytes, const std::string& path) { return CsvReader(bytes, path).read(); }

}  // namespace poolgrad
