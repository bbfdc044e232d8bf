// Generates text with a model saved by `train --save`.
//
//   sample book.safetensors                            interactive: continues each line
//   sample book.safetensors --prompt "Once upon"       one text
//   sample book.safetensors < beginning.txt            continues the file
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
