#include "allocator/device.h"

#include <vector>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/stream.h"

namespace poolgrad {

namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw ValueError("[device] expected cpu, cuda, cuda:N, sim or sim:N with N from 0 to 255, got " + in_quotes(text) +
                   "");
}

}  // namespace

Device Device::parse(std::string_view text) {
  if (text == "cpu") return cpu;
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  if (kind != "cuda" && kind != "sim") refuse(text);
  Device device{kind == "cuda" ? DeviceType::cuda : DeviceType::sim, 0};
  if (colon == std::string_view::npos) return device;
  const auto index = number_in<std::uint8_t>(text.substr(colon + 1));
  if (!index) refuse(text);
  device.index = *index;
  return device;
}

std::string to_string(Device device) {
  switch (device.type) {
    case DeviceType::cpu: return "cpu";
    case DeviceType::cuda: return "cuda:" + std::to_string(device.index);
    case DeviceType::sim: return "sim:" + std::to_string(device.index);
  }
  return "unknown";
}

namespace {

// The current streams of this thread, without default streams: a handful, so a list is the fastest map.
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
