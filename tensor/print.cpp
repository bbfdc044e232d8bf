#include "tensor/print.h"

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <vector>

#include "kernels/with_type.h"
#include "tensor/internal/number_format.h"

namespace poolgrad {

namespace {

/// Indices of a dimension that are shown; "..." follows the first `gap` of them, where gap > 0.
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

/// The shown elements in row-major order. Only they are read.
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
      for (const T value : gather<T>(tensor, shown)) values.push_back(as_double(value));
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

  /// Dimension d onwards; its lines begin with `indent` and are at most `width` wide.
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

std::string to_string(const Tensor& tensor, const PrintOptions& options) {
  if (!tensor.defined()) return "undefined";
  std::string text;
  if (tensor.count() == 0) {
    text = tensor.rank() == 1 ? "[]" : "[] shape " + to_string(tensor.shape());
  } else {
    const Tensor source = tensor.device().is_cuda() ? tensor.on_host() : tensor;
    const auto shown =
        choose_shown(tensor.shape(), tensor.count() > options.threshold, std::max(options.edge_items, 1));
    const std::vector<std::string> words = to_words(source, shown, std::max(options.precision, 0));
    text = Layout(words, shown).nested(0, " ", static_cast<std::size_t>(std::max(options.line_width, max_rank + 2)));
  }
  if (tensor.dtype() != DType::f32) text += " " + std::string(to_string(tensor.dtype()));
  if (!tensor.device().is_cpu()) text += " on " + to_string(tensor.device());
  return text;
}

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) { return stream << to_string(tensor); }

}  // namespace poolgrad
