#include "examples/lab/lab.h"

#include <CLI/CLI.hpp>
#include <exception>
#include <ostream>
#include <vector>

namespace poolgrad::examples {

int run_lab(int argc, const char* const* argv, std::ostream& out, std::ostream& errors, bool live) {
  CLI::App app("Records, replays, compares and draws what an allocator does.", "lab");
  app.require_subcommand(1);
  app.footer("A TRACE is a file (.pgt, PyTorch memory snapshot as pickle or JSON, RMM CSV) or zoo:NAME.");
  ConsoleOptions options;
  std::vector<Command> commands;
  for (const auto add : {add_record, add_replay, add_compare, add_report, add_demo_oom, add_export, add_list}) {
    commands.push_back(add(app));
    commands.back().app->add_flag("--json", options.json, "Answer as JSON");
    commands.back().app->add_flag("--quiet", options.quiet, "Print nothing but errors (and JSON, where asked for)");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, errors) == 0 ? exit_good : exit_usage;
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    try {
      Console console(out, options, live);
      return command.run(console);
    } catch (const std::exception& error) {
      errors << error.what() << std::endl;
      return exit_error;
    }
  }
  return exit_usage;
}

}  // namespace poolgrad::examples
