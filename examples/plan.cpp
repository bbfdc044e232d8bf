// Predicts the memory of a training run: makes all its allocations on a simulated device, without arithmetic.
//
//   plan                                              reserved bytes of ./run train, and their use
//   plan --context 65536 --memory 8GiB                does it fit?
//   plan --layers 6 --width 512 --heads 8 --dtype bf16 --memory 8GiB --longest
//   plan --policies --memory 64MiB                    the memory policies that fit, and their step times
//   plan --policies --measure --html plan.html        also trains each for a few steps, in three patterns
//   plan --vary attention=causal,window --longest --html plan.html
//
// Expected: exactly the peaks of `train --budget MEMORY` on this machine, in well under a second.
#include "examples/plan/plan.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  PlanOptions options;
  return run_program([&] { return parse_plan_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { run_plan(options, out, live); });
}
