// Compares kinds of attention on one text, and on tasks of recall, with one model and time budget.
//
//   compare                                                  causal, window and dilated, four minutes each
//   compare --attention window,dilated --budget 1min --text book.txt --html compare.html
//   compare --attention causal,window --steps 200            a number of steps instead of time
//   compare --task mqar,recall:256:4096 --layers "2*causal;window,causal+nope"   right answers by distance
//
// Expected in four minutes at context 4096 on two cores: cheaper kinds take more steps. `by position` shows whether
// distant context helped.
#include "examples/compare/compare.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  CompareOptions options;
  return run_program([&] { return parse_compare_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { check_ended(run_compare(options, out, live)); });
}
