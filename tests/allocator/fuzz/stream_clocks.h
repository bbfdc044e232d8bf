// Tracks which stream's work is known to precede which other. The vector clocks are independent of the pool's own, so
// they can contradict it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "allocator/memory/device_memory.h"

namespace poolgrad::testing {

/// A use of memory by a stream. A destroyed name that is used again gets a new line of work.
struct StreamUse {
  std::size_t line = 0;
  std::uint64_t tick = 0;
};

class StreamClocks {
 public:
  /// Queues work on `stream`, and creates the stream if it does not exist.
  StreamUse use(std::uint64_t stream) { return use_line(line_of(stream)); }
  /// Does the same for a line of work. A line whose stream is destroyed gets no new work.
  StreamUse use_line(std::size_t line) {
    if (!ended_.contains(line)) ++at(clocks_[line], line);
    return {line, at(clocks_[line], line)};
  }
  std::size_t line_of(std::uint64_t stream) {
    const auto [entry, fresh] = lines_.try_emplace(stream, clocks_.size());
    if (fresh) clocks_.push_back(host_);
    return entry->second;
  }
  bool exists(std::uint64_t stream) const { return lines_.contains(stream); }
  /// Returns whether the stream was destroyed and its name not used since.
  bool destroyed(std::uint64_t stream) const { return destroyed_.contains(stream) && !exists(stream); }

  /// Returns whether later work on `stream` runs after `use`.
  bool ordered(StreamUse use, std::uint64_t stream) {
    const std::size_t line = line_of(stream);
    return use.line == line || at(clocks_[line], use.line) >= use.tick || finished(use);
  }
  /// Returns whether the host knows that `use` is over.
  bool finished(StreamUse use) { return at(host_, use.line) >= use.tick; }

  void record(std::uint64_t stream, EventId event) {
    std::vector<std::uint64_t>& clock = clocks_[line_of(stream)];
    join(clock, host_);
    events_[event] = clock;
  }
  void wait(std::uint64_t stream, EventId event) { join(clocks_[line_of(stream)], events_[event]); }
  void host_knows(EventId event) {
    join(host_, events_[event]);
    events_.erase(event);
  }
  void forget(EventId event) { events_.erase(event); }
  std::size_t open_events() const { return events_.size(); }

  void destroy(std::uint64_t stream) {
    destroyed_.insert(stream);
    const auto entry = lines_.find(stream);
    if (entry == lines_.end()) return;
    ended_.insert(entry->second);
    lines_.erase(entry);
  }

 private:
  using Clock = std::vector<std::uint64_t>;

  static std::uint64_t& at(Clock& clock, std::size_t line) {
    if (line >= clock.size()) clock.resize(line + 1);
    return clock[line];
  }
  static void join(Clock& into, const Clock& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
  }

  std::unordered_map<std::uint64_t, std::size_t> lines_;
  std::unordered_set<std::size_t> ended_;
  std::unordered_set<std::uint64_t> destroyed_;  // names
  std::vector<Clock> clocks_;                    // by line
  Clock host_;
  std::unordered_map<EventId, Clock> events_;
};

}  // namespace poolgrad::testing
