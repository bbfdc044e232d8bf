// Compiles a pattern into passes of kernels. All terms of a pass share the residue classes of their tiles' rows. Terms
// with large moduli would cut the others to pieces, so they get passes of their own.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "allocator/error.h"
#include "attention/pattern/pattern.h"
#include "attention/pattern/terms.h"

namespace poolgrad::attention {

namespace {

using kernels::AttentionSchedule;
using kernels::AttentionTerm;

/// Terms share a pass up to this modulus.
constexpr std::int64_t shared_modulus = 16;
/// Preferred minimum of rows in a tile, even if cuts could be closer.
constexpr std::int64_t worthwhile_rows = 32;

std::int64_t least_multiple(std::int64_t unit, std::int64_t at_least) {
  return std::max<std::int64_t>(1, kernels::ceil_div(at_least, unit)) * unit;
}

/// Returns the best common cut of tiles.
std::int64_t common_cut(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return std::max(a, b);
  const std::int64_t divisor = std::gcd(a, b);
  return divisor >= worthwhile_rows ? divisor : std::min(a, b);
}

class Passes {
 public:
  Passes(const PatternTerms& parts, const AttentionSchedule& frame) : parts_(parts), frame_(frame) {
    for (std::size_t n = 0; n < parts.terms.size(); ++n) {
      const AttentionTerm& term = parts.terms[n].term;
      switch (term.kind) {
        case TermKind::dilated: visit_branches(n); break;
        case TermKind::residue: visit(n, ~0u, term.size, 0); break;
        case TermKind::listed:
        case TermKind::random: visit(n, ~0u, 1, term.size); break;
        default: visit(n, ~0u, 1, 0);
      }
    }
  }

  std::vector<AttentionSchedule> take() {
    std::vector<AttentionSchedule> result;
    for (Pass& pass : passes_) result.push_back(pass.schedule);
    return result;
  }

 private:
  struct Pass {
    AttentionSchedule schedule;
    std::vector<std::size_t> sources;  // of its terms

    AttentionTerm* find(std::size_t n) {
      const auto at = std::find(sources.begin(), sources.end(), n);
      return at == sources.end() ? nullptr : schedule.term + (at - sources.begin());
    }
  };

  /// Branches whose rates have a small common multiple share a pass; nested ones always do.
  void visit_branches(std::size_t n) {
    const AttentionTerm& term = parts_.terms[n].term;
    std::uint32_t left = (std::uint32_t{1} << term.branches) - 1;
    while (left != 0) {
      std::uint32_t together = 0;
      std::int64_t modulus = 1, shortest = unbounded_segment;
      for (int b = 0; b < term.branches; ++b) {
        if ((left >> b & 1) == 0) continue;
        const std::int64_t common = lcm_or_more(modulus, term.dilation_rate[b]);
        if (together != 0 && common > shared_modulus && !term.nested) continue;
        together |= std::uint32_t{1} << b;
        modulus = common;
        shortest = std::min(shortest, term.segment_length[b]);
      }
      visit(n, together, modulus, least_multiple(shortest, worthwhile_rows * modulus));
      left &= ~together;
    }
  }

  static std::int64_t lcm_or_more(std::int64_t a, std::int64_t b) {
    const std::int64_t factor = b / std::gcd(a, b);
    return factor > kernels::far_away / a ? kernels::far_away : a * factor;
  }

  void visit(std::size_t n, std::uint32_t branches, std::int64_t modulus, std::int64_t cut) {
    Pass& pass = pass_for(n, modulus);
    for (std::size_t e = 0; e < n; ++e)
      if (parts_.terms[e].term.group == parts_.terms[n].term.group && !pass.find(e)) add(pass, e, false);
    AttentionTerm* term = pass.find(n);
    if (!term) {
      term = add(pass, n, true);
      term->visited_branches = 0;
    }
    term->visited_branches |= branches;
    pass.schedule.modulus = std::lcm(pass.schedule.modulus, modulus);
    pass.schedule.cut = common_cut(pass.schedule.cut, cut);
  }

  Pass& pass_for(std::size_t n, std::int64_t modulus) {
    for (Pass& pass : passes_) {
      const bool fits =
          pass.schedule.modulus == modulus || lcm_or_more(pass.schedule.modulus, modulus) <= shared_modulus;
      std::int64_t more = 0;
      for (std::size_t e = 0; e <= n; ++e)
        more += parts_.terms[e].term.group == parts_.terms[n].term.group && !pass.find(e);
      if (fits && pass.schedule.term_count + more <= AttentionSchedule::max_terms) return pass;
    }
    passes_.push_back({frame_, {}});
    passes_.back().schedule.term_count = 0;
    return passes_.back();
  }

  AttentionTerm* add(Pass& pass, std::size_t n, bool visited) {
    AttentionTerm* term = pass.schedule.term + pass.schedule.term_count++;
    *term = with_lists(parts_.terms[n]);
    term->visited = visited;
    pass.sources.push_back(n);
    return term;
  }

  static constexpr std::int64_t unbounded_segment = kernels::far_away;
  const PatternTerms& parts_;
  const AttentionSchedule& frame_;
  std::vector<Pass> passes_;
};

}  // namespace

Pattern::Compiled Pattern::compile(std::int64_t heads, const kernels::PositionMap& queries,
                                   const kernels::PositionMap& keys) const {
  AttentionSchedule frame;
  frame.queries = queries;
  frame.keys = keys;
  frame.heads = heads;
  frame.left = left_;
  frame.right = right_;
  if (!terms_) return {{frame}, nullptr};
  if (terms_->documents) {
    frame.documents = terms_->documents->at.data();
    frame.documents_identity = terms_->documents->identity.number();
    frame.document_count = static_cast<std::int32_t>(terms_->documents->at.size() - 1);
  }
  if (terms_->terms.empty()) return {{frame}, terms_};
  for (const PatternTerms::Term& term : terms_->terms) {
    if (term.term.grouped && heads < term.term.branches)
      throw ValueError(fmt::format("[dilated] in grouped mode every branch needs a head: {} heads, {} branches", heads,
                                   term.term.branches));
    if (term.term.contiguous_offset && heads < 1)
      throw ValueError("[dilated] contiguous offsets need at least one head");
  }
  return {Passes(*terms_, frame).take(), terms_};
}

double Pattern::density(std::int64_t heads, std::int64_t queries, std::int64_t keys) const {
  using kernels::PositionMap;
  if (heads < 1) throw ValueError(fmt::format("[density] needs at least one head: {}", heads));
  const Compiled compiled =
      compile(heads, PositionMap::contiguous(queries, keys - queries), PositionMap::contiguous(keys));
  double visited = 0;
  for (const AttentionSchedule& pass : compiled.passes) visited += pass.count_pairs();
  AttentionSchedule frame = compiled.passes.front();
  frame.term_count = 1;
  frame.term[0] = {};
  frame.modulus = 1;
  frame.cut = 0;
  const double admissible = frame.count_pairs();
  return admissible > 0 ? visited / admissible : 0.0;
}

}  // namespace poolgrad::attention
