#include "tensor/internal/npy_header.h"

#include <array>
#include <charconv>
#include <cstdint>

#include "allocator/error.h"

namespace poolgrad {

namespace {

struct NpyType {
  DType dtype;
  std::string_view code;  // as NumPy writes it
};
constexpr std::array<NpyType, 7> npy_types{{{DType::f64, "<f8"},
                                            {DType::f32, "<f4"},
                                            {DType::f16, "<f2"},
                                            {DType::i64, "<i8"},
                                            {DType::i32, "<i4"},
                                            {DType::u8, "|u1"},
                                            {DType::boolean, "|b1"}}};

DType dtype_from(const std::string& descr) {
  for (const NpyType& type : npy_types)
    if (descr.size() == 3 && descr.substr(1) == type.code.substr(1)) {
      // The byte order of one byte says nothing.
      if (size_of(type.dtype) == 1 && std::string_view("|<>=").find(descr[0]) != std::string_view::npos)
        return type.dtype;
      if (descr[0] == '>') throw ValueError("big-endian data ('" + descr + "') is not supported");
      if (descr[0] == '<') return type.dtype;
    }
  throw ValueError("dtype '" + descr + "' is not supported (f2 f4 f8 i4 i8 u1 b1 are)");
}

/// A reader of the few Python literals that occur.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  /// Skips white space, then takes `c` if it comes next.
  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("expected '") + c + "'");
  }
  bool finished() {
    skip_space();
    return at_ == text_.size();
  }

  std::string string() {
    const char quote = take('\'') ? '\'' : '"';
    if (quote == '"') expect('"');
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) fail("a string without end");
    const std::string value(text_.substr(at_, end - at_));
    at_ = end + 1;
    return value;
  }
  bool boolean() {
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    fail("expected True or False");
  }
  std::int64_t integer() {
    std::int64_t value = 0;
    const char* end = text_.data() + text_.size();
    const auto [next, error] = std::from_chars(text_.data() + at_, end, value);
    if (error != std::errc() || value < 0) fail("expected a size below 2^63");
    at_ = static_cast<std::size_t>(next - text_.data());
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2
    return value;
  }
  Shape tuple() {
    Shape shape;
    expect('(');
    while (!take(')')) {
      skip_space();
      if (shape.rank() == max_rank) fail("more than " + std::to_string(max_rank) + " dimensions");
      shape.append(integer());
      const bool comma = take(',');
      if (comma) continue;
      if (shape.rank() == 1) fail("expected ','");  // "(3)" is a number
      expect(')');
      break;
    }
    return shape;
  }
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw ValueError(reason + " at character " + std::to_string(at_) + " of the header");
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text) {
  NpyHeader header;
  bool descr = false, order = false, shape = false;
  Parser parser(text);
  parser.expect('{');
  while (!parser.take('}')) {
    const std::string key = parser.string();
    bool& seen = key == "descr" ? descr : key == "fortran_order" ? order : shape;
    if (seen || (&seen == &shape && key != "shape")) parser.fail("unexpected key '" + key + "'");
    seen = true;
    parser.expect(':');
    parser.skip_space();
    if (&seen == &descr)
      header.dtype = dtype_from(parser.string());
    else if (&seen == &order)
      header.fortran_order = parser.boolean();
    else
      header.shape = parser.tuple();
    if (parser.take(',')) continue;
    parser.expect('}');
    break;
  }
  if (!parser.finished()) parser.fail("unexpected text");
  if (!descr || !order || !shape) throw ValueError("one of 'descr', 'fortran_order' and 'shape' is missing");
  return header;
}

std::string npy_header(const NpyHeader& header) {
  std::string_view code;
  for (const NpyType& type : npy_types)
    if (type.dtype == header.dtype) code = type.code;
  if (code.empty()) throw DTypeError("[save_npy] npy files have no dtype for " + std::string(to_string(header.dtype)));
  std::string text = "{'descr': '" + std::string(code) +
                     "', 'fortran_order': " + (header.fortran_order ? "True" : "False") +
                     ", 'shape': " + to_string(header.shape) + ", }";
  constexpr std::size_t preamble = 10, alignment = 64;
  text.append((alignment - (preamble + text.size() + 1) % alignment) % alignment, ' ');
  text += '\n';
  std::string out = "\x93NUMPY";
  out += '\x01';
  out += '\0';
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

}  // namespace poolgrad
