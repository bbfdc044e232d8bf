// Columns of numbers and JSON as text inside a page.
#include "examples/lab/page_data.h"

namespace poolgrad::examples {

namespace {

std::string base64(const std::string& bytes) {
  static constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      group = (group << 8) | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    for (std::size_t digit = 0; digit < 4; ++digit)
      text += i + digit > bytes.size() ? '=' : digits[(group >> (18 - 6 * digit)) & 63];
  }
  return text;
}

}  // namespace

std::string pack_column(const std::vector<std::uint64_t>& values) {
  std::string bytes;
  std::uint64_t before = 0;
  for (const std::uint64_t value : values) {
    const std::uint64_t difference = value - before;
    std::uint64_t zigzag = (difference << 1) ^ (difference >> 63 ? ~std::uint64_t{0} : 0);
    before = value;
    for (; zigzag >= 0x80; zigzag >>= 7) bytes += static_cast<char>((zigzag & 0x7f) | 0x80);
    bytes += static_cast<char>(zigzag);
  }
  return base64(bytes);
}

std::string embeddable(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    switch (c) {
      case '<': text += "\\u003c"; break;
      case '>': text += "\\u003e"; break;
      case '&': text += "\\u0026"; break;
      case '/':
        if (text.ends_with('/')) text += '\\';  // "//" would look like a reference
        text += '/';
        break;
      default: text += c;
    }
  }
  return text;
}

}  // namespace poolgrad::examples
