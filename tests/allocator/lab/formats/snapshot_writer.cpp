// snapshot_writer FOLDER: writes synthetic traces as memory snapshots, for tests in other languages.
#include <cstdio>
#include <string>

#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "tests/allocator/trace/synthetic_trace.h"

int main(int count, char** arguments) {
  using namespace poolgrad;
  if (count != 2) {
    std::fprintf(stderr, "usage: snapshot_writer FOLDER\n");
    return 2;
  }
  const std::string folder = std::string(arguments[1]) + "/";
  try {
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      const testing_support::SyntheticShape shape{.windows = static_cast<std::size_t>(seed), .delayed = 0.3};
      Trace trace = testing_support::synthetic_trace(seed, 4000, shape);
      if (seed > 1) trace = testing_support::without_beginning(std::move(trace), 1000 * seed - 1500);
      const std::string name = folder + "synthetic" + std::to_string(seed);
      save_trace(name + ".pickle", trace, TraceFormat::pytorch_pickle);
      save_trace(name + ".json", trace, TraceFormat::pytorch_json);
      for (std::size_t part = 0; part < 10; ++part)
        save_trace(name + "_part" + std::to_string(part) + ".pickle", trace, TraceFormat::pytorch_pickle,
                   {.from = 10 + 300 * part, .to = 3000 - 100 * part});
    }
    save_trace(folder + "empty.pickle", {}, TraceFormat::pytorch_pickle);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
