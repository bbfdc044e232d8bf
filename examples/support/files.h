// Checks a program's input and output files, so that no output destroys an input or another output.
#pragma once

#include <string>
#include <vector>

namespace poolgrad::examples {

struct InputFile {
  std::string what;              // "the text"
  std::string path;              // of a file, or of a folder that is read; empty: none
  std::string replaced_by = {};  // the one option that may overwrite it
};

struct OutputFile {
  std::string option;  // "--json"
  std::string path;    // empty: none
  bool may_be_standard_output = false;
};

/// Checks before any write. Throws ValueError, one sentence: for output that would replace an input, for two outputs to
/// one file under any names, and for "-" if standard output has other text.
void check_files(const std::string& program, const std::vector<OutputFile>& outputs,
                 const std::vector<InputFile>& inputs = {});

}  // namespace poolgrad::examples
