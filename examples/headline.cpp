// Expected: one table for each report, its figures beside those of this machine; the whole takes about ten minutes on
// two cores, --rows runs a part of it.
#include "examples/headline/headline.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  HeadlineOptions options;
  return run_program([&] { return parse_headline_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { run_headline(options, out, live); });
}
