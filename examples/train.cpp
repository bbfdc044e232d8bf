// Trains a long-context language model on any text; every byte of it comes from the pool.
//
//   train                                   two layers at context 4096 on Eigen's sources, under four minutes
//   train --text book.txt --steps 500       on any text
//   train --tokenizer bpe:1024              tokens of several bytes
//   train --device cuda                     on a GPU
//   train --device sim:8GiB --steps 3       the same allocations without arithmetic
//   train --save a.safetensors              then: train --resume a.safetensors
//   train --html run.html --live            a page that is kept up to date
//   mpirun -n 4 train --parallel data       a part of the batch each; ring: a part of each sequence (./run ring)
//   train --profile                         what the kernels of a step take
//
// Expected of the default run: below 1.6 nats per byte on held-out files, beside a unigram near 3.6, a bigram near 2.7
// and a trigram near 1.9, and a sample that looks like C++.
#include "examples/support/train.h"

#include <string>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "examples/plan/dry_run.h"
#include "examples/support/console.h"
#include "examples/train/on_ranks.h"
#include "examples/train/profile.h"
#include "examples/train/run_page.h"

namespace poolgrad::examples {
namespace {

/// A run that has no room is told how much would do.
void train_or_advise(const TrainOptions& options, std::ostream& out, bool live) {
  try {
    if (options.profile) return profile(options, out);
    RunWatcher watcher;
    if (!options.html.empty())
      watcher = [&](const Json& config, nn::Trainer& trainer, nn::TrainResult& result, bool finished) {
        write_run_page(options.html, config, trainer, result, finished, options.live);
      };
    train(options, out, live, watcher);
  } catch (const OutOfMemoryError& error) {
    if (options.budget.empty() || options.ranks || options.device.starts_with("sim") || !options.resume.empty()) throw;
    TrainOptions asked = options;
    asked.device = to_string(parse_device(options.device, "train"));
    const std::size_t enough = smallest_budget(asked, parse_bytes(options.budget));
    if (enough == 0) throw;
    throw OutOfMemoryError(std::string(error.what()) + "\n[train] --budget " + options.budget +
                           " is too small for this run: --budget " + std::to_string(enough >> 20) + "MiB would do");
  }
}

}  // namespace
}  // namespace poolgrad::examples

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  TrainOptions options;
  return run_program([&] { return parse_train_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { on_ranks(options, out, live, train_or_advise); });
}
