#include "examples/lab/source.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "allocator/replay/zoo.h"
#include "allocator/trace/trace_file.h"

namespace poolgrad::examples {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view zoo_prefix = "zoo:";

}  // namespace

std::string source_name(const std::string& source) {
  return source.starts_with(zoo_prefix) ? source.substr(zoo_prefix.size()) : fs::path(source).stem().string();
}

Workload read_workload(const std::string& source) {
  if (source.starts_with(zoo_prefix)) return zoo_workload(source_name(source));
  Workload workload = workload_of(load_trace(source), source_name(source));
  workload.description = source;
  return workload;
}

Trace read_trace(const std::string& source) {
  if (source.starts_with(zoo_prefix)) return place(zoo_workload(source_name(source)));
  return load_trace(source);
}

std::vector<std::string> recordings() {
  const char* set = std::getenv("POOLGRAD_RECORDINGS");
  const fs::path folder = set ? set : POOLGRAD_RECORDINGS;
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".pgt") paths.push_back(entry->path().string());
  std::ranges::sort(paths);
  return paths;
}

}  // namespace poolgrad::examples
