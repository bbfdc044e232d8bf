// A short training run that a rank may leave at any of eleven moments, by an exception or by a kill. The program
// replaces system calls to watch its files.
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
  ring_exchange,          // while they are in transit
  backward,               // before the first gradient of a parameter
  gradient_reduction,     // while the last buckets are in transit
  optimizer_step,         // before updated parameters are sent
  writing,   // rank 0: half of the checkpoint's first bytes are written; others: before states are gathered
  renaming,  // rank 0: all of it is written beside the old one; others: they have sent theirs
  report,    // before the validation text is read
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

/// Returns whether this rank must fail now. May kill the process instead.
using Strikes = std::function<bool(Moment)>;

/// One rank: two steps, a checkpoint at `path`, a third step, the checkpoint again, and the validation. At the start,
/// and from the third step on, it fails where `strikes` returns true. It then throws ValueError("out of luck"), or the
/// write to the file fails as on a full disk.
void train_until(const Strikes& strikes, const std::shared_ptr<attention::Communicator>& all, const Grid& grid,
                 const std::string& path);
/// Returns the number of steps in the checkpoint `path`, 0 if there is no file. Throws FileError for an incomplete
/// file.
std::int64_t steps_of(const std::string& path);

}  // namespace poolgrad::parallel::testing_support
