#include "autograd/memory/step_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <utility>

namespace poolgrad {
namespace {

using Kind = StepProfile::Kind;
constexpr double no_limit = std::numeric_limits<double>::infinity();
constexpr std::uint32_t never = UINT32_MAX;

/// What a walk goes by besides the profile.
struct Weights {
  double patience = 1;  // the power of the time until something is needed
  std::vector<double>
      results;  // larger: kept rather; empty: the future is not known, as to Rematerialisation::client()
};

class Walk {
 public:
  explicit Walk(const StepProfile& step) : step_(step), wants_(step.results.size()) {
    for (std::uint32_t e = 0; e < step.events.size(); ++e)
      if (step.events[e].kind == Kind::wanted) wants_[step.events[e].which].push_back(e);
  }

  /// False where it does not fit, or takes more than `most` nanoseconds; then the plan is good for nothing.
  bool go(std::size_t limit, const Weights& weights, double most, StepPlan& plan) {
    const std::size_t count = step_.results.size();
    limit_ = limit;
    weights_ = &weights;
    most_ = most;
    plan_ = &plan;
    plan = {};
    bytes_ = 0;
    held_.assign(count, false);
    saved_.assign(count, false);
    used_until_.assign(count, 0);
    locks_.assign(count, 0);
    next_.assign(count, 0);
    listed_.clear();
    target_ = never;
    for (now_ = 0; now_ < step_.events.size(); ++now_) {
      const StepProfile::Event& event = step_.events[now_];
      run_ = 0;
      if (event.kind == Kind::saved) {
        saved_[event.which] = true;
        used_until_[event.which] = event.used_until;
        if (!held_[event.which]) hold(event.which);
      } else if (event.kind == Kind::wanted) {
        if (!held_[event.which] && !restore(event.which, event.now)) return false;
        used_until_[event.which] = event.used_until;
      } else if (event.kind == Kind::released) {
        saved_[event.which] = false;
        if (held_[event.which]) let_go(event.which);
      }
      run_ = StepPlan::after;
      if (now_ + 1 < step_.events.size() && !make_room(step_.events[now_ + 1].before)) return false;
    }
    plan.is_feasible = true;
    return true;
  }

  std::uint64_t effort() const { return effort_; }

 private:
  void hold(std::uint32_t result) {
    held_[result] = true;
    bytes_ += step_.results[result].bytes;
    if (!knows_future()) list(result, step_.operations[step_.results[result].operation].nanoseconds / size(result));
  }
  void let_go(std::uint32_t result) {
    held_[result] = false;
    bytes_ -= step_.results[result].bytes;
    if (!knows_future()) listed_.erase({listed_at_[result], result});
  }
  void list(std::uint32_t result, double price) {
    listed_at_.resize(held_.size());
    listed_at_[result] = price;
    listed_.emplace(price, result);
  }
  bool knows_future() const { return !weights_->results.empty(); }
  double size(std::uint32_t result) const { return static_cast<double>(step_.results[result].bytes); }
  bool is_in_use(std::uint32_t result) const {
    return locks_[result] != 0 || (saved_[result] && used_until_[result] > now_);
  }

  bool restore(std::uint32_t wanted, std::size_t others) {
    struct Frame {
      std::uint32_t result;
      std::size_t read = 0;
    };
    std::vector<Frame> frames{{wanted}};
    std::vector<std::uint32_t> passing;
    target_ = wanted;
    while (!frames.empty()) {
      Frame& frame = frames.back();
      const StepProfile::Operation& operation = step_.operations[step_.results[frame.result].operation];
      for (; frame.read < operation.reads.size() && held_[operation.reads[frame.read]]; ++frame.read)
        ++locks_[operation.reads[frame.read]];
      if (frame.read < operation.reads.size()) {
        frames.push_back({operation.reads[frame.read]});
        continue;
      }
      std::size_t needed = others + operation.scratch;
      for (const std::uint32_t made : operation.makes) needed += step_.results[made].bytes;
      if (!make_room(needed)) return false;
      plan_->nanoseconds += operation.nanoseconds;
      if (plan_->nanoseconds >= most_) return false;
      ++run_;
      for (const std::uint32_t made : operation.makes) {
        if (held_[made]) continue;
        hold(made);
        if (!saved_[made]) passing.push_back(made);
      }
      for (const std::uint32_t read : operation.reads) --locks_[read];
      frames.pop_back();
    }
    target_ = never;
    for (const std::uint32_t made : passing)
      if (held_[made]) let_go(made);
    return true;
  }

  /// Drops until `others` fit beside what is kept.
  bool make_room(std::size_t others) {
    while (bytes_ + others > limit_) {
      const std::uint32_t victim = knows_future() ? worth_least() : cheapest_listed();
      if (victim == never) return false;
      let_go(victim);
      plan_->drops.push_back({now_, run_, victim});
    }
    plan_->peak = std::max(plan_->peak, bytes_ + others);
    return true;
  }

  std::uint32_t worth_least() {
    find_due();
    std::uint32_t found = never;
    double least = no_limit;
    for (std::uint32_t r = 0; r < held_.size(); ++r) {
      if (!held_[r] || is_in_use(r)) continue;
      double worth = 0;
      if (due_[r] != never)
        worth =
            weights_->results[r] * price(r, no_limit) / size(r) / std::pow(1.0 + due_[r] - now_, weights_->patience);
      if (worth < least) {
        least = worth;
        found = r;
      }
    }
    return found;
  }

  /// As Rematerialisation does it.
  std::uint32_t cheapest_listed() {
    for (auto place = listed_.begin(); place != listed_.end();) {
      const std::uint32_t result = place->second;
      const auto next = std::next(place);
      if (!is_in_use(result)) {
        const double enough = next == listed_.end() ? no_limit : next->first;
        const double found = price(result, enough * size(result)) / size(result);
        if (found <= enough) return result;
        listed_.erase(place);
        list(result, found);
      }
      place = next;
    }
    return never;
  }

  /// The event that needs each result next, be it to compute another.
  void find_due() {
    due_.assign(held_.size(), never);
    for (auto r = static_cast<std::uint32_t>(held_.size()); r-- > 0;) {
      if (saved_[r]) {
        while (next_[r] < wants_[r].size() && wants_[r][next_[r]] <= now_) ++next_[r];
        if (next_[r] < wants_[r].size()) due_[r] = std::min(due_[r], wants_[r][next_[r]]);
      }
      if (held_[r]) continue;
      if (r == target_) due_[r] = now_;
      if (due_[r] == never) continue;
      const StepProfile::Operation& operation = step_.operations[step_.results[r].operation];
      effort_ += 2 + operation.reads.size();
      for (const std::uint32_t read : operation.reads) due_[read] = std::min(due_[read], due_[r]);
    }
    effort_ += held_.size();
  }

  /// Nanoseconds to compute it, and whatever is missing before it, again. Looks no further once it is above `enough`.
  double price(std::uint32_t result, double enough) {
    constexpr std::size_t far = 64;
    ++stamp_;
    stamps_.resize(step_.operations.size(), 0);
    open_.assign(1, step_.results[result].operation);
    stamps_[open_[0]] = stamp_;
    double nanoseconds = 0;
    for (std::size_t i = 0; i < open_.size() && i < far && nanoseconds <= enough; ++i) {
      const StepProfile::Operation& operation = step_.operations[open_[i]];
      nanoseconds += operation.nanoseconds;
      for (const std::uint32_t read : operation.reads) {
        if (held_[read]) continue;
        const std::uint32_t before = step_.results[read].operation;
        if (std::exchange(stamps_[before], stamp_) != stamp_) open_.push_back(before);
      }
      effort_ += 4 + operation.reads.size();
    }
    return nanoseconds;
  }

  const StepProfile& step_;
  std::vector<std::vector<std::uint32_t>> wants_;
  std::size_t limit_ = 0, bytes_ = 0;
  double most_ = 0;
  const Weights* weights_ = nullptr;
  StepPlan* plan_ = nullptr;
  std::uint32_t now_ = 0, run_ = 0;
  std::uint32_t target_ = never;                       // what is being computed again
  std::set<std::pair<double, std::uint32_t>> listed_;  // nanoseconds a byte, result
  std::vector<double> listed_at_;
  std::vector<char> held_, saved_;
  std::vector<std::uint32_t> used_until_, locks_, next_, due_, stamps_, open_;
  std::uint32_t stamp_ = 0;
  std::uint64_t effort_ = 0;
};

double recorded_nanoseconds(const StepProfile& step) {
  double sum = 0;
  for (const StepProfile::Operation& operation : step.operations) sum += operation.nanoseconds;
  return sum;
}

}  // namespace

StepPlan plan_step(const StepProfile& step, std::size_t limit, std::uint64_t effort) {
  Walk walk(step);
  StepPlan best, tried;
  const auto most = [&] { return best.is_feasible ? best.nanoseconds : no_limit; };
  Weights weights{1, std::vector<double>(step.results.size(), 1.0)};
  for (const double patience : {1.0, 0.0, 0.5, 2.0}) {
    const Weights other{patience, weights.results};
    if (!walk.go(limit, other, most(), tried)) continue;
    std::swap(best, tried);
    weights.patience = patience;
  }
  if (!best.is_feasible) return best;
  best.bound = least_nanoseconds(step, limit);
  std::vector<std::uint32_t> dropped;  // what is worth another weight: the rest is never missing
  const auto list_dropped = [&] {
    dropped.clear();
    for (const StepPlan::Drop& drop : best.drops) dropped.push_back(drop.result);
  };
  list_dropped();
  std::mt19937_64 random(1);
  for (int fruitless = 0; fruitless < 400 && walk.effort() < effort && !dropped.empty(); ++fruitless) {
    Weights other = weights;
    const auto any = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const double factor = std::array{8.0, 2.0, 0.5, 0.125}[any(4)];
    const auto chosen =
        any(3) == 0 ? static_cast<std::uint32_t>(any(step.results.size())) : dropped[any(dropped.size())];
    const std::uint64_t kind = step.operations[step.results[chosen].operation].kind;
    const bool all = any(2) == 0;
    for (std::uint32_t r = 0; r < step.results.size(); ++r)
      if (r == chosen || (all && step.operations[step.results[r].operation].kind == kind)) other.results[r] *= factor;
    if (!walk.go(limit, other, best.nanoseconds, tried)) continue;
    tried.bound = best.bound;
    std::swap(best, tried);
    std::swap(weights, other);
    list_dropped();
    fruitless = 0;
  }
  return best;
}

double least_nanoseconds(const StepProfile& step, std::size_t limit) {
  std::vector<std::uint32_t> last_want(step.results.size(), 0), used_until(step.results.size(), 0);
  for (std::uint32_t e = 0; e < step.events.size(); ++e)
    if (step.events[e].kind == Kind::wanted) last_want[step.events[e].which] = e;
  struct Item {
    double nanoseconds = 0;
    std::size_t bytes = 0;
    double price() const { return nanoseconds / static_cast<double>(bytes); }
  };
  // What nobody saves and one operator alone reads is computed whenever that one is.
  std::vector<char> saved(step.results.size(), false);
  std::vector<int> readers(step.results.size(), 0);
  std::vector<double> nanoseconds(step.operations.size());
  for (const StepProfile::Event& event : step.events)
    if (event.kind == Kind::saved) saved[event.which] = true;
  for (const StepProfile::Operation& operation : step.operations)
    for (const std::uint32_t read : operation.reads) ++readers[read];
  for (std::size_t o = 0; o < step.operations.size(); ++o) {
    nanoseconds[o] = step.operations[o].nanoseconds;
    for (const std::uint32_t read : step.operations[o].reads) {
      const std::vector<std::uint32_t>& siblings = step.operations[step.results[read].operation].makes;
      if (siblings.size() == 1 && !saved[read] && readers[read] == 1)
        nanoseconds[o] += nanoseconds[step.results[read].operation];
    }
  }
  std::ranges::fill(saved, false);
  std::vector<Item> of_operation(step.operations.size()), items;
  double most = 0;
  for (std::uint32_t e = 0; e < step.events.size(); ++e) {
    const StepProfile::Event& event = step.events[e];
    // Before the event: what is saved, and wanted at it or later.
    std::size_t bytes = event.before;
    std::ranges::fill(of_operation, Item{});
    for (std::uint32_t r = 0; r < step.results.size(); ++r) {
      if (!saved[r]) continue;
      if (used_until[r] >= e) {
        bytes += step.results[r].bytes;
      } else if (last_want[r] >= e) {
        Item& item = of_operation[step.results[r].operation];
        item.nanoseconds = nanoseconds[step.results[r].operation];
        item.bytes += step.results[r].bytes;
        bytes += step.results[r].bytes;
      }
    }
    if (bytes > limit) {
      items.clear();
      std::ranges::copy_if(of_operation, std::back_inserter(items), [](const Item& item) { return item.bytes > 0; });
      std::ranges::sort(items, {}, &Item::price);
      double sum = 0;
      auto excess = static_cast<double>(bytes - limit);
      for (const Item& item : items) {
        if (excess <= 0) break;
        sum += item.nanoseconds * std::min(1.0, excess / static_cast<double>(item.bytes));
        excess -= static_cast<double>(item.bytes);
      }
      most = std::max(most, sum);
    }
    if (event.kind == Kind::saved) saved[event.which] = true;
    if (event.kind == Kind::released) saved[event.which] = false;
    if (event.kind == Kind::saved || event.kind == Kind::wanted) used_until[event.which] = event.used_until;
  }
  return most;
}

std::size_t smallest_limit(const StepProfile& step, double most_again) {
  Walk walk(step);
  StepPlan plan;
  const Weights weights{0, {}};
  const double most = most_again * recorded_nanoseconds(step);
  std::size_t enough = std::numeric_limits<std::size_t>::max() / 2, too_small = 0;
  if (!walk.go(enough, weights, no_limit, plan)) return 0;
  const std::size_t unlimited = enough = plan.peak;
  while (enough - too_small > enough / 512 + 1) {
    const std::size_t between = too_small + (enough - too_small) / 2;
    (walk.go(between, weights, most, plan) ? enough : too_small) = between;
  }
  // With more memory other things are dropped, once in a while worse ones: no failure for the next few hundredths.
  for (std::size_t above = enough; above < std::min(enough + enough / 32, unlimited); above += above / 256 + 1)
    if (!walk.go(above, weights, most, plan)) enough = above + above / 256 + 1;
  return enough;
}

}  // namespace poolgrad
