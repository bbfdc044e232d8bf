#include "examples/train/on_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <exception>
#include <fstream>
#include <iostream>

#include "allocator/base/fnv1a.h"
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "examples/support/console.h"
#include "parallel/mpi.h"
#include "parallel/training_ranks.h"

namespace poolgrad::examples {

namespace {

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

}  // namespace

void on_ranks(TrainOptions options, std::ostream& out, bool live, const TrainCall& run) {
  if (options.parallel == "none") {
    if (const int ranks = number_in_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); ranks > 1)
      throw ValueError(fmt::format("[train] {} ranks need a split: --parallel ring, data or ring:R,data:D", ranks));
    return run(options, out, live);
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
      run(options, leads ? out : nowhere, live && leads);
    });
  } catch (const std::exception& error) {
    // Print before MPI ends: the first process to exit with an error kills the others.
    if (all->rank() == 0) std::cerr << sentence_of(error) << std::endl;
    throw Told();
  }
}

}  // namespace poolgrad::examples
