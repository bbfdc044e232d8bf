// latency_calibration [device index]: measures what each call to the CUDA driver costs and prints a latency table in
// the format of allocator/memory/latency/h200.txt. Needs an idle GPU.
#include <charconv>
#include <cstdio>
#include <cstring>

#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/latency.h"

int main(int argc, char** argv) {
  int index = 0;
  if (argc > 2 || (argc == 2 && std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), index).ptr !=
                                    argv[1] + std::strlen(argv[1]))) {
    std::fprintf(stderr, "usage: latency_calibration [device index]\n");
    return 2;
  }
  try {
    const auto driver = poolgrad::make_cuda_driver(index);
    poolgrad::LatencyTable table = poolgrad::calibrate(*driver);
    table.source += " on " + poolgrad::cuda_device_description(index);
    std::fputs(table.text().c_str(), stdout);
  } catch (const poolgrad::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
