// Text from outside, such as a file, an option or a path holds, as messages and terminals show it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace poolgrad {

/// Printable UTF-8 of `text` as it is; `otherwise(byte)` replaces every other byte: control characters, invalid UTF-8,
/// and the characters that break lines or change their direction.
std::string visible_text(std::string_view text, const std::function<std::string(char)>& otherwise);

/// "\n", "\t" or "\x1b".
std::string visible_byte(char byte);

/// At most the first `most` bytes of `text` on one line, with visible_byte() in place of bytes that are not printable.
/// A longer text ends with "...". Messages show text from outside only through this function.
std::string printable(std::string_view text, std::size_t most = 80);
/// The same between single quotes.
std::string in_quotes(std::string_view text);
/// printable() of as many bytes as a path may have.
std::string printable_path(std::string_view path);
/// The same for a report of several lines: line breaks and tabs stay, and nothing is cut.
std::string printable_lines(std::string_view text);

}  // namespace poolgrad
