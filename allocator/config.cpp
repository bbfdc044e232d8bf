#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"

namespace poolgrad {

namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};

constexpr std::array<Unit, 11> units = {{{"", 1.0},
                                         {"b", 1.0},
                                         {"k", 0x1p10},
                                         {"kib", 0x1p10},
                                         {"mib", 0x1p20},
                                         {"gib", 0x1p30},
                                         {"tib", 0x1p40},
                                         {"kb", 1e3},
                                         {"mb", 1e6},
                                         {"gb", 1e9},
                                         {"tb", 1e12}}};

}  // namespace

std::size_t parse_bytes(const std::string& text) {
  const auto refuse = [&](const char* reason) -> ValueError {
    return ValueError("[parse_bytes] " + std::string(reason) + ": " + in_quotes(text) +
                      " (examples: 8GiB, 512MiB, 1.5GB, 4096)");
  };
  const std::string_view number = trimmed(text);
  const char* end = number.data() + number.size();
  if (number.empty() || std::isdigit(static_cast<unsigned char>(number.front())) == 0) {
    throw refuse("not a number of bytes");
  }
  std::size_t whole = 0;
  double value = 0.0;
  const auto integer = std::from_chars(number.data(), end, whole);
  const auto [stop, error] = std::from_chars(number.data(), end, value, std::chars_format::fixed);
  if (error != std::errc()) throw refuse("not a number of bytes");
  std::string suffix(trimmed(std::string_view(stop, static_cast<std::size_t>(end - stop))));
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Unit& unit : units) {
    if (suffix != unit.name) continue;
    // A plain integer is exact; other numbers are rounded down to a byte.
    if (integer.ptr == stop && unit.bytes == 1.0) {
      if (integer.ec != std::errc()) throw refuse("more bytes than 64 bits can count");
      return whole;
    }
    const double bytes = std::floor(value * unit.bytes);
    if (!(bytes < 0x1p64)) throw refuse("more bytes than 64 bits can count");
    return static_cast<std::size_t>(bytes);
  }
  throw refuse("not a number of bytes");
}

std::string format_bytes(std::size_t bytes) {
  constexpr std::array<const char*, 7> names = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.995 and more would print as 1024.00.
  while (value >= 1023.995 && unit + 1 < names.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 2).ptr;
  return std::string(text.data(), end) + " " + names[unit];
}

namespace {

constexpr std::array<std::string_view, 4> mode_names = {"default", "lightweight", "none", "planned"};

// How to read the value of a key, and how to write it.

std::size_t read_bytes(std::string_view, std::string_view value) { return parse_bytes(std::string(value)); }

// A plain number of events or allocations.
std::size_t read_count(std::string_view key, std::string_view value) {
  if (const auto count = number_in<std::size_t>(value)) return *count;
  throw ValueError("[allocator] " + std::string(key) + " must be a whole number, got " + in_quotes(value));
}

bool read_switch(std::string_view key, std::string_view value) {
  if (value == "on" || value == "1" || value == "true") return true;
  if (value == "off" || value == "0" || value == "false") return false;
  throw ValueError("[allocator] " + std::string(key) + " must be on or off, got " + in_quotes(value));
}

AllocatorMode read_mode(std::string_view, std::string_view value) {
  const auto* known = std::ranges::find(mode_names, value);
  if (known != mode_names.end()) return static_cast<AllocatorMode>(known - mode_names.begin());
  throw ValueError("[allocator] mode must be default, lightweight, none or planned, got " + in_quotes(value));
}

std::string value_text(std::size_t value) { return std::to_string(value); }
std::string value_text(bool value) { return value ? "on" : "off"; }
std::string value_text(AllocatorMode value) { return std::string(to_string(value)); }

struct Option {
  std::string_view key;
  void (*read)(AllocatorConfig& config, std::string_view key, std::string_view value);
  std::string (*text)(const AllocatorConfig& config);
};

template <auto field, auto read>
constexpr Option option(std::string_view key) {
  return {
      key,
      [](AllocatorConfig& config, std::string_view name, std::string_view value) { config.*field = read(name, value); },
      [](const AllocatorConfig& config) { return value_text(config.*field); }};
}

constexpr std::array options = {
    option<&AllocatorConfig::alignment, read_bytes>("alignment"),
    option<&AllocatorConfig::budget, read_bytes>("budget"),
    option<&AllocatorConfig::decay, read_count>("decay"),
    option<&AllocatorConfig::decay_ms, read_count>("decay_ms"),
    option<&AllocatorConfig::deterministic, read_switch>("deterministic"),
    option<&AllocatorConfig::magazines, read_switch>("magazines"),
    option<&AllocatorConfig::mode, read_mode>("mode"),
    option<&AllocatorConfig::poison, read_switch>("poison"),
    option<&AllocatorConfig::races, read_switch>("races"),
    option<&AllocatorConfig::stitch, read_switch>("stitch"),
    option<&AllocatorConfig::stitch_idle, read_switch>("stitch_idle"),
    option<&AllocatorConfig::trace, read_count>("trace"),
};

}  // namespace

std::string_view to_string(AllocatorMode mode) {
  const auto index = static_cast<std::size_t>(mode);
  return index < mode_names.size() ? mode_names[index] : "invalid";
}

AllocatorConfig AllocatorConfig::parse(const std::string& text) {
  AllocatorConfig config;
  for (const std::string& part : split(text, ',')) {
    const std::string_view item = trimmed(part);
    if (item.empty()) continue;
    const std::size_t colon = item.find(':');
    const std::string_view key = trimmed(item.substr(0, colon));
    const std::string_view value =
        colon == std::string_view::npos ? std::string_view() : trimmed(item.substr(colon + 1));
    const auto* option = std::ranges::find(options, key, &Option::key);
    if (option == options.end()) {
      std::string known;
      for (const Option& each : options) known += (known.empty() ? "" : ", ") + std::string(each.key);
      throw ValueError("[allocator] unknown option " + in_quotes(key) + " in " + in_quotes(text) +
                       "; known options: " + known);
    }
    option->read(config, key, value);
  }
  return config;
}

std::string AllocatorConfig::text() const {
  const AllocatorConfig defaults;
  std::string text;
  for (const Option& option : options) {
    const std::string value = option.text(*this);
    if (value == option.text(defaults)) continue;
    text += (text.empty() ? "" : ",") + std::string(option.key) + ":" + value;
  }
  return text;
}

AllocatorConfig AllocatorConfig::from_environment() {
  const char* text = std::getenv("POOLGRAD_ALLOCATOR");
  return text == nullptr ? AllocatorConfig{} : parse(text);
}

}  // namespace poolgrad
