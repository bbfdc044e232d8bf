#include "allocator/stream.h"

#include <vector>

namespace poolgrad {

namespace {

// Streams other than the default that are current on this thread: a handful at most, so a list is the fastest map.
std::vector<Stream>& overrides() {
  thread_local std::vector<Stream> streams;
  return streams;
}

void set_current(Stream stream) {
  for (Stream& current : overrides()) {
    if (current.device == stream.device) {
      current = stream;
      return;
    }
  }
  overrides().push_back(stream);
}

}  // namespace

Stream current_stream(Device device) {
  for (const Stream& stream : overrides()) {
    if (stream.device == device) return stream;
  }
  return Stream{device, 0};
}

StreamGuard::StreamGuard(Stream stream) : previous_(current_stream(stream.device)) { set_current(stream); }

StreamGuard::~StreamGuard() { set_current(previous_); }

}  // namespace poolgrad
