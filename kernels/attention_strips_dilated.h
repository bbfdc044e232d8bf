// Strips of dilated branches (LongNet, Ding et al. 2023). The rows of a tile are one residue class, which a fixed set
// of branches covers; each of these adds the keys of its own residue in the row's segment.
#pragma once

#include "kernels/attention_tile.h"

namespace poolgrad::kernels {

/// log n for as many branches as there can be.
POOLGRAD_HD inline double log_of_count(int n) {
  constexpr double logs[AttentionTerm::max_branches + 1] = {
      0.0,
      0.0,
      0.69314718055994530942,
      1.0986122886681096914,
      1.3862943611198906188,
      1.6094379124341003746,
      1.7917594692280550008,
      1.9459101490553133051,
      2.0794415416798359283,
      2.1972245773362193828,
      2.3025850929940456840,
      2.3978952727983705441,
      2.4849066497880003102,
      2.5649493574615367361,
      2.6390573296152586145,
      2.7080502011022100660,
      2.7725887222397812377,
  };
  return logs[n];
}

/// Nested branches: the class belongs to a prefix of them, and the keys of a branch that lie in the segment of the one
/// before are a part of that one's. So branch b visits only the rest of its segment, and every key counts as often as
/// branches from b on have it, which is periodic.
template <class F>
POOLGRAD_HD void for_each_shell(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  int active = 0;
  while (active < term.branches &&
         floor_mod(tile.rows.position, term.dilation_rate[active]) == tile.h % term.dilation_rate[active])
    ++active;
  for (int b = 0; b < active; ++b) {
    const std::int64_t w = term.segment_length[b], inner = b > 0 ? term.segment_length[b - 1] : 0;
    if (w == inner) continue;
    Strip strip = base;
    strip.part = b;
    strip.modulus = term.dilation_rate[b];
    strip.phase = tile.h % strip.modulus;
    if (b + 1 < active && !term.unite) {
      const auto period = static_cast<int>(term.dilation_rate[active - 1]);
      std::int8_t count[Strip::max_period] = {};
      for (int other = b; other < active; ++other) {
        const auto r = static_cast<int>(term.dilation_rate[other]);
        for (auto j = static_cast<int>(tile.h % r); j < period; j += r) ++count[j];
      }
      for (int j = 0; j < period; ++j) strip.log_multiplicity[j] = log_of_count(count[j]);
      strip.period = period;
    }
    if (inner == 0) {
      strip.add_low({w, 0});
      strip.add_high({w, w});
      f(strip);
      continue;
    }
    Strip before = strip;
    before.add_low({w, 0});
    before.add_high({inner, 0});
    f(before);
    strip.add_low({inner, inner});
    strip.add_high({w, w});
    f(strip);
  }
}

template <class F>
POOLGRAD_HD void for_each_dilated_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  if (term.nested) return for_each_shell(term, tile, base, f);
  for (int b = 0; b < term.branches; ++b) {
    if ((term.visited_branches >> b & 1) == 0 || (term.grouped && b != term.branch_of(tile.h, tile.heads))) continue;
    const std::int64_t w = term.segment_length[b], r = term.dilation_rate[b];
    const std::int64_t phase = term.phase(b, tile.h, tile.heads);
    Strip strip = base;
    strip.part = b;
    strip.masked = term.unite && !term.grouped && b > 0;
    strip.modulus = r;
    if (w % r == 0) {
      strip.phase = phase;
      strip.add_low({w, 0});
      strip.add_high({w, w});
      if (floor_mod(tile.rows.position, r) == phase) f(strip);
      continue;
    }
    // Phases begin anew with every segment.
    for (std::int64_t s = floor_div(tile.rows.position, w); s <= floor_div(tile.rows.last_position(), w); ++s) {
      strip.phase = floor_mod(s * w + phase, r);
      strip.rows = base.rows & Interval{s * w, s * w + w};
      strip.keys = base.keys & Interval{s * w, s * w + w};
      if (floor_mod(tile.rows.position, r) == strip.phase) f(strip);
    }
  }
}

}  // namespace poolgrad::kernels
