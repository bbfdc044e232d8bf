#include <CLI/CLI.hpp>

#include "examples/headline/headline.h"

namespace poolgrad::examples {

int parse_headline_options(int argc, const char* const* argv, HeadlineOptions& o) {
  CLI::App app("Runs the rows of the original reports' tables with exact mathematics, and prints their figures beside.",
               "headline");
  app.option_defaults()->always_capture_default();
  app.add_option("--rows", o.rows, "Rows or groups to run, by the beginning of their names (default: all)")
      ->delimiter(',');
  app.add_flag("--list", o.list, "Name the rows and stop");
  app.add_option("--device", o.device, "cpu or cuda:N");
  app.add_option("--dtype", o.dtype, "Storage of the tensors: f16, bf16 or f32");
  app.add_option("--row-seconds", o.row_seconds, "Leave out rows that would take longer than this");
  app.add_option("--seconds", o.seconds, "Time for each row that streams a billion tokens");
  app.add_option("--memory", o.memory, "Bytes that rows may use, such as 8GiB (default: 9/10 of what is free)");
  app.add_option("--seed", o.seed, "Decides the inputs");
  app.add_option("--json", o.json, "File to write as JSON; - for standard output");
  app.add_option("--html", o.html, "Page to write");
  app.add_flag("--quiet", o.quiet, "Print no tables");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return -1;
}

}  // namespace poolgrad::examples
