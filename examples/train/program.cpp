#include "examples/train/program.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "examples/plan/dry_run.h"
#include "examples/support/console.h"
#include "examples/train/on_ranks.h"

namespace poolgrad::examples {
namespace {

/// A pool's report without its last line: a budget for one request may not suffice for the run.
std::string without_advice(const std::string& report) {
  const std::size_t advice = report.rfind("\n  a budget of ");
  return report.substr(0, advice);
}

/// On out of memory, reports a sufficient budget.
void train_or_advise(const TrainOptions& options, std::ostream& out, bool live, const TrainTools& tools) {
  try {
    if (options.profile) return tools.profile(options, out);
    train(options, out, live, options.html.empty() ? RunWatcher() : tools.page(options));
  } catch (const OutOfMemoryError& error) {
    if (options.budget.empty() || options.ranks || options.graph || options.device.starts_with("sim") ||
        !options.start().empty())
      throw;
    TrainOptions asked = options;
    asked.device = to_string(parse_device(options.device, "train"));
    const std::size_t enough = smallest_budget(asked, parse_bytes(options.budget));
    if (enough == 0) throw;
    throw OutOfMemoryError(without_advice(error.what()) + "\n[train] --budget " + options.budget +
                           " is too small for this run: --budget " + std::to_string(enough >> 20) + "MiB would do");
  }
}

/// Replaces this process by the program with the tools; returns if it is missing.
void become_train_watched(char** argv) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  ::execv((self.parent_path() / "train_watched").c_str(), argv);
}

}  // namespace

int train_program(int argc, char** argv, const TrainTools* tools) {
  TrainOptions options;
  return run_program([&] { return parse_train_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) {
                       if (!tools && (options.profile || !options.html.empty())) {
                         become_train_watched(argv);
                         throw Error(
                             "[train] --html and --profile need the program train_watched, which is missing beside "
                             "this one: build it with ninja train_watched");
                       }
                       const TrainTools own = tools ? *tools : TrainTools{};
                       on_ranks(options, out, live, [&](const TrainOptions& told, std::ostream& to, bool on_terminal) {
                         train_or_advise(told, to, on_terminal, own);
                       });
                     });
}

}  // namespace poolgrad::examples
