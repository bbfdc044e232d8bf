// The files that a program is told to read and to write: none is lost by writing another.
#pragma once

#include <string>
#include <vector>

namespace poolgrad::examples {

struct InputFile {
  std::string what;              // "the text"
  std::string path;              // of a file, or of a folder that is read; empty: none
  std::string replaced_by = {};  // the one option that may write there all the same
};

struct OutputFile {
  std::string option;  // "--json"
  std::string path;    // empty: none
  bool may_be_standard_output = false;
};

/// Before anything is written: throws ValueError, one sentence, for output that would replace what is read, for two
/// that lead to one file, by whatever names, and for "-" where standard output has other text.
void check_files(const std::string& program, const std::vector<OutputFile>& outputs,
                 const std::vector<InputFile>& inputs = {});

}  // namespace poolgrad::examples
