#include "allocator/memory/traced_memory.h"

#include <array>
#include <chrono>
#include <sstream>

namespace poolgrad {

std::string_view to_string(DeviceCall call) {
  constexpr std::array<std::string_view, 11> names = {"reserve",     "unreserve",   "commit",       "decommit",
                                                      "move",        "fill",        "record_event", "event_finished",
                                                      "stream_wait", "synchronize", "discard_event"};
  return names[static_cast<std::size_t>(call)];
}

std::string CallRecord::text() const {
  std::ostringstream text;
  text << to_string(call);
  if (bytes != 0) text << " " << bytes << " bytes";
  if (address != nullptr) text << " at " << address;
  if (to != nullptr) text << " to " << to;
  const bool speaks_of_a_stream =
      call == DeviceCall::fill || call == DeviceCall::record_event || call == DeviceCall::stream_wait;
  if (speaks_of_a_stream) text << " stream " << stream;
  if (event != 0) text << " event " << event;
  if (!succeeded) text << ": no";
  return text.str();
}

std::uint64_t TracedMemory::now() {
  const std::chrono::nanoseconds time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(time.count());
}

}  // namespace poolgrad
