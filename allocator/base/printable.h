// Makes untrusted text (files, options, paths) safe for messages and terminals.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace poolgrad {

/// Keeps printable UTF-8 and replaces every other byte by `otherwise(byte)`: control characters, invalid UTF-8, and
/// characters that break lines or change their direction.
std::string visible_text(std::string_view text, const std::function<std::string(char)>& otherwise);

/// "\n", "\t" or "\x1b".
std::string visible_byte(char byte);

/// At most the first `most` bytes of `text` on one line, with visible_byte() for bytes that are not printable. A longer
/// text ends with "...". Messages show untrusted text only through this function.
std::string printable(std::string_view text, std::size_t most = 80);
/// The same between single quotes.
std::string in_quotes(std::string_view text);
/// printable() up to the length of the longest path.
std::string printable_path(std::string_view path);
/// The same for a report of several lines: keeps line breaks and tabs, and cuts nothing.
std::string printable_lines(std::string_view text);

}  // namespace poolgrad
