#include "allocator/device.h"

#include <charconv>

#include "allocator/error.h"

namespace poolgrad {

namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw ValueError("[device] expected cpu, cuda, cuda:N, sim or sim:N with N from 0 to 255, got '" + std::string(text) +
                   "'");
}

}  // namespace

Device Device::parse(std::string_view text) {
  if (text == "cpu") return cpu;
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  Device device;
  if (kind == "cuda") {
    device.type = DeviceType::cuda;
  } else if (kind == "sim") {
    device.type = DeviceType::sim;
  } else {
    refuse(text);
  }
  if (colon == std::string_view::npos) return device;
  const std::string_view digits = text.substr(colon + 1);
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, device.index);
  if (error != std::errc() || stop != end) refuse(text);
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

}  // namespace poolgrad
