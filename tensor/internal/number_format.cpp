#include "tensor/internal/number_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace poolgrad {

namespace {

/// The value rounded to the dtype.
double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::f64: return value;
    case DType::f16: return static_cast<double>(static_cast<float>(Half(static_cast<float>(value))));
    case DType::bf16: return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(value))));
    default: return static_cast<double>(static_cast<float>(value));
  }
}

/// Decimal digits that every value of the dtype keeps.
int decimal_digits(DType dtype) {
  switch (dtype) {
    case DType::f64: return 15;
    case DType::f16: return 3;
    case DType::bf16: return 2;
    default: return 6;
  }
}

std::string printed(const char* format, int digits, double value) {
  const int length = std::snprintf(nullptr, 0, format, digits, value);
  std::string text(static_cast<std::size_t>(length) + 1, '\0');
  std::snprintf(text.data(), text.size(), format, digits, value);
  text.pop_back();
  return text;
}

/// Digits after the first that the shortest identifying scientific notation has.
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
  while (rounded(std::strtod(printed("%.*e", digits, value).c_str(), nullptr), dtype) != value) ++digits;
  return digits;
}

/// A number split at the decimal point, its exponent apart ("e+05" or "").
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
  Parts parts = split(printed("%.*e", std::min(precision, shortest_digits(value, dtype)), value));
  parts.fraction.erase(parts.fraction.find_last_not_of('0') + 1);
  return parts;
}

/// Only for values below 10^decimal_digits, whose whole part is exact.
Parts positional(double value, DType dtype, int precision) {
  const int digits = shortest_digits(value, dtype);
  const int exponent = std::atoi(split(printed("%.*e", digits, value)).exponent.c_str() + 1);
  Parts parts = split(printed("%.*f", std::clamp(digits - exponent, 0, precision), value));
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
  return largest >= std::pow(10.0, std::min(8, decimal_digits(dtype))) || smallest < rounded(1e-4, dtype) ||
         rounded(largest / smallest, dtype) > 1000;
}

}  // namespace

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
      const Parts parts = split(printed("%.*e", static_cast<int>(widths.fraction), value));
      std::string power = parts.exponent;
      power.insert(2, widths.exponent - power.size(), '0');
      return padded_left(parts.whole, widths.whole) + "." + parts.fraction + power;
    }
    const Parts parts = positional(value, dtype, precision);
    return padded_left(parts.whole, widths.whole) + "." + parts.fraction +
           std::string(widths.fraction - parts.fraction.size(), ' ');
  };
}

}  // namespace poolgrad
