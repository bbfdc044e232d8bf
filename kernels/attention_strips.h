// The strips of one term of a pattern.
#pragma once

#include "kernels/attention_strips_blocks.h"
#include "kernels/attention_strips_dilated.h"

namespace poolgrad::kernels {

/// Calls f(const Strip&) for what the tile's rows visit for `term`, all cut from `base` (the bands and documents).
template <class F>
POOLGRAD_HD void for_each_term_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  using Kind = AttentionTerm::Kind;
  switch (term.kind) {
    case Kind::dilated: return for_each_dilated_strip(term, tile, base, f);
    case Kind::offsets: return for_each_offset_strip(term, tile, base, f);
    case Kind::listed: return for_each_listed_strip(term, tile, base, f);
    case Kind::random: return for_each_random_strip(term, tile, base, f);
    default: break;
  }
  Strip strip = base;
  switch (term.kind) {
    case Kind::columns: (tile.flipped ? strip.rows : strip.keys).end = term.size; break;
    case Kind::rows: (tile.flipped ? strip.keys : strip.rows).end = term.size; break;
    case Kind::segment:
      strip.add_low({term.size, 0});
      strip.add_high({term.size, term.size});
      break;
    case Kind::residue:
      strip.modulus = term.size;
      strip.phase = floor_mod(tile.rows.position, term.size);
      break;
    default: break;
  }
  f(strip);
}

}  // namespace poolgrad::kernels
