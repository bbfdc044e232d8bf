// Kinds of attention beside each other: one text, one model, one budget of time.
//
//   compare                                                  causal, window and dilated, four minutes each
//   compare --attention window,dilated --budget 1min --text book.txt --html compare.html
//   compare --attention causal,window --steps 200            so many steps in place of time
//
// Expected of four minutes at context 4096 on two cores: what is cheap takes more steps. `by position` says whether
// what lies far back helped.
#include "examples/compare/compare.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  CompareOptions options;
  return run_program([&] { return parse_compare_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { check_ended(run_compare(options, out, live)); });
}
