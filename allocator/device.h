// The devices of tensors: `cpu`, `cuda:N`, or `sim:N` (a device with a capacity and a clock, but no bytes and no
// arithmetic).
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace poolgrad {

enum class DeviceType : std::uint8_t { cpu, cuda, sim };

/// A value type: kind and index. `cpu` has index 0 only.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::uint8_t index = 0;

  /// Parses "cpu", "cuda", "cuda:1", "sim", "sim:0"; throws ValueError on anything else.
  static Device parse(std::string_view text);

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  bool is_sim() const { return type == DeviceType::sim; }

  /// Compares both bytes at once; compilers would compare one after the other.
  friend constexpr bool operator==(Device a, Device b) noexcept {
    return std::bit_cast<std::uint16_t>(a) == std::bit_cast<std::uint16_t>(b);
  }
};

inline constexpr Device cpu{};

/// "cpu", "cuda:0", "sim:0".
std::string to_string(Device device);

}  // namespace poolgrad

template <>
struct std::hash<poolgrad::Device> {
  std::size_t operator()(const poolgrad::Device& device) const noexcept {
    return static_cast<std::size_t>(device.type) * 256 + device.index;
  }
};
