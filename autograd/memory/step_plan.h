// A plan for a step that repeats: once it is known what a step records, what its backward wants and when, and what
// else is in memory meanwhile, it can be decided before the step what is dropped at which moment, so that what is
// computed again costs little in all. Here is no tensor: a profile of a step goes in, a list of moments comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace poolgrad {

/// What happened in a step. Results are storages that operators made; a result is kept from the event that saves it to
/// the one that releases it, and where it was dropped in between, its operation is run again when it is wanted.
struct StepProfile {
  struct Operation {
    std::uint64_t kind = 0;                          // equal for operators of the same name and sizes
    double nanoseconds = 0;                          // to run it again
    std::size_t scratch = 0;                         // bytes that it needs besides its results while it runs
    std::vector<std::uint32_t> reads{};              // results, in the order of its inputs
    std::vector<std::uint32_t> makes{};              // results
    bool operator==(const Operation& other) const {  // as far as the program fixes it
      return kind == other.kind && reads == other.reads && makes == other.makes;
    }
  };
  struct Result {
    std::size_t bytes = 0;
    std::uint32_t operation = 0;
  };
  enum class Kind : std::uint8_t { recorded, saved, wanted, released };
  struct Event {
    Kind kind = Kind::recorded;
    std::uint32_t which = 0;       // an operation where it is recorded, else a result
    std::size_t before = 0;        // bytes besides the results that are kept: the most since the last event,
    std::size_t now = 0;           // and at this one
    std::uint32_t used_until = 0;  // saved, wanted: the event by which nobody else holds the result
  };
  std::vector<Operation> operations;
  std::vector<Result> results;
  std::vector<Event> events;
};

/// What is dropped when.
struct StepPlan {
  static constexpr std::uint32_t after = UINT32_MAX;
  struct Drop {
    std::uint32_t event;
    std::uint32_t run;  // before the run-th operation (from 0) that this event makes run again; `after` them all
    std::uint32_t result;
  };
  std::vector<Drop> drops;   // in order
  std::size_t peak = 0;      // bytes of everything, as the profile has it
  double nanoseconds = 0;    // of what is computed again
  double bound = 0;          // no plan takes less
  bool is_feasible = false;  // else the rest says nothing
};

/// Walks through the step, and where its memory would exceed `limit` bytes drops what is worth least: the nanoseconds
/// that it and everything missing before it would take to compute again, for each byte and each event until the
/// backward needs it, directly or to compute something else. Walks again with other weights, for single results and for
/// all of a kind, as long as that is found to be better, for at most `effort` elementary steps (about a nanosecond
/// each). The same for the same arguments.
StepPlan plan_step(const StepProfile& step, std::size_t limit, std::uint64_t effort = 30'000'000);

/// No plan within `limit` bytes computes less again, in nanoseconds: at each event, what the backward still wants and
/// is not kept has to be computed at least once, and the cheapest choice of what is kept is a fractional knapsack.
double least_nanoseconds(const StepProfile& step, std::size_t limit);

/// The least limit, to a 512th, within which a step gets through that does not know its future, without computing for
/// more than `most_again` times what was recorded.
std::size_t smallest_limit(const StepProfile& step, double most_again);

}  // namespace poolgrad
