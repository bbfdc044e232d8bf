// Reads untrusted JSON as a stream of events: nesting depth takes no stack memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace poolgrad {

/// Receives a JSON value in text order. A function may throw, which ends the parse.
class JsonEvents {
 public:
  JsonEvents() = default;
  virtual ~JsonEvents() = default;
  JsonEvents(const JsonEvents&) = delete;
  JsonEvents& operator=(const JsonEvents&) = delete;

  virtual void start_object() = 0;
  virtual void key(const std::string& name) = 0;
  virtual void end_object() = 0;
  virtual void start_array() = 0;
  virtual void end_array() = 0;
  virtual void string(const std::string& text) = 0;
  virtual void number_unsigned(std::uint64_t value) = 0;
  virtual void number_negative(std::int64_t value) = 0;
  virtual void number_float(double value) = 0;
  virtual void boolean(bool value) = 0;
  virtual void null() = 0;
};

/// Parses `text`, which must be one JSON value, with white space around it at most; a NUL byte is not white space.
/// Returns the position, from 1, of the first invalid character; none for valid JSON.
std::optional<std::size_t> parse_json(std::string_view text, JsonEvents& events);

}  // namespace poolgrad
