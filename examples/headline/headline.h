// The headline program: every row of the original reports that this machine can run, beside what they claimed.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace poolgrad::examples {

struct HeadlineOptions {
  std::vector<std::string> rows = {};  // prefixes of rows' or groups' names; empty: all
  std::string device = "cpu";
  std::string dtype = "f16";
  double row_seconds = 60;
  double seconds = 30;      // for each streamed row
  std::string memory = {};  // that rows may use; empty: nine tenths of what is free
  std::uint64_t seed = 1;
  bool list = false;
  std::string json = {}, html = {};  // files to write; "-" for standard output
  bool quiet = false;
};

/// Reads the command line. Returns the exit code if the program is to end at once (--help, a fault), else -1.
int parse_headline_options(int argc, const char* const* argv, HeadlineOptions& options);

/// Runs and prints. Throws ValueError where no row has such a name or a number is out of range.
void run_headline(const HeadlineOptions& options, std::ostream& out, bool live);

}  // namespace poolgrad::examples
