#include "autograd/testing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <limits>
#include <random>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "kernels/functors/philox.h"
#include "tensor/creation.h"
#include "tensor/print.h"

namespace poolgrad {
namespace {

/// Reverses 20 bits: 0, 1, 2, 3, ... become 0, 1/2, 1/4, 3/4, ... (van der Corput), the simplest first.
double simple_fraction(std::uint64_t choice) {
  double fraction = 0.0;
  for (double bit = 0.5; choice != 0; choice >>= 1, bit /= 2)
    if (choice & 1) fraction += bit;
  return fraction;
}
constexpr std::uint64_t simple_fractions = 1 << 20;

const char* name_of(LayoutKind layout) {
  constexpr std::array names = {"contiguous", "transposed", "sliced", "expanded"};
  return names[static_cast<std::size_t>(layout)];
}

bool applies(LayoutKind layout, int rank) {
  return layout == LayoutKind::contiguous || rank > (layout == LayoutKind::transposed ? 1 : 0);
}

/// Returns `dense` as a view of `shape`. Its size along `repeated` is 1 if the layout repeats that dimension.
Tensor laid_out(const Tensor& dense, const Shape& shape, LayoutKind layout, int repeated) {
  if (layout == LayoutKind::contiguous) return dense;
  if (layout == LayoutKind::expanded) {
    Strides strides = contiguous_strides(dense.shape());
    strides[repeated] = 0;
    return dense.alias({shape, strides, 0});
  }
  if (layout == LayoutKind::transposed) {
    Strides strides = Strides::filled(shape.rank(), 1);
    for (int d = 1; d < shape.rank(); ++d) strides[d] = strides[d - 1] * std::max<std::int64_t>(shape[d - 1], 1);
    return Tensor::empty(shape, dense.options()).alias({shape, strides, 0}).copy_from(dense);
  }
  const int last = shape.rank() - 1;
  Shape wide = shape;
  wide[last] *= 2;
  Strides strides = contiguous_strides(wide);
  strides[last] = 2;
  const double between = is_floating(dense.dtype()) ? std::numeric_limits<double>::quiet_NaN() : -1.0;
  return full(wide, between, dense.options()).alias({shape, strides, dense.numel() == 0 ? 0 : 1}).copy_from(dense);
}

struct FailedCase {
  std::vector<std::uint64_t> choices;
  std::string inputs, reason;
};

bool is_simpler(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

/// Returns nothing if the property holds.
std::optional<FailedCase> failure_of(const Property& property, Draw draw) {
  Verdict verdict;
  try {
    verdict = property(draw);
  } catch (const std::exception& error) {
    verdict = {false, fmt::format("the property threw {}", error.what())};
  }
  if (verdict) return std::nullopt;
  return FailedCase{draw.choices(), draw.text(), verdict.text};
}

/// Shrinks a failing case by removing choices and making them smaller.
class Shrinker {
 public:
  Shrinker(const Property& property, FailedCase failed, int limit)
      : property_(property), best_(std::move(failed)), limit_(limit) {}

  FailedCase run() {
    std::vector<std::uint64_t> before;
    do {
      before = best_.choices;
      for (const std::size_t block : std::initializer_list<std::size_t>{8, 4, 2, 1}) {
        each_block(block, [](auto& choices, auto first, auto last) { choices.erase(first, last); });
        each_block(block, [](auto&, auto first, auto last) { std::fill(first, last, 0); });
      }
      for (std::size_t i = 0; i < best_.choices.size(); ++i) lower(i);
    } while (best_.choices != before && runs_ < limit_);
    return best_;
  }
  int runs() const { return runs_; }

 private:
  /// From last to first: values become simple before the sizes in front of them.
  template <class Change>
  void each_block(std::size_t block, Change change) {
    for (std::size_t i = best_.choices.size(); i-- > 0;) {
      if (i + block > best_.choices.size()) continue;
      std::vector<std::uint64_t> choices = best_.choices;
      const auto first = choices.begin() + static_cast<std::ptrdiff_t>(i);
      change(choices, first, first + static_cast<std::ptrdiff_t>(block));
      accept(std::move(choices));
    }
  }

  /// Finds the smallest failing choice at i by bisection.
  void lower(std::size_t i) {
    for (std::uint64_t step = best_.choices[i]; step > 0 && i < best_.choices.size();) {
      std::vector<std::uint64_t> choices = best_.choices;
      choices[i] -= std::min(step, choices[i]);
      if (!accept(std::move(choices))) step /= 2;
    }
  }

  bool accept(std::vector<std::uint64_t> choices) {
    if (runs_ >= limit_ || !is_simpler(choices, best_.choices)) return false;
    ++runs_;
    std::optional<FailedCase> failed = failure_of(property_, Draw(std::move(choices)));
    if (!failed || !is_simpler(failed->choices, best_.choices)) return false;
    best_ = std::move(*failed);
    return true;
  }

  const Property& property_;
  FailedCase best_;
  const int limit_;
  int runs_ = 0;
};

std::uint64_t seed_of_environment() {
  const char* const text = std::getenv("POOLGRAD_TEST_SEED");
  if (text == nullptr || *text == '\0') return std::random_device{}();
  if (const auto seed = number_in<std::uint64_t>(text)) return *seed;
  throw ValueError(
      fmt::format("[check_property] POOLGRAD_TEST_SEED must be a whole number, but is {}", printable(text)));
}

/// Indents every line.
std::string indented(std::string text, std::size_t columns) {
  const std::string margin(columns, ' ');
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1))
    text.insert(at + 1, margin);
  return margin + text;
}

}  // namespace

std::uint64_t Draw::choose(std::uint64_t count) {
  if (count == 0) throw ValueError("[Draw] there is nothing to choose from");
  const std::size_t i = choices_.size();
  if (given_) {
    choices_.push_back(i < given_->size() ? std::min((*given_)[i], count - 1) : 0);
  } else {
    const kernels::PhiloxWords words = kernels::philox_block(seed_, 0, i);
    choices_.push_back(((std::uint64_t{words.word[0]} << 32) | words.word[1]) % count);
  }
  return choices_.back();
}

std::int64_t Draw::integer(std::int64_t low, std::int64_t high) {
  if (low > high) throw ValueError(fmt::format("[Draw] there is no whole number in [{}, {}]", low, high));
  const auto from = static_cast<std::uint64_t>(low), to = static_cast<std::uint64_t>(high);
  const auto value = static_cast<std::int64_t>(from + choose(to - from + 1));
  drawn_.emplace_back(fmt::format("integer {} of [{}, {}]", value, low, high), Tensor());
  return value;
}

std::int64_t Draw::size() {
  constexpr std::array<std::int64_t, 16> sizes = {0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8};
  return sizes[static_cast<std::size_t>(choose(sizes.size()))];
}

Shape Draw::shape(int low_rank, int high_rank) {
  if (low_rank > high_rank) throw ValueError(fmt::format("[Draw] there is no rank in [{}, {}]", low_rank, high_rank));
  Shape shape =
      Shape::filled(low_rank + static_cast<int>(choose(static_cast<std::uint64_t>(high_rank - low_rank) + 1)), 0);
  for (std::int64_t& s : shape) s = size();
  return shape;
}

DType Draw::dtype() { return one_of<DType>({DType::f64, DType::f32, DType::f16, DType::bf16}); }

Tensor Draw::lay_out(const Shape& shape, DType dtype, const std::vector<LayoutKind>& layouts, std::string about,
                     const std::function<double()>& element) {
  std::vector<LayoutKind> possible = layouts;
  std::erase_if(possible, [&](LayoutKind layout) { return !applies(layout, shape.rank()); });
  if (possible.empty()) possible = {LayoutKind::contiguous};
  const LayoutKind layout = one_of(possible);
  Shape dense = shape;
  int repeated = 0;
  if (layout == LayoutKind::expanded) {
    repeated = static_cast<int>(choose(static_cast<std::uint64_t>(shape.rank())));
    dense[repeated] = 1;
  }
  std::vector<double> values(static_cast<std::size_t>(count(dense)));
  for (double& value : values) value = element();
  const Tensor numbers = Tensor::empty(dense, {.dtype = dtype}).copy_from(from_data(values, dense));
  Tensor result = laid_out(numbers, shape, layout, repeated).detach();
  drawn_.emplace_back(fmt::format("{}, {}{}", describe(result), name_of(layout), about), result);
  return result;
}

Tensor Draw::tensor(const Shape& shape, const TensorDraw& options, CallSite) {
  if (!(options.low <= options.high))
    throw ValueError(fmt::format("[Draw] there is no number in [{:g}, {:g})", options.low, options.high));
  const DType dtype = one_of(options.dtypes);
  const double anchor = std::clamp(0.0, options.low, options.high), span = options.high - options.low;
  const auto random = [&] {
    const double value = anchor + span * simple_fraction(choose(simple_fractions));
    return value < options.high || value == options.low ? value : value - span;
  };
  const auto ties = [&] { return one_of<double>({0.0, 1.0, -1.0}); };
  const auto zeros = [] { return 0.0; };
  const auto large = [&] { return one_of<double>({1e4, 2e4, 3e4, -1e4, -2e4, -3e4}); };
  const ValueKind kind = one_of(options.values);
  const std::array<std::pair<const char*, std::function<double()>>, 4> kinds = {
      {{", random", random}, {", ties", ties}, {", zeros", zeros}, {", large", large}}};
  const auto& [about, element] = kinds[static_cast<std::size_t>(kind)];
  Tensor result = lay_out(shape, dtype, options.layouts, about, element);
  if (options.requires_grad && is_floating(dtype)) result.set_requires_grad();
  return result;
}

Tensor Draw::indices(const Shape& shape, std::int64_t limit, CallSite) {
  return lay_out(shape, DType::i64, TensorDraw{}.layouts, fmt::format(", indices below {}", limit), [&] {
    return static_cast<double>(choose(static_cast<std::uint64_t>(std::max<std::int64_t>(limit, 0))));
  });
}

std::string Draw::text() const {
  std::string text;
  for (const auto& [about, tensor] : drawn_) {
    text += fmt::format("{}{}", text.empty() ? "" : "\n", about);
    if (tensor.defined()) text += "\n" + indented(to_string(tensor.detach(), {.precision = 8, .threshold = 200}), 2);
  }
  return text;
}

Verdict check_property(const Property& property, const PropertyOptions& options) {
  if (options.cases < 1) throw ValueError(fmt::format("[check_property] cases must be at least 1: {}", options.cases));
  const std::uint64_t first = options.seed ? *options.seed : seed_of_environment();
  for (int i = 0; i < options.cases; ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    std::optional<FailedCase> failed = failure_of(property, Draw(seed));
    if (!failed) continue;
    const std::size_t choices = failed->choices.size();
    Shrinker shrinker(property, std::move(*failed), options.shrinks);
    const FailedCase small = shrinker.run();
    return {false, fmt::format("property failed in case {} of {}; shrunk in {} runs, from {} choices to {}:\n"
                               "{}\n{}\nrepeat with POOLGRAD_TEST_SEED={} or .seed = {}: it is the first case then",
                               i + 1, options.cases, shrinker.runs(), choices, small.choices.size(),
                               indented(small.inputs, 2), small.reason, seed, seed)};
  }
  return {true, fmt::format("property held in {}, seeds {} to {}", plural(options.cases, "case"), first,
                            first + static_cast<std::uint64_t>(options.cases) - 1)};
}

}  // namespace poolgrad
