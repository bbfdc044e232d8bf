#include "tensor/npy.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "allocator/base/atomic_file.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "tensor/host_bytes.h"
#include "tensor/input_file.h"

namespace poolgrad {

namespace {

/// Type codes as NumPy writes them.
constexpr std::pair<DType, std::string_view> npy_types[] = {
    {DType::f64, "<f8"}, {DType::f32, "<f4"}, {DType::f16, "<f2"},    {DType::i64, "<i8"},
    {DType::i32, "<i4"}, {DType::u8, "|u1"},  {DType::boolean, "|b1"}};

DType dtype_from(const std::string& descr) {
  for (const auto& [dtype, code] : npy_types)
    if (descr.size() == 3 && descr.substr(1) == code.substr(1)) {
      // Byte order is irrelevant for one byte.
      if (size_of(dtype) == 1 && std::string_view("|<>=").find(descr[0]) != std::string_view::npos) return dtype;
      if (descr[0] == '>') throw ValueError("big-endian data (" + in_quotes(descr) + ") is not supported");
      if (descr[0] == '<') return dtype;
    }
  throw ValueError("dtype " + in_quotes(descr) + " is not supported (f2 f4 f8 i4 i8 u1 b1 are)");
}

/// Parser of the few Python literals in headers.
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
    if (end == std::string_view::npos) fail("an unterminated string");
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

/// The header: a Python dictionary with 'descr', 'fortran_order' and 'shape'.
struct NpyHeader {
  DType dtype = DType::f32;
  bool fortran_order = false;
  Shape shape;
};

/// Accepts exactly NumPy's format: the three keys once each, in any order. Throws ValueError with the reason.
NpyHeader parse_npy_header(std::string_view text) {
  NpyHeader header;
  bool descr = false, order = false, shape = false;
  Parser parser(text);
  parser.expect('{');
  while (!parser.take('}')) {
    const std::string key = parser.string();
    bool& seen = key == "descr" ? descr : key == "fortran_order" ? order : shape;
    if (seen || (&seen == &shape && key != "shape")) parser.fail("unexpected key " + in_quotes(key));
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

/// Returns magic, version 1.0, length and dictionary, padded with spaces so that the data starts at a multiple of 64
/// bytes.
std::string npy_header(DType dtype, const Shape& shape) {
  const auto* type = std::ranges::find(npy_types, dtype, &std::pair<DType, std::string_view>::first);
  if (type == std::end(npy_types))
    throw DTypeError("[save_npy] npy files have no dtype for " + std::string(to_string(dtype)));
  std::string text =
      "{'descr': '" + std::string(type->second) + "', 'fortran_order': False, 'shape': " + to_string(shape) + ", }";
  constexpr std::size_t preamble = 10, alignment = 64;
  text.append((alignment - (preamble + text.size() + 1) % alignment) % alignment, ' ');
  text += '\n';
  const char length[] = {static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return std::string("\x93NUMPY\x01\0", 8) + std::string(length, 2) + text;
}

}  // namespace

Tensor load_npy(const std::string& path, CallSite) {
  const InputFile file("load_npy", path);
  const std::string magic = file.read_text(0, std::min<std::size_t>(8, file.size()));
  if (magic.size() < 8 || !magic.starts_with("\x93NUMPY"))
    file.fail("not an npy file: its " + std::to_string(file.size()) + " bytes do not begin with '\\x93NUMPY'");
  const int major = static_cast<unsigned char>(magic[6]), minor = static_cast<unsigned char>(magic[7]);
  if (major < 1 || major > 3 || minor != 0)
    file.fail_at(6, "unknown version " + std::to_string(major) + "." + std::to_string(minor));

  const std::size_t width = major == 1 ? 2 : 4;  // of the header's length
  std::uint32_t length = 0;
  file.read(8, &length, width);
  constexpr std::uint32_t longest = 1 << 16;  // three keys need no more
  if (length > longest) file.fail_at(8, "a header of " + std::to_string(length) + " bytes");
  const std::string text = file.read_text(8 + width, length);
  NpyHeader header;
  try {
    header = parse_npy_header(text);
  } catch (const ValueError& error) {
    file.fail_at(8 + width, error.what());
  }

  const std::uint64_t begin = 8 + width + length;
  std::uint64_t bytes = 0;
  if (!tensor_bytes(header.shape, header.dtype, bytes) || bytes != file.size() - begin)
    file.fail_at(begin, "shape " + to_string(header.shape) + " " + std::string(to_string(header.dtype)) +
                            " does not fit the " + std::to_string(file.size() - begin) + " bytes of data");
  if (!header.fortran_order) return file.read_tensor(begin, header.shape, header.dtype, cpu);

  // Column-major data are the row-major data of the transposed tensor.
  Shape reversed = header.shape;
  Dims order = Dims::filled(reversed.rank(), 0);
  std::reverse(reversed.begin(), reversed.end());
  for (int d = 0; d < order.rank(); ++d) order[d] = order.rank() - 1 - d;
  const Tensor transposed = file.read_tensor(begin, reversed, header.dtype, cpu);
  return transposed.alias(permuted(transposed.geometry(), order)).copy();
}

void save_npy(const std::string& path, const Tensor& tensor, CallSite) {
  const std::string header = npy_header(tensor.dtype(), tensor.shape());
  AtomicFile file(path);
  file.write(header);
  read_bytes(tensor, [&](const void* piece, std::size_t bytes) { file.write(piece, bytes); });
  file.commit();
}

}  // namespace poolgrad
