#include "tensor/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <string_view>
#include <vector>

#include "allocator/base/number.h"
#include "kernels/with_type.h"

namespace poolgrad {

// Formats numbers of equal width by NumPy's rules.

namespace {

/// Formats one value of a column.
using NumberWriter = std::function<std::string(double)>;

/// Returns the decimal digits that every value of the dtype keeps.
int decimal_digits(DType dtype) {
  return (significant_bits(dtype) - 1) * 301 / 1000;  // times log10(2), like std::numeric_limits
}

/// Formats a number independently of the locale.
std::string printed(std::chars_format format, int digits, double value) {
  std::string text(400 + static_cast<std::size_t>(digits), '\0');  // the largest double has 309 digits
  text.resize(static_cast<std::size_t>(
      std::to_chars(text.data(), text.data() + text.size(), value, format, digits).ptr - text.data()));
  return text;
}

/// Returns the digits after the first in the shortest scientific notation that identifies the value.
int shortest_digits(double value, DType dtype) {
  if (dtype == DType::f64 || dtype == DType::f32) {
    char buffer[64];
    const auto end =
        dtype == DType::f64
            ? std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific)
            : std::to_chars(buffer, buffer + sizeof buffer, static_cast<float>(value), std::chars_format::scientific);
    const std::string_view text(buffer, static_cast<std::size_t>(end.ptr - buffer));
    const std::size_t point = text.find('.');
    return point == std::string_view::npos ? 0 : static_cast<int>(text.find('e') - point) - 1;
  }
  int digits = 0;
  while (rounded(dtype, *number_in<double>(printed(std::chars_format::scientific, digits, value))) != value) ++digits;
  return digits;
}

/// A number split at the decimal point, with its exponent ("e+05" or "").
struct Parts {
  std::string whole, fraction, exponent;
};

Parts split(const std::string& text) {
  Parts parts;
  const std::size_t e = std::min(text.find('e'), text.size());
  const std::size_t point = std::min(text.find('.'), e);
  parts.whole = text.substr(0, point);
  if (point < e) parts.fraction = text.substr(point + 1, e - point - 1);
  parts.exponent = text.substr(e);
  return parts;
}

Parts scientific(double value, DType dtype, int precision) {
  Parts parts =
      split(printed(std::chars_format::scientific, std::min(precision, shortest_digits(value, dtype)), value));
  parts.fraction.erase(parts.fraction.find_last_not_of('0') + 1);
  return parts;
}

/// Only for values below 10^decimal_digits, whose integer part is exact.
Parts positional(double value, DType dtype, int precision) {
  const int digits = shortest_digits(value, dtype);
  const int exponent = std::atoi(split(printed(std::chars_format::scientific, digits, value)).exponent.c_str() + 1);
  Parts parts = split(printed(std::chars_format::fixed, std::clamp(digits - exponent, 0, precision), value));
  parts.fraction.erase(parts.fraction.find_last_not_of('0') + 1);
  return parts;
}

struct Widths {
  std::size_t whole = 0, fraction = 0, exponent = 0;

  void include(const Parts& parts) {
    whole = std::max(whole, parts.whole.size());
    fraction = std::max(fraction, parts.fraction.size());
    exponent = std::max(exponent, parts.exponent.size());
  }
};

bool wants_scientific(double smallest, double largest, DType dtype) {
  if (largest == 0) return false;
  return largest >= std::pow(10.0, std::min(8, decimal_digits(dtype))) || smallest < rounded(dtype, 1e-4) ||
         rounded(dtype, largest / smallest) > 1000;
}

/// Returns a formatter for floating values of `dtype`, all of one width. It prints the shortest digits that identify
/// each value in its dtype, at most `precision` after the point. Uses scientific notation for magnitudes that are
/// large, tiny or spread over more than three decades.
NumberWriter float_writer(const std::vector<double>& values, DType dtype, int precision) {
  double smallest = INFINITY, largest = 0;
  bool special = false, negative_infinity = false;
  for (const double value : values) {
    special |= !std::isfinite(value);
    negative_infinity |= value == -INFINITY;
    if (!std::isfinite(value) || value == 0) continue;
    smallest = std::min(smallest, std::abs(value));
    largest = std::max(largest, std::abs(value));
  }
  const bool exponents = wants_scientific(smallest, largest, dtype);

  Widths widths;
  for (const double value : values)
    if (std::isfinite(value))
      widths.include(exponents ? scientific(value, dtype, precision) : positional(value, dtype, precision));
  std::size_t right = widths.fraction + widths.exponent;
  if (special)
    widths.whole = std::max(widths.whole, std::max<std::size_t>(3 + negative_infinity, right + 1) - right - 1);

  return [=](double value) -> std::string {
    const auto padded_left = [](const std::string& text, std::size_t width) {
      return std::string(std::max(width, text.size()) - text.size(), ' ') + text;
    };
    if (!std::isfinite(value))
      return padded_left(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf", widths.whole + 1 + right);
    if (exponents) {
      const Parts parts = split(printed(std::chars_format::scientific, static_cast<int>(widths.fraction), value));
      std::string power = parts.exponent;
      power.insert(2, widths.exponent - power.size(), '0');
      return padded_left(parts.whole, widths.whole) + "." + parts.fraction + power;
    }
    const Parts parts = positional(value, dtype, precision);
    return padded_left(parts.whole, widths.whole) + "." + parts.fraction +
           std::string(widths.fraction - parts.fraction.size(), ' ');
  };
}

// Formats the array around the numbers.

/// Printed indices of a dimension; "..." follows the first `gap` of them if gap > 0.
struct Shown {
  std::vector<std::int64_t> indices;
  std::size_t gap = 0;
};

std::vector<Shown> choose_shown(const Shape& shape, bool summarise, std::int64_t edge) {
  std::vector<Shown> shown(static_cast<std::size_t>(shape.rank()));
  for (int d = 0; d < shape.rank(); ++d) {
    Shown& dimension = shown[static_cast<std::size_t>(d)];
    const bool cut = summarise && shape[d] > 2 * edge;
    if (cut) dimension.gap = static_cast<std::size_t>(edge);
    for (std::int64_t i = 0; i < shape[d]; ++i) {
      if (cut && i == edge) i = shape[d] - edge;
      dimension.indices.push_back(i);
    }
  }
  return shown;
}

/// Returns the printed elements in row-major order and reads no others.
template <class T>
std::vector<T> gather(const Tensor& tensor, const std::vector<Shown>& shown) {
  std::vector<std::int64_t> offsets{0};
  for (std::size_t d = 0; d < shown.size(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t offset : offsets)
      for (const std::int64_t i : shown[d].indices) next.push_back(offset + i * tensor.strides()[static_cast<int>(d)]);
    offsets = std::move(next);
  }
  std::vector<T> values(offsets.size());
  if (tensor.device().is_cpu())
    std::transform(offsets.begin(), offsets.end(), values.begin(),
                   [data = tensor.data<T>()](std::int64_t offset) { return data[offset]; });
  return values;
}

std::vector<std::string> to_words(const Tensor& tensor, const std::vector<Shown>& shown, int precision) {
  std::vector<std::string> words;
  with_type(tensor.dtype(), [&]<class T>(T) {
    if constexpr (std::is_same_v<T, bool>) {
      for (const std::uint8_t value : gather<bool>(tensor, shown))
        words.push_back(value ? (shown.empty() ? "True" : " True") : "False");
    } else if constexpr (std::is_integral_v<T>) {
      std::size_t width = 0;
      for (const T value : gather<T>(tensor, shown)) words.push_back(std::to_string(value));
      for (const std::string& word : words) width = std::max(width, word.size());
      for (std::string& word : words) word.insert(0, width - word.size(), ' ');
    } else {
      std::vector<double> values;
      for (const T value : gather<T>(tensor, shown)) values.push_back(narrowed<double>(value));
      const NumberWriter write = float_writer(values, tensor.dtype(), precision);
      for (const double value : values) words.push_back(write(value));
    }
  });
  return words;
}

std::string without_trailing_spaces(const std::string& line) { return line.substr(0, line.find_last_not_of(' ') + 1); }

/// Puts the words into nested brackets.
class Layout {
 public:
  Layout(const std::vector<std::string>& words, const std::vector<Shown>& shown) : words_(words), shown_(shown) {}

  /// Formats dimensions from d on; lines start with `indent` and have at most `width` characters.
  std::string nested(std::size_t d, const std::string& indent, std::size_t width) {
    if (d == shown_.size()) return words_[next_word_++];
    const bool row = d + 1 == shown_.size();
    const std::string text = row ? one_row(d, indent, width) : rows(d, indent, width);
    return "[" + text.substr(indent.size()) + "]";
  }

 private:
  std::string one_row(std::size_t d, const std::string& indent, std::size_t width) {
    std::string text, line = indent;
    const auto add = [&](const std::string& word) {
      if (line.size() + word.size() + 1 > width && line.size() > indent.size()) {
        text += without_trailing_spaces(line) + "\n";
        line = indent;
      }
      line += word;
    };
    for (std::size_t i = 0; i < shown_[d].indices.size(); ++i) {
      if (i > 0) line += ' ';
      if (i > 0 && i == shown_[d].gap) {
        add("...");
        line += ' ';
      }
      add(words_[next_word_++]);
    }
    return text + line;
  }

  std::string rows(std::size_t d, const std::string& indent, std::size_t width) {
    std::string text;
    const std::string separator(shown_.size() - d - 1, '\n');
    for (std::size_t i = 0; i < shown_[d].indices.size(); ++i) {
      if (i > 0) text += separator;
      if (i > 0 && i == shown_[d].gap) text += indent + "..." + separator;
      text += indent + nested(d + 1, indent + " ", width - 1);
    }
    return text;
  }

  const std::vector<std::string>& words_;
  const std::vector<Shown>& shown_;
  std::size_t next_word_ = 0;
};

}  // namespace

std::string to_string(const Tensor& tensor, const PrintOptions& options, CallSite) {
  if (!tensor.defined()) return "undefined";
  std::string text;
  if (tensor.numel() == 0) {
    text = tensor.dim() == 1 ? "[]" : "[] shape " + to_string(tensor.shape());
  } else {
    const Tensor source = tensor.device().is_cuda() ? tensor.on_host() : tensor;
    const auto shown =
        choose_shown(tensor.shape(), tensor.numel() > options.threshold, std::max(options.edge_items, 1));
    const std::vector<std::string> words = to_words(source, shown, std::max(options.precision, 0));
    text = Layout(words, shown).nested(0, " ", static_cast<std::size_t>(std::max(options.line_width, max_rank + 2)));
  }
  if (tensor.dtype() != DType::f32) text += " " + std::string(to_string(tensor.dtype()));
  if (!tensor.device().is_cpu()) text += " on " + to_string(tensor.device());
  return text;
}

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) { return stream << to_string(tensor); }
std::ostream& operator<<(std::ostream& stream, const Dims& dims) { return stream << to_string(dims); }
std::ostream& operator<<(std::ostream& stream, DType dtype) { return stream << to_string(dtype); }
std::ostream& operator<<(std::ostream& stream, Device device) { return stream << to_string(device); }

}  // namespace poolgrad
