#include "autograd/memory/repeated_step.h"

#include <algorithm>
#include <functional>

namespace poolgrad {
namespace {

using EventKind = StepProfile::Kind;

constexpr std::size_t most_events = std::size_t{1} << 20;  // of a step; longer ones are not planned
constexpr std::size_t most_known = 16;                     // kinds of steps
constexpr int most_changes = 4;                            // in a row, before plans are not worth their time
constexpr int most_rounds = 8;                             // of plans for a step

// Live bytes do not fill all pages: so much of a budget is left free, to begin with, and again where it was too little.
std::size_t left_free(std::size_t budget) { return budget / 256 + (std::size_t{32} << 10); }
// The same for a budget that is named to somebody.
std::size_t with_rounding(std::size_t live) { return live + live / 64 + (std::size_t{128} << 10); }

}  // namespace

void RepeatedStep::recorded(const std::string& name, double nanoseconds, const std::vector<PlannedResult*>& reads,
                            const std::vector<std::shared_ptr<PlannedResult>>& makes, std::size_t kept) {
  if (!is_on()) return;
  StepProfile::Operation operation{.kind = std::hash<std::string>()(name), .nanoseconds = nanoseconds};
  const auto mix = [&](std::uint64_t value) { operation.kind = (operation.kind ^ value) * 0x9E3779B97F4A7C15u; };
  for (const PlannedResult* read : reads) mix(read->size());
  for (const auto& made : makes) mix(made->size());
  mix(static_cast<std::uint64_t>(nanoseconds));
  if (step_ == 0 || (saved_any_ && saved_now_ == 0)) {
    finish();
    begin(operation.kind);
  }
  if (is_too_long_) return;
  for (const PlannedResult* read : reads)
    if (is_of_this_step(*read)) operation.reads.push_back(read->place);
  const auto number = static_cast<std::uint32_t>(profile_.operations.size());
  for (const auto& made : makes) {
    made->step = step_;
    made->place = static_cast<std::uint32_t>(results_.size());
    operation.makes.push_back(made->place);
    results_.push_back(made);
    profile_.results.push_back({made->size(), number});
  }
  profile_.operations.push_back(std::move(operation));
  const std::size_t before = profile_.events.empty() ? SIZE_MAX : profile_.events.back().now;
  add({.kind = EventKind::recorded, .which = number}, kept);
  if (is_too_long_) return;
  // Where the most was there before the operator began, nothing is known of its scratch.
  if (const StepProfile::Event& event = profile_.events.back(); event.before > std::max(before, event.now))
    profile_.operations.back().scratch = event.before - event.now;
}

void RepeatedStep::saved(const PlannedResult& result) {
  if (!is_of_this_step(result)) return;
  ++saved_now_;
  saved_any_ = true;
  if (is_too_long_) return;
  in_use_.emplace_back(profile_.events.size(), results_[result.place]);
  add_quietly({.kind = EventKind::saved, .which = result.place});
}

void RepeatedStep::wanted(const PlannedResult& result, std::size_t kept) {
  if (!is_of_this_step(result) || is_too_long_) return;
  in_use_.emplace_back(profile_.events.size(), results_[result.place]);
  add({.kind = EventKind::wanted, .which = result.place}, kept);
}

void RepeatedStep::released(const PlannedResult& result, std::size_t kept) {
  if (!is_of_this_step(result)) return;
  --saved_now_;
  if (is_too_long_) return;
  add({.kind = EventKind::released, .which = result.place}, kept);
}

void RepeatedStep::changes(std::size_t kept) {
  if (step_ == 0 || computes_) return;
  const LiveBytes live = pool_->watch();
  most_others_ = std::max<std::size_t>(most_others_, live.peak - std::min<std::size_t>(live.peak, kept));
}

void RepeatedStep::changed() {
  if (step_ != 0 && !computes_) pool_->watch();
}

void RepeatedStep::computes(std::size_t kept) {
  changes(kept);
  computes_ = true;
}

void RepeatedStep::computed(double nanoseconds) {
  if (is_on()) pool_->watch();
  computes_ = false;
  again_ += nanoseconds;
  ++run_;
}

void RepeatedStep::add(StepProfile::Event event, std::size_t kept) {
  const LiveBytes live = pool_->watch();
  const auto others = [&](std::uint64_t bytes) { return bytes - std::min<std::size_t>(bytes, kept); };
  event.before = std::max(std::exchange(most_others_, 0), others(live.peak));
  event.now = others(live.current);
  add_quietly(event);
}

void RepeatedStep::add_quietly(StepProfile::Event event) {
  const std::size_t number = profile_.events.size();
  event.used_until = static_cast<std::uint32_t>(number);
  if (in_use_.size() < 64 || number % 64 == 0)  // who holds thousands is asked now and then
    std::erase_if(in_use_, [&](const auto& use) {
      const auto result = use.second.lock();
      const bool ended = use.first != number && (result == nullptr || result->is_idle());
      if (ended) profile_.events[use.first].used_until = static_cast<std::uint32_t>(number);
      return ended;
    });
  profile_.events.push_back(event);
  run_ = 0;
  computes_ = false;  // also where an operator has thrown
  if (number >= most_events) {
    is_too_long_ = true;
    followed_ = nullptr;
    profile_ = {};
    in_use_.clear();
  }
  if (followed_ == nullptr) return;
  const StepProfile& expected = followed_->profile;
  bool agrees = number < expected.events.size() && expected.events[number].kind == event.kind &&
                expected.events[number].which == event.which;
  if (agrees && event.kind == EventKind::recorded)
    agrees = expected.operations[event.which] == profile_.operations.back();
  if (!agrees) followed_ = nullptr;
}

std::vector<std::shared_ptr<PlannedResult>> RepeatedStep::due() {
  std::vector<std::shared_ptr<PlannedResult>> all;
  if (followed_ == nullptr) return all;
  std::erase_if(postponed_, [&](const auto& one) {
    const auto result = one.lock();
    if (result != nullptr && !result->is_idle()) return false;
    if (result != nullptr) all.push_back(result);
    return true;
  });
  const std::vector<StepPlan::Drop>& drops = followed_->plan.drops;
  const std::size_t event = profile_.events.size() - 1;
  const std::uint32_t run = computes_ ? run_ : StepPlan::after;
  for (; next_drop_ < drops.size() &&
         std::pair<std::size_t, std::uint32_t>(drops[next_drop_].event, drops[next_drop_].run) <= std::pair(event, run);
       ++next_drop_) {
    const auto result = results_[drops[next_drop_].result].lock();
    if (result == nullptr) continue;
    if (result->is_idle()) {
      all.push_back(result);
    } else {
      postponed_.push_back(result);
    }
  }
  return all;
}

void RepeatedStep::begin(std::uint64_t first_kind) {
  ++step_;
  key_ = first_kind;
  profile_ = {};
  results_.clear();
  in_use_.clear();
  postponed_.clear();
  saved_now_ = 0;
  saved_any_ = is_too_long_ = false;
  most_others_ = 0;
  next_drop_ = 0;
  unplanned_bytes_ = 0;
  again_ = 0;
  followed_ = nullptr;
  const auto place = known_.find(key_);
  if (place == known_.end()) return;
  Known& known = place->second;
  if (known.budget != 0 && known.budget != pool_->budget()) {
    known.is_settled = false;
    known.rounds = 0;
    known.reserve = 0;
    make_plan(known);
  }
  if (!known.plan.is_feasible) return;
  followed_ = &known;
  statistics_.peak_bytes = known.plan.peak;
  statistics_.nanoseconds = known.plan.nanoseconds;
  statistics_.bound_nanoseconds = known.plan.bound;
}

/// What is known after the step is better than what was known before it.
void RepeatedStep::finish() {
  if (step_ == 0 || is_too_long_) return;
  for (const auto& use : in_use_)
    profile_.events[use.first].used_until = static_cast<std::uint32_t>(profile_.events.size());
  const bool followed = followed_ != nullptr && profile_.events.size() == followed_->profile.events.size();
  if (followed) ++statistics_.steps;
  if (!followed && known_.size() >= most_known && !known_.contains(key_)) known_.clear();
  Known& known = known_[key_];
  const bool as_long = profile_.events.size() == known.profile.events.size();
  const bool as_unplanned = known.is_settled && !known.plan.is_feasible && as_long;
  if (!followed && !as_unplanned) {
    const int changes = as_long ? 0 : known.changes + 1;
    known = {};
    known.changes = changes;
    known.best_again = again_;
  }
  if (known.is_settled) return;
  if (followed && again_ < known.best_again) {
    known.best = known.plan;
    known.best_again = again_;
  }
  if (followed && (unplanned_bytes_ == 0 || known.rounds == most_rounds)) {
    known.plan = known.best;
    known.is_settled = true;
    return;
  }
  known.profile = std::move(profile_);
  if (followed) known.reserve += left_free(pool_->budget());
  if (known.changes <= most_changes) make_plan(known);
}

void RepeatedStep::make_plan(Known& known) {
  known.budget = pool_->budget();
  ++known.rounds;
  const std::size_t free = left_free(known.budget) + known.reserve;
  known.plan = plan_step(known.profile, known.budget - std::min(known.budget / 2, free));
  ++statistics_.plans;
  if (known.plan.is_feasible) return;
  known.plan = known.best;
  known.is_settled = true;
}

std::size_t RepeatedStep::smallest_budget(double most_again) const {
  const auto known = known_.find(key_);
  if (known != known_.end()) return with_rounding(smallest_limit(known->second.profile, most_again));
  if (profile_.events.empty()) return 0;
  // What the backward has not come to yet it will want in the reverse order, with as much beside it as there was so
  // far.
  StepProfile whole = profile_;
  std::vector<std::uint32_t> saved;
  std::size_t others = 0;
  for (const StepProfile::Event& event : profile_.events) {
    if (event.kind == EventKind::saved) saved.push_back(event.which);
    if (event.kind == EventKind::released) std::erase(saved, event.which);
    others = std::max(others, event.now);
  }
  while (!saved.empty()) {
    const auto next = static_cast<std::uint32_t>(whole.events.size() + 1);
    whole.events.push_back({EventKind::wanted, saved.back(), others, others, next});
    whole.events.push_back({EventKind::released, saved.back(), others, others, next});
    saved.pop_back();
  }
  return with_rounding(smallest_limit(whole, most_again));
}

}  // namespace poolgrad
