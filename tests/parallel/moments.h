// A short training run that a rank may leave at any of eleven moments: by an exception, or killed. Files are watched
// through the calls of the system that this replaces in the program.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tests/parallel/training_support.h"

namespace poolgrad::parallel::testing_support {

enum class Moment {
  start,                  // before anything is exchanged
  before_the_first_step,  //
  forward,                // before keys and values are sent
  ring_exchange,          // while they are on their way
  backward,               // before the first gradient of a parameter
  gradient_reduction,     // while the last buckets are on their way
  optimizer_step,         // before updated parameters are sent
  writing,   // rank 0: half of the checkpoint's first bytes are written; others: before states are gathered
  renaming,  // rank 0: all of it is written beside the old one; others: they have sent theirs
  report,    // before the held-out text is read
  end
};
inline constexpr Moment all_moments[] = {Moment::start,
                                         Moment::before_the_first_step,
                                         Moment::forward,
                                         Moment::ring_exchange,
                                         Moment::backward,
                                         Moment::gradient_reduction,
                                         Moment::optimizer_step,
                                         Moment::writing,
                                         Moment::renaming,
                                         Moment::report,
                                         Moment::end};
std::string to_string(Moment moment);

/// Whether this rank is to fail now. May kill the process in place of an answer.
using Strikes = std::function<bool(Moment)>;

/// One rank: two steps, a checkpoint at `path`, a third step, the checkpoint again, and the held-out text. From the
/// third step on, and at the start, it throws ValueError("out of luck") where `strikes` says so, or the file does as on
/// a disk that is full.
void train_until(const Strikes& strikes, const std::shared_ptr<attention::Communicator>& all, const Grid& grid,
                 const std::string& path);
/// What `path` has: the steps that were done, 0 where there is no file. Throws FileError for one that is not whole.
std::int64_t steps_of(const std::string& path);

}  // namespace poolgrad::parallel::testing_support
