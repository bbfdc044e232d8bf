// Expected: one table for each report, with its figures beside those of this machine. All rows take about ten minutes
// on two cores; --rows selects some.
#include "examples/headline/headline.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  HeadlineOptions options;
  return run_program([&] { return parse_headline_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { run_headline(options, out, live); });
}
