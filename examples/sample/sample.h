// examples/sample, reentrant within a process: options and text generation.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "examples/support/console.h"
#include "nn/training/sampler.h"

namespace poolgrad::examples {

struct SampleOptions {
  std::string checkpoint;             // from ./run train --save, or a folder in Hugging Face's format
  std::optional<std::string> prompt;  // default: the prompt file, else standard input, whole or by lines
  std::string prompt_file;
  std::int64_t bytes = 300;
  nn::SamplerOptions sampler;
  std::string device = "cpu";
  bool json = false;
};

/// Input and output streams, and whether they are terminals.
struct SampleStreams {
  std::istream& in;
  std::ostream& out;    // the texts, token by token
  std::ostream& notes;  // all other output
  bool in_terminal = false, out_terminal = false;
};

/// Reads the command line. Returns the exit code if the program must end at once (--help, an error), else -1.
int parse_sample_options(int argc, const char* const* argv, SampleOptions& options);

/// Writes the prompt and its continuation. Without a prompt or file, and with a terminal as input: continues each line
/// read, or its own text after an empty line, until the input ends; SIGINT ends a text. Filters control characters for
/// terminals. Throws ValueError for an empty prompt or invalid sampling options, and FileError.
void sample(const SampleOptions& options, const SampleStreams& streams);

}  // namespace poolgrad::examples
