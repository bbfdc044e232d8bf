// examples/sample, callable more than once in a process: what it can be told, and the texts it writes.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "examples/support/console.h"
#include "nn/training/sampler.h"

namespace poolgrad::examples {

struct SampleOptions {
  std::string checkpoint;             // of ./run train --save
  std::optional<std::string> prompt;  // else that of the file, else what stands on standard input, else lines of it
  std::string prompt_file;
  std::int64_t bytes = 300;
  nn::SamplerOptions sampler;
  std::string device = "cpu";
  bool json = false;
};

/// Where text comes from and goes to, and whether people sit there.
struct SampleStreams {
  std::istream& in;
  std::ostream& out;    // the texts, token by token
  std::ostream& notes;  // all else
  bool in_terminal = false, out_terminal = false;
};

/// Reads the command line. Returns the exit code if the program is to end at once (--help, a fault), else -1.
int parse_sample_options(int argc, const char* const* argv, SampleOptions& options);

/// Writes the prompt and what follows it. With neither prompt nor file and a person at the input: goes on from each
/// line that is read, and from its own text after an empty one, until the input ends; SIGINT ends a text. Control
/// characters are kept from a terminal. Throws ValueError for an empty prompt and what no text can be drawn by, and
/// FileError.
void sample(const SampleOptions& options, const SampleStreams& streams);

}  // namespace poolgrad::examples
