#include "attention/pattern/sparse_pattern_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "allocator/error.h"

namespace poolgrad::attention {

namespace {

constexpr double random_density = 0.1;
// Bounds of Pattern::block_offsets(): the largest offset, and the number of rates, which count with 0 and both signs.
constexpr std::int64_t max_rate = std::int64_t{1} << 30;
constexpr std::size_t max_rates = 15;

/// Counts pairs in f64: counts are compared with a fraction, and lengths may be large.
struct Counts {
  double length;
  bool causal;

  double admissible() const { return causal ? length * (length + 1) / 2 : length * length; }
  /// Returns the number of pairs at most `reach` apart.
  double band(double reach) const {
    const double r = std::min(reach, length - 1), one_side = r * length - r * (r + 1) / 2;
    return length + (causal ? 1 : 2) * one_side;
  }
  /// Returns the number of pairs that are `distance` > 0 apart, on either side.
  double apart(double distance) const { return distance < length ? (causal ? 1 : 2) * (length - distance) : 0; }
  /// Returns the number of pairs whose blocks of `block` are at most `reach` apart, or with a position below `global`.
  double blocks_near(double block, double reach, double global) const {
    // Each of the other pairs begins in one of `count` blocks. The first of these may have global positions.
    const double first = std::floor(global / block), count = std::ceil(length / block) - 1 - reach - first;
    if (count <= 0) return admissible();
    const double behind = length - (first + reach + 1) * block;  // positions out of reach of the first one
    const double far =
        count * block * behind - block * block * count * (count - 1) / 2 - (global - first * block) * behind;
    return admissible() - (causal ? 1 : 2) * far;
  }
  double strided(double stride) const {
    const double times = std::floor((length - 1) / stride);
    const double multiples = times * length - stride * times * (times + 1) / 2;
    return band(stride - 1) + (causal ? 1 : 2) * multiples;
  }
  double axial(double width) const {
    const double rows = std::floor(length / width), rest = length - rows * width;
    const double both =
        rows * width * width + rest * rest + rest * (rows + 1) * (rows + 1) + (width - rest) * rows * rows - length;
    return causal ? (both + length) / 2 : both;
  }
};

/// Returns the last x in [low, high] with fits(x), which must be true up to some x and false after it; `low` if none
/// fits.
template <class F>
std::int64_t last_fitting(std::int64_t low, std::int64_t high, F&& fits) {
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// Returns Pattern::dilated_sparse() with as many offsets as fit, and random blocks when offsets run out.
Pattern dilated_of_density(const SparsePatternConfig& config, const Counts& blocks, double density) {
  const double wanted = density * blocks.admissible();
  double kept = blocks.length;
  std::vector<std::int64_t> candidates = config.dilation_rates, rates;
  for (std::int64_t next = 2 * *std::max_element(candidates.begin(), candidates.end());
       next <= max_rate && static_cast<double>(next) < blocks.length; next *= 2)
    candidates.push_back(next);
  bool enough = false;
  for (const std::int64_t rate : candidates) {
    const double more = blocks.apart(static_cast<double>(rate));
    if (more == 0 || std::find(rates.begin(), rates.end(), rate) != rates.end()) continue;
    enough = kept + more > wanted;
    if (enough || rates.size() == max_rates) break;
    kept += more;
    rates.push_back(rate);
  }
  const Pattern offsets = rates.empty() ? Pattern::block_offsets(config.block_size, std::vector<std::int64_t>{0})
                                        : Pattern::dilated_sparse(config.block_size, rates);
  const double missing = (wanted - kept) / std::max(blocks.admissible() - kept, 1.0);
  if (enough || missing <= 0) return offsets;
  return offsets | Pattern::random_blocks(config.block_size, std::min(missing, 1.0), config.seed);
}

Pattern of_density(const SparsePatternConfig& config, std::int64_t length, bool causal, double density) {
  const std::int64_t block = config.block_size, block_count = std::max<std::int64_t>(1, (length + block - 1) / block);
  const Counts pairs{static_cast<double>(std::max<std::int64_t>(length, 1)), causal};
  const Counts blocks{static_cast<double>(block_count), causal};
  const auto window = [&](std::int64_t global) {
    const std::int64_t reach = last_fitting(0, block_count - 1, [&](std::int64_t x) {
      return pairs.blocks_near(static_cast<double>(block), static_cast<double>(x), static_cast<double>(global)) /
                 pairs.admissible() <=
             density;
    });
    return 2 * reach * block;
  };
  // The density of strides and widths falls up to about the root of the length.
  const auto smallest = [&](double root, auto kept) {
    const auto high = std::max<std::int64_t>(1, static_cast<std::int64_t>(root));
    const auto reversed = last_fitting(0, high - 1, [&](std::int64_t x) {
      return kept(static_cast<double>(high - x)) / pairs.admissible() <= density;
    });
    return high - reversed;
  };
  switch (config.pattern_type) {
    case SparsePatternType::local_window: return Pattern::local_window(block, window(0));
    case SparsePatternType::dilated_sparse: return dilated_of_density(config, blocks, density);
    case SparsePatternType::global_local:
      return Pattern::global_local(block, window(config.global_tokens), config.global_tokens);
    case SparsePatternType::strided:
      return Pattern::strided(smallest(std::sqrt(pairs.length / 2), [&](double x) { return pairs.strided(x); }));
    case SparsePatternType::axial:
      return Pattern::axial(smallest(std::sqrt(pairs.length), [&](double x) { return pairs.axial(x); }));
    case SparsePatternType::random: break;
  }
  return Pattern::random_blocks(block, density, config.seed);
}

}  // namespace

void SparsePatternConfig::validate() const {
  const auto refuse = [](const char* reason, auto value) {
    throw ValueError(fmt::format("[sparse_pattern] {}: {}", reason, value));
  };
  if (block_size < 16 || block_size % 16 != 0) refuse("block_size must be a positive multiple of 16", block_size);
  if (sparsity_ratio && !(*sparsity_ratio > 0.0 && *sparsity_ratio <= 1.0))
    refuse("sparsity_ratio must be in (0, 1]", std::to_string(*sparsity_ratio));
  if (window_size < 1) refuse("window_size must be at least 1", window_size);
  if (global_tokens < 0) refuse("global_tokens must not be negative", global_tokens);
  if (stride < 1) refuse("stride must be at least 1", stride);
  if (dilation_rates.empty()) refuse("dilation_rates must not be empty", "0 rates");
  for (const std::int64_t rate : dilation_rates) {
    if (rate < 1) refuse("dilation_rates must be at least 1", rate);
    if (rate > max_rate) refuse("dilation_rates must be at most 2^30", rate);
  }
}

Pattern SparsePatternConfig::pattern(std::int64_t length, bool causal) const {
  validate();
  if (sparsity_ratio == 1.0) return Pattern::dense();
  if (sparsity_ratio) return of_density(*this, length, causal, *sparsity_ratio);
  switch (pattern_type) {
    case SparsePatternType::local_window: return Pattern::local_window(block_size, window_size);
    case SparsePatternType::dilated_sparse: return Pattern::dilated_sparse(block_size, dilation_rates);
    case SparsePatternType::global_local: return Pattern::global_local(block_size, window_size, global_tokens);
    case SparsePatternType::strided: return Pattern::strided(stride);
    case SparsePatternType::axial: return Pattern::axial(stride);
    case SparsePatternType::random: break;
  }
  return Pattern::random_blocks(block_size, random_density, seed);
}

bool SparsePatternConfig::follows_length() const {
  return sparsity_ratio && *sparsity_ratio != 1.0 && pattern_type != SparsePatternType::random;
}

double SparsePatternConfig::density(std::int64_t length, bool causal) const {
  return pattern(length, causal).causally(causal).density(1, length, length);
}

}  // namespace poolgrad::attention
