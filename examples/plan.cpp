// What a training run will need, without running it: every request of its steps, on a simulated device.
//
//   plan                                              what ./run train will reserve, and where it goes
//   plan --context 65536 --memory 8GiB                does it fit?
//   plan --layers 6 --width 512 --heads 8 --dtype bf16 --memory 8GiB --longest
//   plan --policies --memory 64MiB                    which way to save memory fits, and what it costs in time
//   plan --policies --measure --html plan.html        and does it? trains each for a few steps, in three patterns
//   plan --vary attention=causal,window --longest --html plan.html
//   plan --ranks 64 --link 50GB/s,5us --device h200          a step on so many ranks: messages, memory, time, on paper
//
// Expected: the peaks of `train --budget MEMORY` on this machine, to the byte, in well under a second.
#include "examples/plan/plan.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  PlanOptions options;
  return run_program([&] { return parse_plan_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { run_plan(options, out, live); });
}
