// The allocator lab: records, replays and reports memory use.
//
//   lab record --workload train --steps 3 -o train.pgt     real training steps, traced
//   lab report train.pgt -o report.html                    one self-contained page
//   lab compare                                            every policy on every workload of the zoo
//   lab replay zoo:checkerboard --policy pytorch --find-min-capacity
//   lab demo-oom                                           the reclaim policy, stage by stage
//   lab export train.pgt --format pytorch -o snapshot.pickle
//   lab list                                               policies and workloads
//
// Expected of `compare`: a table per workload, then averages, and the result for each of the allocator's goals.
#include <iostream>

#include "examples/lab/lab.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  return run_program([&] { return run_lab(argc, argv, std::cout, std::cerr, Progress::is_terminal()); }, {});
}
