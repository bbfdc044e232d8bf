// Expected: one table for each report, its figures beside those of this machine; the whole takes about ten minutes on
// two cores, --rows runs a part of it.
#include <exception>
#include <iostream>

#include "examples/headline/headline.h"
#include "examples/support/progress.h"

int main(int argc, char** argv) {
  poolgrad::examples::HeadlineOptions options;
  const int code = poolgrad::examples::parse_headline_options(argc, argv, options);
  if (code >= 0) return code;
  try {
    poolgrad::examples::run_headline(options, std::cout, poolgrad::examples::Progress::is_terminal());
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
