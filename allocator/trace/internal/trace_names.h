// Numbers the names of a trace that is being read: streams, scopes and locations, in order of first appearance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "allocator/trace/trace.h"

namespace poolgrad {

class TraceNames {
 public:
  explicit TraceNames(Trace& trace) : trace_(trace) {
    trace.streams = {};
    trace.scopes = {""};
    trace.locations = {{}};
  }

  std::uint32_t stream(std::uint64_t id) {
    const auto [entry, added] = streams_.try_emplace(id, trace_.streams.size());
    if (added) trace_.streams.push_back(id);
    return entry->second;
  }
  std::uint32_t scope(const std::string& path) {
    if (path.empty()) return 0;
    const auto [entry, added] = scopes_.try_emplace(path, trace_.scopes.size());
    if (added) trace_.scopes.push_back(path);
    return entry->second;
  }
  std::uint64_t location(std::string_view file, std::string_view function, std::uint32_t line) {
    const auto [entry, added] =
        locations_.try_emplace({{std::string(file), std::string(function)}, line}, trace_.locations.size());
    if (added) trace_.locations.push_back({std::string(file), std::string(function), line});
    return entry->second;
  }

 private:
  Trace& trace_;
  std::unordered_map<std::uint64_t, std::uint32_t> streams_;
  std::unordered_map<std::string, std::uint32_t> scopes_;
  std::map<std::pair<std::pair<std::string, std::string>, std::uint32_t>, std::uint64_t> locations_;
};

/// Numbers the allocations of a trace in order, as pytorch_snapshot_reader.h says, and gives frees and final blocks
/// what their allocation knows: number, category, scope and (frees) size.
void number_allocations(Trace& trace);

}  // namespace poolgrad
