#include "allocator/base/printable.h"

#include <algorithm>
#include <cstdint>

namespace poolgrad {

namespace {

constexpr std::size_t longest_path = 4096;  // bytes, PATH_MAX of Linux

/// Whether the character breaks a line or changes the text direction of a terminal.
bool changes_lines(std::uint32_t code) {
  return code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/// Bytes of the printable UTF-8 character at the start of `text`; 0 if it does not start with one.
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    code = code << 6 | (next & 0x3fu);
  }
  constexpr std::uint32_t least[] = {0xa0, 0x800, 0x10000};  // from 0x80 on: control characters
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < least[length - 2] || code > 0x10ffff || surrogate || changes_lines(code) ? 0 : length;
}

}  // namespace

std::string visible_text(std::string_view text, const std::function<std::string(char)>& otherwise) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(text.substr(i));
    result += length > 0 ? std::string(text.substr(i, length)) : otherwise(text[i]);
    i += std::max<std::size_t>(length, 1);
  }
  return result;
}

std::string visible_byte(char byte) {
  if (byte == '\n') return "\\n";
  if (byte == '\t') return "\\t";
  constexpr std::string_view digits = "0123456789abcdef";
  const auto bits = static_cast<unsigned char>(byte);
  return {'\\', 'x', digits[bits >> 4], digits[bits & 15u]};
}

std::string printable(std::string_view text, std::size_t most) {
  if (text.size() <= most) return visible_text(text, visible_byte);
  std::size_t end = most;  // never inside a character
  while (end > 0 && end + 3 > most && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return visible_text(text.substr(0, end), visible_byte) + "...";
}

std::string in_quotes(std::string_view text) { return "'" + printable(text) + "'"; }

std::string printable_path(std::string_view path) { return printable(path, longest_path); }

std::string printable_lines(std::string_view text) {
  return visible_text(text, [](char c) { return c == '\n' || c == '\t' ? std::string(1, c) : visible_byte(c); });
}

}  // namespace poolgrad
