// Multiplicities pair by pair, from the table of patterns in docs/reference/attention.md, independent of the tested
// code.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <vector>

namespace poolgrad::attention::oracle {

/// m_h(i, j) for query head h of `heads`, the query at position i and the key at position j.
using Multiplicity = std::function<std::int64_t(std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j)>;

// Floor division, because positions may be negative: the first queries of a call with more queries than keys.
inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  std::int64_t q = a / b;
  while (q * b > a) --q;
  return q;
}
inline std::int64_t remainder(std::int64_t a, std::int64_t b) { return a - quotient(a, b) * b; }

inline Multiplicity dense() {
  return [](auto, auto, auto, auto) { return std::int64_t{1}; };
}
inline Multiplicity causal() {
  return [](auto, auto, std::int64_t i, std::int64_t j) { return std::int64_t{j <= i}; };
}
/// Negative bounds mean unbounded.
inline Multiplicity window(std::int64_t left, std::int64_t right) {
  return [=](auto, auto, std::int64_t i, std::int64_t j) {
    return std::int64_t{(left < 0 || j >= i - left) && (right < 0 || j <= i + right)};
  };
}
inline Multiplicity documents(std::vector<std::int64_t> bounds) {
  return [=](auto, auto, std::int64_t i, std::int64_t j) {
    for (std::size_t d = 0; d + 1 < bounds.size(); ++d)
      if (bounds[d] <= i && i < bounds[d + 1] && bounds[d] <= j && j < bounds[d + 1]) return std::int64_t{1};
    return std::int64_t{0};
  };
}
inline Multiplicity first_keys(std::int64_t count) {
  return [=](auto, auto, auto, std::int64_t j) { return std::int64_t{j < count}; };
}
inline Multiplicity first_queries(std::int64_t count) {
  return [=](auto, auto, std::int64_t i, auto) { return std::int64_t{i < count}; };
}

inline Multiplicity both(Multiplicity a, Multiplicity b) {
  return [=](std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) {
    return a(h, heads, i, j) * b(h, heads, i, j);
  };
}
inline Multiplicity either(Multiplicity a, Multiplicity b) {
  return [=](std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) {
    return std::int64_t{a(h, heads, i, j) > 0 || b(h, heads, i, j) > 0};
  };
}
inline Multiplicity sum(Multiplicity a, Multiplicity b) {
  return [=](std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) {
    return a(h, heads, i, j) + b(h, heads, i, j);
  };
}
inline Multiplicity united(Multiplicity a) { return either(a, a); }

/// [same segment of w][both positions within it = phase mod r].
inline bool in_branch(std::int64_t i, std::int64_t j, std::int64_t w, std::int64_t r, std::int64_t phase) {
  return quotient(i, w) == quotient(j, w) && remainder(remainder(i, w), r) == phase &&
         remainder(remainder(j, w), r) == phase;
}
/// Every head runs every branch; its phase is h mod r, or floor(h / ceil(H / r)) if `contiguous`.
inline Multiplicity longnet(std::vector<std::int64_t> w, std::vector<std::int64_t> r, bool contiguous = false) {
  return [=](std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) {
    std::int64_t count = 0;
    for (std::size_t b = 0; b < w.size(); ++b)
      count += in_branch(i, j, w[b], r[b], contiguous ? h / ((heads + r[b] - 1) / r[b]) : h % r[b]);
    return count;
  };
}
/// Head h runs only the branch of its group. The first heads mod groups have one head more. The phase is group mod r.
inline Multiplicity grouped(std::vector<std::int64_t> w, std::vector<std::int64_t> r) {
  return [=](std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) {
    const auto groups = static_cast<std::int64_t>(w.size());
    std::int64_t group = 0, first = 0;
    while (h >= first + heads / groups + (group < heads % groups)) {
      first += heads / groups + (group < heads % groups);
      ++group;
    }
    const auto b = static_cast<std::size_t>(group);
    return std::int64_t{in_branch(i, j, w[b], r[b], group % r[b])};
  };
}

/// block(j) - block(i) is one of the head's offsets.
inline Multiplicity block_offsets(std::int64_t block, std::vector<std::vector<std::int64_t>> offsets) {
  return [=](std::int64_t h, auto, std::int64_t i, std::int64_t j) {
    for (const std::int64_t offset : offsets[static_cast<std::size_t>(h) % offsets.size()])
      if (quotient(j, block) - quotient(i, block) == offset) return std::int64_t{1};
    return std::int64_t{0};
  };
}
/// |block(j) - block(i)| is a multiple of step and at most reach.
inline Multiplicity spaced_blocks(std::int64_t block, std::int64_t step, std::int64_t reach) {
  return [=](auto, auto, std::int64_t i, std::int64_t j) {
    const std::int64_t apart = std::abs(quotient(i, block) - quotient(j, block));
    return std::int64_t{apart % step == 0 && apart <= reach};
  };
}
/// bitmap[list of the head][block of i][block of j]; false outside.
using Bitmap = std::vector<std::vector<bool>>;
inline Multiplicity blocks(std::int64_t block, std::vector<Bitmap> lists) {
  return [=](std::int64_t h, auto, std::int64_t i, std::int64_t j) {
    const Bitmap& list = lists[static_cast<std::size_t>(h) % lists.size()];
    const std::int64_t a = quotient(i, block), b = quotient(j, block);
    if (a < 0 || a >= static_cast<std::int64_t>(list.size())) return std::int64_t{0};
    const auto& row = list[static_cast<std::size_t>(a)];
    return std::int64_t{b >= 0 && b < static_cast<std::int64_t>(row.size()) && row[static_cast<std::size_t>(b)]};
  };
}
inline Multiplicity strided(std::int64_t stride) {
  return [=](auto, auto, std::int64_t i, std::int64_t j) {
    return std::int64_t{std::abs(i - j) < stride || (i - j) % stride == 0};
  };
}
inline Multiplicity axial(std::int64_t width) {
  return [=](auto, auto, std::int64_t i, std::int64_t j) {
    return std::int64_t{quotient(i, width) == quotient(j, width) || remainder(i, width) == remainder(j, width)};
  };
}

}  // namespace poolgrad::attention::oracle
