// Text from a model that `train --save` has trained.
//
//   sample book.safetensors                            a line in, text out: interactive
//   sample book.safetensors --prompt "Once upon"       one text
//   sample book.safetensors < beginning.txt            what the file begins
//   sample book.safetensors --temperature 0 --json     for programs
#include "examples/sample/sample.h"

#include <unistd.h>

#include <iostream>

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  SampleOptions options;
  return run_program([&] { return parse_sample_options(argc, argv, options); },
                     [&](std::ostream& out, bool terminal) {
                       sample(options, {std::cin, out, std::cerr, isatty(STDIN_FILENO) == 1, terminal});
                     });
}
