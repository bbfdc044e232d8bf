// The ranks of a training run: processes that mpirun or srun has started.
#pragma once

#include <functional>
#include <iosfwd>

#include "examples/support/train.h"

namespace poolgrad::examples {

using TrainCall = std::function<void(const TrainOptions& options, std::ostream& out, bool live)>;

/// Calls `run` as options.parallel says: by itself, or on every rank, with options.ranks and, but for rank 0, nowhere
/// to print to. Throws ValueError where ranks are not told what to share, Error without MPI, and what `run` throws by
/// itself. What goes wrong on ranks, other programs or options than those of rank 0 among it, rank 0 says on standard
/// error; then all throw an exception without a text.
void on_ranks(TrainOptions options, std::ostream& out, bool live, const TrainCall& run);

}  // namespace poolgrad::examples
