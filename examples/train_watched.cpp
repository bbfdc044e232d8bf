// train with run pages and profiles: --html and --profile. It builds more slowly, so train only executes it on demand.
#include "examples/train/profile.h"
#include "examples/train/program.h"
#include "examples/train/run_page.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  const TrainTools tools{.page = write_page_of_run, .profile = profile};
  return train_program(argc, argv, &tools);
}
