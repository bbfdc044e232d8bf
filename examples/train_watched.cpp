// train with run pages and profiles: --html and --profile. It builds more slowly, so train only executes it on demand.
#include "examples/train/profile.h"
#include "examples/train/program.h"
#include "examples/train/run_page.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  const TrainTools tools{.page = [](const TrainOptions& options) -> RunWatcher {
                           return [path = options.html, live = options.live](
                                      const Json& config, poolgrad::nn::Trainer& trainer,
                                      poolgrad::nn::TrainResult& result,
                                      bool finished) { write_run_page(path, config, trainer, result, finished, live); };
                         },
                         .profile = profile};
  return train_program(argc, argv, &tools);
}
