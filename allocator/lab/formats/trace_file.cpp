#include "allocator/lab/formats/trace_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "allocator/base/atomic_file.h"
#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/lab/formats/trace_parts.h"
#include "allocator/memory/host_memory.h"
#include "allocator/trace/bytes.h"

namespace poolgrad {

namespace {

constexpr std::array<std::string_view, 5> names = {"pgt", "pickle", "json", "csv", "chrome"};
constexpr std::size_t shown_by_viewers = 300'000;
constexpr std::size_t longest_head = 4096;  // bytes that identify the format

TraceFormat format_of_bytes(std::string_view bytes, const std::string& path) {
  if (bytes.starts_with(pgt_magic)) return TraceFormat::pgt;
  if (bytes.starts_with('\x80')) return TraceFormat::pytorch_pickle;
  if (bytes.starts_with("Thread,") || bytes.starts_with("time,")) return TraceFormat::csv;
  // RMM's text log starts with '[', but has no quotes before its title.
  const std::size_t title = bytes.substr(0, longest_head).find("RMM LOG BEGIN");
  if (title != std::string_view::npos && bytes.find('"') > title)
    throw FileError("[read] " + printable_path(path) +
                    ": RMM's text log cannot be read; logging_resource_adaptor writes a CSV log that can");
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  const std::string_view text = first == std::string_view::npos ? std::string_view() : bytes.substr(first);
  if (text.starts_with('{') || text.starts_with('[')) return TraceFormat::pytorch_json;
  throw FileError("[read] " + printable_path(path) +
                  ": byte 0: neither a .pgt file, a memory snapshot, a CSV log nor JSON");
}

std::vector<Trace> decode(std::string_view bytes, TraceFormat format, const std::string& path) {
  switch (format) {
    case TraceFormat::pgt: return {decode_pgt(bytes, path)};
    case TraceFormat::pytorch_pickle:
    case TraceFormat::pytorch_json: return decode_pytorch_snapshot(bytes, path);
    case TraceFormat::csv: return {decode_csv(bytes, path)};
    case TraceFormat::chrome: break;  // JSON that the reader of snapshots refuses
  }
  return {};
}

/// Returns read(), which needs at least `bytes` of memory. Throws FileError if the machine has less: with overcommit,
/// the system would kill the process.
template <class Read>
auto with_memory_for(const std::string& path, std::uintmax_t bytes, const Read& read) {
  const auto refusal = [&] {
    return FileError("[read] " + printable_path(path) + ": this machine has no memory to read a trace of " +
                     format_bytes(bytes));
  };
  if (bytes > HostMemory().info().total) throw refusal();
  try {
    return read();
  } catch (const std::bad_alloc&) {
    throw refusal();
  } catch (const std::length_error&) {
    throw refusal();
  }
}

std::string encode(const WindowedTrace& window, TraceFormat format) {
  switch (format) {
    case TraceFormat::pgt: return encode_pgt(window.trace);
    case TraceFormat::pytorch_pickle: return encode_pytorch_snapshot(std::span(&window, 1), SnapshotEncoding::pickle);
    case TraceFormat::pytorch_json: return encode_pytorch_snapshot(std::span(&window, 1), SnapshotEncoding::json);
    case TraceFormat::csv: return encode_rmm_csv(window);
    case TraceFormat::chrome: return encode_chrome_trace(window);
  }
  throw ValueError("[save_trace] unknown format " + std::to_string(static_cast<int>(format)));
}

}  // namespace

std::string read_whole_file(const std::string& path, std::uintmax_t most) {
  const auto fail = [&](const std::string& reason) {
    throw FileError("[read] " + printable_path(path) + ": " + reason);
  };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) fail(opening_failure(error ? error.value() : ENOENT));
  if (!std::filesystem::is_regular_file(status)) fail("not a regular file");
  std::ifstream file(path, std::ios::binary);
  const std::uintmax_t size = file ? std::min(std::filesystem::file_size(path, error), most) : 0;
  if (!file || error) fail(opening_failure(errno));
  return with_memory_for(path, size, [&] {
    std::string bytes(static_cast<std::size_t>(size), '\0');
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size())))
      fail("the file became shorter while it was read");
    return bytes;
  });
}

std::string_view to_string(TraceFormat format) {
  const auto index = static_cast<std::size_t>(format);
  return index < names.size() ? names[index] : "invalid";
}

TraceFormat parse_trace_format(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<TraceFormat>(i);
  throw ValueError("[trace] unknown format " + in_quotes(name) + "; known formats: pgt, pickle, json, csv, chrome");
}

TraceFormat format_of(const std::string& path) { return format_of_bytes(read_whole_file(path, longest_head), path); }

std::vector<Trace> load_traces(const std::string& path) {
  const TraceFormat format = format_of(path);  // from the first bytes, before reading the file
  const std::string bytes = read_whole_file(path);
  return with_memory_for(path, bytes.size(), [&] {
    std::vector<Trace> traces = decode(bytes, format, path);
    const auto naming = format == TraceFormat::pgt ? AllocationNames::numbers : AllocationNames::addresses;
    for (const Trace& trace : traces)
      if (const auto fault = fault_of(trace, naming))
        throw FileError("[read] " + printable_path(path) + ": the trace contradicts itself: " + *fault);
    return traces;
  });
}

Trace load_trace(const std::string& path) {
  for (Trace& trace : load_traces(path))
    if (!trace.events.empty() || !trace.blocks.empty()) return std::move(trace);
  return {};
}

std::string save_trace(const std::string& path, const Trace& trace, TraceFormat format, const TraceWindow& window) {
  // Our own format stores a trace unchanged, including contradictions.
  const bool whole = window.from == 0 && window.to >= trace.events.size() && window.min_size == 0;
  if (format == TraceFormat::pgt && whole) {
    write_file_atomically(path, encode_pgt(trace));
    return "";
  }
  const WindowedTrace cut = cut_trace(trace, window);
  write_file_atomically(path, encode(cut, format));
  std::string warning;
  if (cut.contradictions > 0)
    warning += std::to_string(cut.contradictions) + " events contradict the others and were left out. ";
  const bool viewed = format == TraceFormat::pytorch_pickle || format == TraceFormat::pytorch_json;
  if (viewed && cut.trace.events.size() > shown_by_viewers)
    warning += std::to_string(cut.trace.events.size()) + " events are more than the " +
               std::to_string(shown_by_viewers) +
               " that the memory viewer shows with ease: choose a part by --from, --to or --min-size. ";
  if (!warning.empty()) warning.pop_back();
  return warning;
}

}  // namespace poolgrad
