// Numbers that a user writes: in options, settings and variables of the environment.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace poolgrad {

/// The whole text as a number; nothing where it is none, or none that the type holds.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace poolgrad
