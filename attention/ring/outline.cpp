#include "attention/ring/outline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <span>

#include "allocator/error.h"
#include "attention/ring/plan.h"

namespace poolgrad::attention {

namespace {

using kernels::AttentionTerm;
using kernels::floor_div;
using kernels::floor_mod;
using Kind = AttentionTerm::Kind;

/// Of long stripes the last rows tell which are alike: the others repeat them.
constexpr std::int64_t few = 32;

double sum_of(const std::vector<double>& pairs) { return std::accumulate(pairs.begin(), pairs.end(), 0.0); }

template <class T>
void sort_unique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

std::int64_t elements(const RingShare& s, std::int64_t heads, std::int64_t width) {
  return s.batch * s.tokens * heads * width;
}

}  // namespace

std::int64_t RingShare::key_bytes() const {
  return ring_message_bytes(batch, tokens, kv_heads, width, value_width, dtype);
}
std::int64_t RingShare::gradient_bytes() const {
  return ring_message_bytes(batch, tokens, kv_heads, width, value_width, compute_dtype(dtype));
}

RingOutline::RingOutline(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t tokens)
    : pattern_(pattern), layout_(layout), ranks_(ranks), tokens_(tokens) {
  if (ranks < 1 || tokens < ranks || tokens % ranks != 0)
    throw ValueError(fmt::format("[RingOutline] {} tokens do not divide among {} ranks", tokens, ranks));
  for (const kernels::AttentionSchedule& schedule : pattern.compile(heads, shard(0), shard(0)).passes) {
    Pass& pass = passes_.emplace_back(Pass{schedule});
    bool listed = schedule.documents != nullptr;
    for (AttentionTerm& term : std::span(pass.schedule.term, static_cast<std::size_t>(schedule.term_count))) {
      listed = listed || term.kind == Kind::listed;
      if (term.kind != Kind::random || !term.visited) continue;
      term.kind = Kind::all;
      pass.share = static_cast<double>(term.threshold) / static_cast<double>(std::uint64_t{1} << 53);
    }
    if (listed) throw ValueError("[RingOutline] documents and listed blocks have no outline: " + pattern.to_string());
  }
  look();
}

int RingOutline::owner(std::int64_t position) const {
  return shard_owners(layout_, tokens_, ranks_, position, position + 1).front();
}

bool RingOutline::repeats_rows() const { return layout_ == Layout::striped && share() > 2 * few; }

/// The passes for the last `rows` of the rank's queries and of the keys that it meets.
std::vector<RingOutline::Pass> RingOutline::passes_at(int rank, int step, std::int64_t rows) const {
  std::vector<Pass> passes = passes_;
  const auto last = [&](const kernels::PositionMap& map) { return map.part(map.count - rows, map.count); };
  for (Pass& pass : passes) {
    pass.schedule.queries = last(shard(rank));
    pass.schedule.keys = last(shard((rank + ranks_ - step) % ranks_));
  }
  return passes;
}

bool RingOutline::computes(int rank, int step) const {
  if (step == 0) return true;
  // Of rows that are a tile each the last tell whether there is anything, as of all.
  const bool tile_each = std::all_of(passes_.begin(), passes_.end(), [&](const Pass& pass) {
    return pass.schedule.cut > 0 && pass.schedule.cut <= ranks_;
  });
  const std::vector<Pass> passes = passes_at(rank, step, repeats_rows() && tile_each ? few : share());
  return std::any_of(passes.begin(), passes.end(), [](const Pass& pass) { return computes_anything(pass.schedule); });
}

std::vector<double> RingOutline::count(int rank, int step, std::int64_t rows) const {
  std::vector<double> pairs;
  for (const Pass& pass : passes_at(rank, step, rows)) pairs.push_back(pass.share * pass.schedule.count_pairs());
  return pairs;
}

std::vector<double> RingOutline::pairs(int rank, int step) const { return count(rank, step, share()); }

/// The ranks that have the positions at which the pattern, or the sequence, begins or ends something.
std::vector<int> RingOutline::corner_ranks() const {
  std::vector<std::int64_t> positions{0, tokens_ / 2, tokens_ - 1};
  const auto add_whole = [&](std::int64_t length) {  // the first and the last of so many positions
    const std::int64_t last = tokens_ / length * length;
    for (const std::int64_t position : {length - 1, length, last - 1, last, last - length})
      positions.push_back(position);
  };
  for (const Pass& pass : passes_)
    for (int n = 0; n < pass.schedule.term_count; ++n) {
      const AttentionTerm& term = pass.schedule.term[n];
      if (term.kind == Kind::dilated)
        for (int b = 0; b < term.branches; ++b) add_whole(term.segment_length[b]);
      else if (term.kind == Kind::segment || term.kind == Kind::offsets)
        add_whole(term.size);
      else if (term.kind == Kind::columns || term.kind == Kind::rows)
        positions.insert(positions.end(), {term.size - 1, term.size});
    }
  std::vector<int> ranks{std::min(1, ranks_ - 1), std::max(0, ranks_ - 2)};
  for (const std::int64_t position : positions)
    if (position >= 0 && position < tokens_) ranks.push_back(owner(position));
  sort_unique(ranks);
  return ranks;
}

/// Where what the row at a position sees begins or ends, and the positions beside.
std::vector<std::int64_t> RingOutline::places_seen_from(std::int64_t position) const {
  std::vector<std::int64_t> places{0, tokens_ - 1};
  const auto add = [&](std::int64_t place) {
    for (std::int64_t beside = place - 1; beside <= place + 1; ++beside)
      if (beside >= 0 && beside < tokens_) places.push_back(beside);
  };
  const auto add_band = [&](std::int64_t left, std::int64_t right) {
    if (left < tokens_) add(position - left), add(position + left);
    if (right < tokens_) add(position - right), add(position + right);
  };
  const auto add_blocks = [&](std::int64_t size, std::int64_t first, std::int64_t last) {
    const std::int64_t block = floor_div(position, size);
    for (const std::int64_t sign : {1, -1})  // as a row, and as a key
      for (const std::int64_t offset : {first, last})
        add((block + sign * offset) * size), add((block + sign * offset + 1) * size);
  };
  for (const Pass& pass : passes_) {
    add_band(pass.schedule.left, pass.schedule.right);
    for (int n = 0; n < pass.schedule.term_count; ++n) {
      const AttentionTerm& term = pass.schedule.term[n];
      add_band(term.left, term.right);
      if (term.kind == Kind::columns || term.kind == Kind::rows) add(term.size);
      if (term.kind == Kind::segment) add_blocks(term.size, 0, 0);
      if (term.kind == Kind::dilated)
        for (int b = 0; b < term.branches; ++b) add_blocks(term.segment_length[b], 0, 0);
      if (term.kind == Kind::offsets)
        for (int r = 0; r < term.set_begin[term.sets]; ++r) add_blocks(term.size, term.run[r].first, term.run[r].last);
    }
  }
  return places;
}

/// The steps in which the ranks meet those places, and those places the ranks, with the steps beside; ascending.
std::vector<int> RingOutline::corner_steps(const std::vector<int>& ranks) const {
  std::vector<int> steps;
  const auto add = [&](int step) {
    for (int beside = step - 1; beside <= step + 1; ++beside)
      steps.push_back(static_cast<int>(floor_mod(beside, ranks_)));
  };
  add(0);
  for (const int rank : ranks) {
    const kernels::PositionMap map = shard(rank);
    for (int n = 0; n < 2; ++n) {
      const auto piece = map.piece(n);
      if (piece.count <= 0) continue;
      for (const std::int64_t end : {piece.position, piece.position + (piece.count - 1) * map.stride})
        for (const std::int64_t place : places_seen_from(end)) {
          const int other = owner(place);
          add(rank - other), add(other - rank);
        }
    }
    sort_unique(steps);
  }
  return steps;
}

/// After so many steps, or ranks, residues and blocks begin anew.
std::int64_t RingOutline::period() const {
  constexpr std::int64_t most = AttentionTerm::max_period;
  std::int64_t period = 1;
  for (const Pass& pass : passes_)
    for (int n = 0; n < pass.schedule.term_count; ++n) {
      const AttentionTerm& term = pass.schedule.term[n];
      if (term.kind == Kind::dilated)
        for (int b = 0; b < term.branches && period < most; ++b) period = std::lcm(period, term.dilation_rate[b]);
      if ((term.kind == Kind::residue || term.kind == Kind::offsets) && period < most)
        period = std::lcm(period, term.size);
    }
  const std::int64_t unit = layout_ == Layout::striped ? 1 : std::max<std::int64_t>(1, share() / 2);
  return std::min(most, period / std::gcd(period, unit));
}

/// The last ranks, in zigzag the middle of the sequence, where there is more to see: a zigzag's second chunk looks back
/// over the fold at ranks on their way out again, as far as blocks at fixed offsets and segments over the fold reach;
/// and segments that neither divide a chunk nor are a multiple of one lie differently on every rank.
std::vector<int> RingOutline::uneven_ranks() const {
  constexpr int most = 1024;  // further ones repeat them
  const bool folds = layout_ == Layout::zigzag;
  const std::int64_t fold = tokens_ / 2;
  std::int64_t reach = 0;
  for (const Pass& pass : passes_)
    for (int n = 0; n < pass.schedule.term_count; ++n) {
      const AttentionTerm& term = pass.schedule.term[n];
      for (int r = 0; folds && term.kind == Kind::offsets && r < term.set_begin[term.sets]; ++r)
        for (const std::int64_t offset : {term.run[r].first, term.run[r].last})
          reach = std::max(reach, (std::abs(offset) + 1) * term.size);
      for (int b = 0; term.kind == Kind::dilated && b < term.branches; ++b) {
        const std::int64_t length = term.segment_length[b];
        if (length >= tokens_) continue;
        if (folds) reach = std::max(reach, fold % length);
        if (2 * length % share() != 0 && share() % (2 * length) != 0) reach = tokens_;
      }
    }
  std::vector<int> ranks;
  if (layout_ == Layout::striped || reach == 0) return ranks;
  const int first = folds ? owner(std::max<std::int64_t>(0, fold - reach)) : reach < tokens_ ? ranks_ : 0;
  for (int rank = std::max(ranks_ - most, first); rank < ranks_; ++rank) ranks.push_back(rank);
  return ranks;
}

void RingOutline::look() {
  std::map<std::vector<double>, std::size_t> known;
  work_.assign(1, {});  // of what nobody computes
  std::vector<std::size_t> most(static_cast<std::size_t>(ranks_));
  const auto look_at = [&](int rank, int step) {
    if (!computes(rank, step)) return;
    std::vector<double> key = count(rank, step, repeats_rows() ? few : share());
    const auto [at, is_new] = known.try_emplace(key, work_.size());
    if (is_new) work_.push_back(repeats_rows() ? pairs(rank, step) : key);
    std::size_t& busiest = most[static_cast<std::size_t>(step)];
    if (busiest == 0 || sum_of(work_[at->second]) > sum_of(work_[busiest])) busiest = at->second;
  };
  const std::vector<int> corners = corner_ranks(), steps = corner_steps(corners);
  const auto look_from_corners = [&](int step) {
    for (const int corner : corners) look_at(corner, step), look_at((corner + step) % ranks_, step);
  };
  const auto repeats = static_cast<int>(period());
  for (std::size_t n = 0; n < steps.size(); ++n) {
    look_from_corners(steps[n]);
    const int first = steps[n] + 1, end = n + 1 < steps.size() ? steps[n + 1] : ranks_;
    for (int step = first; step < end; ++step)
      if (step - first < repeats)
        look_from_corners(step);
      else
        most[static_cast<std::size_t>(step)] = most[static_cast<std::size_t>(step - repeats)];
  }
  for (const int rank : uneven_ranks())
    for (const int step : corner_steps({rank})) look_at(rank, step);
  for (int step = 0; step < ranks_; ++step)
    if (const std::size_t work = most[static_cast<std::size_t>(step)]; work != 0) {
      visited_.push_back(step);
      most_.push_back(work);
    }
}

std::vector<RingSend> RingOutline::sends(int rank, const RingShare& share, Exchange exchange, bool backward) const {
  const std::int64_t keys = share.key_bytes(), gradients = share.gradient_bytes();
  std::vector<RingSend> sends;
  if (visited_.size() < 2) return sends;
  const auto next = [&](std::size_t phase) { return phase + 1 < visited_.size() ? visited_[phase + 1] : ranks_; };
  if (exchange == Exchange::ring) {
    for (std::size_t phase = 0; phase < visited_.size(); ++phase) {
      const int distance = next(phase) - visited_[phase];
      if (phase + 1 < visited_.size()) sends.push_back({distance, keys});
      if (backward) sends.push_back({distance, gradients});
    }
    return sends;
  }
  for (std::size_t phase = 1; phase < visited_.size(); ++phase)
    sends.push_back({visited_[phase], computes((rank + visited_[phase]) % ranks_, visited_[phase]) ? keys : 0});
  for (std::size_t phase = 1; backward && phase < visited_.size(); ++phase)
    sends.push_back({ranks_ - visited_[phase], computes(rank, visited_[phase]) ? gradients : 0});
  return sends;
}

RingMemory RingOutline::memory(const RingShare& share, Exchange exchange) const {
  const auto element = static_cast<std::int64_t>(size_of(share.dtype));
  const auto compute = static_cast<std::int64_t>(size_of(compute_dtype(share.dtype)));
  const std::int64_t q = elements(share, share.heads, share.width), k = elements(share, share.kv_heads, share.width);
  const std::int64_t v = elements(share, share.kv_heads, share.value_width);
  const std::int64_t out = elements(share, share.heads, share.value_width), lse = elements(share, share.heads, 1);
  const bool travels = visited_.size() > 1, several = visited_.size() * passes() > 1, narrow = element != compute;
  const auto slots = static_cast<std::int64_t>(exchange == Exchange::ring ? 2 : visited_.size());
  RingMemory memory;
  memory.forward_slots = travels ? slots * share.key_bytes() : 0;
  memory.backward_slots =
      memory.forward_slots + (travels ? (exchange == Exchange::ring ? 2 : 3) * share.gradient_bytes() : 0);
  const std::int64_t kept = element * (q + k + v + out) + compute * lse;
  memory.forward = kept + memory.forward_slots + (several && narrow ? compute * out : 0);
  const std::int64_t sums = several && narrow ? compute * (q + (travels ? 0 : k + v)) : 0;
  // The gradient of the results, those of q, k and v, and what a row of the two has in common.
  memory.backward = kept + memory.backward_slots + element * (out + q + k + v) + compute * lse + sums;
  return memory;
}

}  // namespace poolgrad::attention
