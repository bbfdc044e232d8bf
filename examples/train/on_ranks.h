// The ranks of a training run: processes started by mpirun or srun.
#pragma once

#include <functional>
#include <iosfwd>

#include "examples/support/train.h"

namespace poolgrad::examples {

using TrainCall = std::function<void(const TrainOptions& options, std::ostream& out, bool live)>;

/// Calls `run` as options.parallel says: once, or on every rank, with options.ranks and, except on rank 0, without
/// output. Throws ValueError if ranks have no split to use, Error without MPI, and the errors of a single `run`. Rank 0
/// reports errors of ranks, also differing programs or options, on standard error; then all ranks throw an exception
/// without a message.
void on_ranks(TrainOptions options, std::ostream& out, bool live, const TrainCall& run);

}  // namespace poolgrad::examples
