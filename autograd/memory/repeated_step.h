// Steps that repeat: what each does is written down as it goes by, and once it is known what one does, its results are
// dropped by a plan (step_plan.h) the next time. A step begins with the first operator that is recorded after
// everything saved by the one before was released.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "autograd/memory/rematerialisation.h"
#include "autograd/memory/step_plan.h"

namespace poolgrad {

/// What a plan is about, for those who keep it.
struct PlannedResult {
  virtual ~PlannedResult() = default;
  /// Its data is not there, or nobody else holds it.
  virtual bool is_idle() const = 0;
  virtual std::size_t size() const = 0;  // bytes

  std::uint64_t step = 0;
  std::uint32_t place = 0;  // among the results of the step
};

/// Not for several threads at once. `kept` is what results take in memory that could be dropped, in bytes.
class RepeatedStep {
 public:
  /// Until this is called, nothing is written down and nothing is due.
  void plan_for(CachingAllocator& pool) { pool_ = &pool; }
  bool is_on() const { return pool_ != nullptr; }

  // What happens, in this order.
  void recorded(const std::string& name, double nanoseconds, const std::vector<PlannedResult*>& reads,
                const std::vector<std::shared_ptr<PlannedResult>>& makes, std::size_t kept);
  void saved(const PlannedResult& result);
  void wanted(const PlannedResult& result, std::size_t kept);
  void released(const PlannedResult& result, std::size_t kept);
  /// An operator is going to run again, and has run.
  void computes(std::size_t kept);
  void computed(double nanoseconds);
  /// `kept` is going to change.
  void changes(std::size_t kept);
  /// And is less now: what was live before is not the most since the last event, with less of it kept.
  void changed();
  /// Something had to be dropped that was not due.
  void had_to_drop(std::size_t bytes) { unplanned_bytes_ += bytes; }

  /// What is to be dropped by now; each is asked for once, and nobody else holds it.
  std::vector<std::shared_ptr<PlannedResult>> due();
  /// A budget of the pool, in bytes, within which steps like the one seen last get through, the first one too: the
  /// least up to a few hundredths. Where its backward has not been seen to its end, the rest is guessed; 0 without a
  /// step.
  std::size_t smallest_budget(double most_again) const;
  PlanStatistics statistics() const { return statistics_; }

 private:
  /// What is known of steps that begin with the same operator.
  struct Known {
    StepProfile profile;
    StepPlan plan;
    std::size_t budget = 0;   // that the plan is for
    std::size_t reserve = 0;  // of which the plan leaves so much free: pages are not always full
    int rounds = 0;
    int changes = 0;        // times in a row that the step was not what it was before
    double best_again = 0;  // nanoseconds, measured
    StepPlan best;          // infeasible: no plan at all
    bool is_settled = false;
  };

  void add(StepProfile::Event event, std::size_t kept);
  void add_quietly(StepProfile::Event event);
  void begin(std::uint64_t first_kind);
  void finish();
  void make_plan(Known& known);
  bool is_of_this_step(const PlannedResult& result) const { return result.step == step_ && step_ != 0; }

  CachingAllocator* pool_ = nullptr;
  std::map<std::uint64_t, Known> known_;  // by the kind of the first operator
  std::uint64_t step_ = 0, key_ = 0;
  StepProfile profile_;  // of the present step
  std::vector<std::weak_ptr<PlannedResult>> results_;
  std::vector<std::pair<std::uint32_t, std::weak_ptr<PlannedResult>>> in_use_;  // since which event
  std::size_t saved_now_ = 0;
  bool saved_any_ = false, is_too_long_ = false;
  std::size_t most_others_ = 0;  // since the last event
  bool computes_ = false;
  std::uint32_t run_ = 0;
  const Known* followed_ = nullptr;
  std::size_t next_drop_ = 0;
  std::vector<std::weak_ptr<PlannedResult>> postponed_;
  std::size_t unplanned_bytes_ = 0;
  double again_ = 0;
  PlanStatistics statistics_;
};

}  // namespace poolgrad
