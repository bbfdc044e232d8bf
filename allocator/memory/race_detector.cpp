#include "allocator/memory/race_detector.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>

#include "allocator/error.h"
#include "allocator/memory_scope.h"

namespace poolgrad {

namespace {

std::string text_of(const std::source_location& place) {
  if (place.line() == 0) return "a release";  // the pool does not know the line
  return std::filesystem::path(place.file_name()).filename().string() + ":" + std::to_string(place.line()) + " (" +
         function_name(place.function_name()) + ")";
}

// Whether, as far as the clock knows, the use may still be in progress.
constexpr auto may_go_on = [](const auto& use, const auto& clock) {
  const auto known = clock.find(use.stream);
  return known == clock.end() || known->second < use.epoch;
};

std::uintptr_t start_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

void RaceDetector::join(Clock& into, const Clock& from) {
  for (const auto& [stream, epoch] : from) {
    std::uint64_t& known = into[stream];
    known = std::max(known, epoch);
  }
}

RaceDetector::Clock& RaceDetector::clock_of(std::uint64_t stream) {
  Clock& clock = streams_[stream];
  // Later work on the stream comes after all waits of the program.
  join(clock, program_);
  if (clock[stream] == 0) clock[stream] = 1;
  return clock;
}

void RaceDetector::split(std::uintptr_t address) {
  const auto after = ranges_.lower_bound(address);
  if (after == ranges_.begin()) return;
  Range& before = std::prev(after)->second;
  if (before.end <= address) return;
  ranges_.emplace_hint(after, address, before);
  before.end = address;
}

RaceDetector::Ranges::iterator RaceDetector::first_in(std::uintptr_t start, std::uintptr_t end) {
  split(start);
  split(end);
  return ranges_.lower_bound(start);
}

void RaceDetector::forget(const void* address, std::size_t bytes) {
  const std::uintptr_t start = start_of(address);
  const auto first = first_in(start, start + bytes);
  ranges_.erase(first, ranges_.lower_bound(start + bytes));
}

void RaceDetector::report(const Race& race, std::uintptr_t start, std::size_t bytes, const std::string& later) {
  ++races_;
  std::ostringstream text;
  text << "[touch] " << later << " uses " << bytes << " bytes at 0x" << std::hex << start << std::dec << ", but stream "
       << race.earlier.stream << " of " << to_string(device()) << " has used " << race.bytes << " bytes of them at "
       << text_of(race.earlier.by) << ", and no event orders the two";
  throw DeviceError(text.str());
}

void RaceDetector::touch(const void* pointer, std::size_t bytes, Stream stream, std::source_location by,
                         Access access) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  Clock& clock = clock_of(stream.id);
  const Use present{.stream = stream.id, .epoch = clock[stream.id], .by = by, .access = access};
  const std::uintptr_t start = start_of(pointer);
  const auto first = first_in(start, start + bytes);
  const auto last = ranges_.lower_bound(start + bytes);
  const auto conflicts = [&](const Use& use) {
    return use.stream != stream.id && (access == Access::writes || use.access == Access::writes) &&
           may_go_on(use, clock);
  };
  std::optional<Race> race;
  std::uintptr_t known_to = start;
  Ranges fresh;  // not yet used
  for (auto range = first; range != last; ++range) {
    auto& [address, known] = *range;
    if (known_to < address) fresh[known_to] = {.end = address, .uses = {present}};
    known_to = known.end;
    const auto earlier = std::ranges::find_if(known.uses, conflicts);
    if (earlier != known.uses.end()) {
      // A race is reported once: from now on this stream owns the memory.
      if (!race) race = Race{*earlier, known.end - address};
      known.uses.clear();
    }
    std::erase_if(known.uses, [&](const Use& use) { return use.stream == stream.id && use.access == access; });
    known.uses.push_back(present);
  }
  if (known_to < start + bytes) fresh[known_to] = {.end = start + bytes, .uses = {present}};
  if (access == Access::writes) {
    ranges_.erase(first, last);
    ranges_[start] = {.end = start + bytes, .uses = {present}};
  } else {
    ranges_.merge(fresh);
  }
  if (race) {
    report(*race, start, bytes,
           "stream " + std::to_string(stream.id) + " of " + to_string(device()) + " at " + text_of(by));
  }
}

bool RaceDetector::move(void* from, void* to, std::size_t bytes) {
  const std::uintptr_t source = start_of(from);
  const std::uintptr_t target = start_of(to);
  {
    // Mapping changes take effect at once, not in stream order.
    const std::lock_guard lock(mutex_);
    for (auto range = first_in(source, source + bytes); range != ranges_.lower_bound(source + bytes); ++range) {
      for (const Use& use : range->second.uses) {
        if (may_go_on(use, program_))
          report({use, range->second.end - range->first}, source, bytes, "moving to other addresses");
      }
    }
  }
  if (!inner().move(from, to, bytes)) return false;
  const std::lock_guard lock(mutex_);
  forget(to, bytes);
  const auto first = first_in(source, source + bytes);
  const auto last = ranges_.lower_bound(source + bytes);
  Ranges moved;
  for (auto range = first; range != last; ++range) {
    range->second.end = range->second.end - source + target;
    moved[range->first - source + target] = std::move(range->second);
  }
  ranges_.erase(first, last);
  ranges_.merge(moved);
  return true;
}

void RaceDetector::decommit(void* address, std::size_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    forget(address, bytes);
  }
  inner().decommit(address, bytes);
}

void RaceDetector::unreserve(void* address, std::size_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    forget(address, bytes);
  }
  inner().unreserve(address, bytes);
}

EventId RaceDetector::record_event(Stream stream) {
  const EventId event = inner().record_event(stream);
  const std::lock_guard lock(mutex_);
  Clock& clock = clock_of(stream.id);
  events_[event] = clock;
  ++clock[stream.id];
  return event;
}

void RaceDetector::program_waits_for(EventId event) {
  const auto entry = events_.find(event);
  if (entry == events_.end()) return;
  join(program_, entry->second);
  events_.erase(entry);
}

bool RaceDetector::event_finished(EventId event) {
  if (!inner().event_finished(event)) return false;
  const std::lock_guard lock(mutex_);
  program_waits_for(event);
  return true;
}

void RaceDetector::stream_wait(Stream stream, EventId event) {
  inner().stream_wait(stream, event);
  const std::lock_guard lock(mutex_);
  const auto entry = events_.find(event);
  if (entry != events_.end()) join(clock_of(stream.id), entry->second);
}

void RaceDetector::synchronize(EventId event) {
  inner().synchronize(event);
  const std::lock_guard lock(mutex_);
  program_waits_for(event);
}

void RaceDetector::discard_event(EventId event) noexcept {
  {
    const std::lock_guard lock(mutex_);
    events_.erase(event);
  }
  inner().discard_event(event);
}

}  // namespace poolgrad
