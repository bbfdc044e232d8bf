#include "examples/train/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "allocator/base/fnv1a.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "examples/plan/dry_run.h"
#include "examples/support/console.h"
#include "parallel/mpi.h"
#include "parallel/training_ranks.h"

namespace poolgrad::examples {
namespace {

/// A pool's report without its last line: a budget for one request may not suffice for the run.
std::string without_advice(const std::string& report) {
  const std::size_t advice = report.rfind("\n  a budget of ");
  return report.substr(0, advice);
}

/// On out of memory, reports a sufficient budget.
void train_or_advise(TrainOptions options, std::ostream& out, const TrainTools& tools) {
  try {
    if (options.profile) return tools.profile(options, out);
    if (!options.html.empty()) tools.page(options);
    train(options, out);
  } catch (const OutOfMemoryError& error) {
    if (options.budget.empty() || options.ranks || options.graph || options.device.starts_with("sim") ||
        !options.start().empty())
      throw;
    options.device = to_string(parse_device(options.device, "train"));
    const std::size_t enough = smallest_budget(options, parse_bytes(options.budget));
    if (enough == 0) throw;
    throw OutOfMemoryError(without_advice(error.what()) + "\n[train] --budget " + options.budget +
                           " is too small for this run: --budget " + std::to_string(enough >> 20) + "MiB would do");
  }
}

/// An error that rank 0 has already reported.
class Told : public std::exception {
 public:
  const char* what() const noexcept override { return ""; }
};

std::string digest_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  Fnv1a hash;
  for (char block[1 << 16]; file.read(block, sizeof block) || file.gcount() > 0;)
    for (std::streamsize i = 0; i < file.gcount(); ++i) hash.mix(static_cast<unsigned char>(block[i]));
  return fmt::format("{:016x}", hash.value());
}

/// Settings that must be equal on all ranks, by name.
std::vector<std::pair<std::string, std::string>> alike(const TrainOptions& o) {
  std::vector<std::pair<std::string, std::string>> values{{"the program's file", digest_of_program()}};
  for (const auto& [name, value] : o.configuration()) values.emplace_back("--" + name, value);
  values.insert(values.end(), {{"--text", fmt::format("{}", fmt::join(o.text, " "))},
                               {"--validate", o.validate},
                               {"--parallel", o.parallel},
                               {"--shard-optimizer", o.shard_optimizer ? "on" : "off"},
                               {"--checkpoint", o.checkpoint},
                               {"--store-every", fmt::format("{}", o.store_every)},
                               {"--save", o.save},
                               {"--save-every", fmt::format("{}", o.save_every)},
                               {"--resume", o.resume},
                               {"--init", o.init},
                               {"--stop-after", fmt::format("{}", o.stop_after)},
                               {"--report", fmt::format("{}", o.report)}});
  return values;
}

/// If this rank sees several GPUs, the one with its local rank.
std::string own_device(const std::string& told) {
  const int local = number_in_environment({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"});
  if ((told != "cuda" && told != "auto") || local < 1 || !cuda_unavailable_reason().empty()) return told;
  const Device device{DeviceType::cuda, static_cast<std::uint8_t>(local)};
  try {
    allocator_for(device);
    return to_string(device);
  } catch (const DeviceError&) {  // each rank sees only its own GPU
    return told;
  }
}

/// Calls run(options, out) as options.parallel says: once, or on every rank, with options.ranks and, except on rank 0,
/// without output. Throws ValueError if ranks have no split to use, Error without MPI, and the errors of `run`. Rank 0
/// reports errors of ranks, also differing programs or options, on standard error; then all ranks throw Told.
template <class F>
void on_ranks(TrainOptions options, std::ostream& out, const F& run) {
  if (options.parallel == "none") {
    if (const int ranks = number_in_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); ranks > 1)
      throw ValueError(fmt::format("[train] {} ranks need a split: --parallel ring, data or ring:R,data:D", ranks));
    return run(options, out);
  }
  if (options.profile) throw ValueError("[train] --profile runs in one process: omit --parallel");
  std::signal(SIGUSR1, SIG_IGN);  // ./run ring sends it to stop; outside of training ignore it
  parallel::MpiWorld world;
  const auto& all = world.communicator();
  try {
    world.run([&] {
      options.ranks = std::make_shared<parallel::TrainingRanks>(
          all, of_option("--parallel", [&] { return parallel::Grid::parse(options.parallel, all->size()); }),
          parallel::TrainingRanksOptions{
              .layout = of_option("--layout", [&] { return attention::parse_layout(options.attention.layout); })});
      options.ranks->agree(alike(options));
      options.device = own_device(options.device);
      std::ostream nowhere(nullptr);
      const bool leads = all->rank() == 0;
      options.live &= leads;
      run(options, leads ? out : nowhere);
    });
  } catch (const std::exception& error) {
    // Print before MPI ends: the first process to exit with an error kills the others.
    if (all->rank() == 0) std::cerr << sentence_of(error) << std::endl;
    throw Told();
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
                       options.live = live;
                       on_ranks(options, out,
                                [&](const TrainOptions& told, std::ostream& to) { train_or_advise(told, to, own); });
                     });
}

}  // namespace poolgrad::examples
