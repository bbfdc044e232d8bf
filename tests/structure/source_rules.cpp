#include "tests/structure/source_rules.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace poolgrad::structure {
namespace {

constexpr std::array<std::string_view, 7> layers = {"allocator", "kernels",   "tensor",  "autograd",
                                                    "nn",        "attention", "parallel"};
constexpr std::array<std::string_view, 3> programs = {"examples", "benchmarks", "tests"};
constexpr int unknown = -1;

/// Returns 1 to 7 for the layers, 8 for programs and the umbrella header.
int height(std::string_view path) {
  if (path == "poolgrad.h") return 8;
  const std::string_view folder = path.substr(0, path.find('/'));
  if (folder.size() == path.size()) return unknown;
  const auto* layer = std::ranges::find(layers, folder);
  if (layer != layers.end()) return static_cast<int>(layer - layers.begin()) + 1;
  return std::ranges::find(programs, folder) != programs.end() ? 8 : unknown;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

struct Include {
  std::string path;
  bool quoted;
};

std::vector<Include> includes(const SourceFile& file) {
  static const std::regex directive(R"(^\s*#\s*include\s*(["<])([^">]+)[">].*)");
  std::vector<Include> result;
  std::smatch match;
  for (const std::string& line : lines(file.text))
    if (std::regex_match(line, match, directive)) result.push_back({match[2], match[1] == "\""});
  return result;
}

/// Adds one violation for each line that contains the pattern.
void find_in_lines(const SourceFile& file, const std::regex& pattern, const std::string& reason,
                   std::vector<std::string>& violations) {
  int number = 0;
  for (const std::string& line : lines(file.text)) {
    ++number;
    if (std::regex_search(line, pattern))
      violations.push_back(file.path + ": line " + std::to_string(number) + " " + reason);
  }
}

}  // namespace

std::vector<SourceFile> read_sources(const std::filesystem::path& root) {
  constexpr std::array<std::string_view, 4> endings = {".h", ".cpp", ".cu", ".cuh"};
  std::vector<SourceFile> files;
  for (std::filesystem::recursive_directory_iterator entry(root), end; entry != end; ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory()) {
      if (name.starts_with('.') || name == "build") entry.disable_recursion_pending();
    } else if (std::ranges::find(endings, entry->path().extension().string()) != endings.end()) {
      std::ifstream stream(entry->path());
      if (!stream) throw std::runtime_error("cannot read " + entry->path().string());
      files.push_back({entry->path().lexically_relative(root).generic_string(),
                       {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()}});
    }
  }
  std::ranges::sort(files, {}, &SourceFile::path);
  return files;
}

std::vector<std::string> floor_violations(const std::vector<SourceFile>& files) {
  std::vector<std::string> violations;
  for (const SourceFile& file : files) {
    const int own = height(file.path);
    if (own == unknown) violations.push_back(file.path + ": belongs to no layer");
    for (const Include& include : includes(file)) {
      const int other = height(include.path);
      const bool of_the_tree = other != unknown;
      if (include.quoted != of_the_tree)
        violations.push_back(file.path + ": " + include.path +
                             (include.quoted ? " is not included from the root of the tree" : " needs quotes"));
      if (of_the_tree && other > own) violations.push_back(file.path + ": " + include.path + " is in a higher layer");
    }
  }
  return violations;
}

std::vector<std::string> public_header_violations(const std::vector<SourceFile>& files) {
  static const std::regex third_party(R"(^(Eigen|unsupported|fmt|nlohmann|CLI|oneapi|dnnl|gtest|gmock|benchmark)[/.].*)"
                                      R"(|^(cuda|cublas|cub/|cooperative_groups|nvtx|nv/|thrust|nccl|mpi|omp).*)");
  const auto umbrella = std::ranges::find(files, "poolgrad.h", &SourceFile::path);
  if (umbrella == files.end()) return {"poolgrad.h: does not exist"};
  static const std::regex internal(R"(^(kernels/(cpu|cuda)|allocator/(pool|thread_cache))/.*)");
  std::vector<std::string> violations;
  if (const std::size_t listed = includes(*umbrella).size(); listed > 45)
    violations.push_back("poolgrad.h: lists " + std::to_string(listed) + ", limit 45");
  std::vector<const SourceFile*> reached = {&*umbrella};
  const auto laboratory = std::ranges::find(files, "allocator/lab/laboratory.h", &SourceFile::path);
  if (laboratory != files.end()) reached.push_back(&*laboratory);
  std::set<std::string> seen;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const SourceFile& file = *reached[i];
    if (file.path != "poolgrad.h" && file.text.find("#pragma once") == std::string::npos)
      violations.push_back(file.path + ": no #pragma once");
    for (const Include& include : includes(file)) {
      const std::regex& forbidden = include.quoted ? internal : third_party;
      if (std::regex_match(include.path, forbidden))
        violations.push_back(file.path + ": a public header includes " + include.path);
      else if (include.quoted && seen.insert(include.path).second) {
        const auto found = std::ranges::find(files, include.path, &SourceFile::path);
        if (found == files.end())
          violations.push_back(file.path + ": there is no " + include.path);
        else
          reached.push_back(&*found);
      }
    }
  }
  return violations;
}

std::vector<std::string> room_violations(const std::vector<SourceFile>& files) {
  constexpr std::size_t limit = 25;
  std::map<std::string, std::set<std::string>> folders;
  for (const SourceFile& file : files)
    for (std::size_t slash = file.path.find('/'); slash != std::string::npos; slash = file.path.find('/', slash + 1)) {
      const std::size_t next = file.path.find('/', slash + 1);
      folders[file.path.substr(0, slash)].insert(file.path.substr(slash + 1, next - slash - 1));
    }
  std::vector<std::string> violations;
  for (const auto& [folder, entries] : folders)
    if (entries.size() > limit && folder != "tests" && !folder.starts_with("tests/"))
      violations.push_back(folder + ": " + std::to_string(entries.size()) + " entries, limit " + std::to_string(limit));
  return violations;
}

std::vector<std::string> size_violations(const std::vector<SourceFile>& files) {
  std::vector<std::string> violations;
  std::vector<std::size_t> sizes;
  for (const SourceFile& file : files) {
    const std::size_t size = lines(file.text).size(), limit = 700;
    sizes.push_back(size);
    if (size > limit)
      violations.push_back(file.path + ": " + std::to_string(size) + " lines, limit " + std::to_string(limit));
  }
  if (sizes.empty()) return violations;
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::ranges::nth_element(sizes, middle);
  if (*middle >= 150) violations.push_back("the tree: a median of " + std::to_string(*middle) + " lines, limit 149");
  return violations;
}

std::vector<std::string> cuda_conditional_violations(const std::vector<SourceFile>& files) {
  static const std::regex any(R"(^\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|NVCC))");
  static const std::regex on_compiler(R"(^\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA(?!_ARCH)|NVCC))");
  std::vector<std::string> violations;
  for (const SourceFile& file : files)
    if (file.path != "kernels/functors/host_device.h" && !file.path.starts_with("allocator/memory/cuda_driver."))
      find_in_lines(file, file.path.starts_with("kernels/cuda/") ? on_compiler : any, "is conditional on CUDA",
                    violations);
  return violations;
}

std::vector<std::string> launch_violations(const std::vector<SourceFile>& files) {
  static const std::regex launch("<{3}");
  std::vector<std::string> violations;
  for (const SourceFile& file : files)
    if (file.path != "kernels/cuda/runtime.cuh") find_in_lines(file, launch, "launches a kernel by itself", violations);
  return violations;
}

std::vector<std::string> unfinished_violations(const std::vector<SourceFile>& files) {
  // The pattern is written in two parts, so that this file keeps the rule.
  static const std::regex promise(R"(\b(TO)"
                                  R"(DO|FIX)"
                                  R"(ME|XX)"
                                  R"(X)\b|not )"
                                  "implemented");
  std::vector<std::string> violations;
  for (const SourceFile& file : files) find_in_lines(file, promise, "is unfinished", violations);
  return violations;
}

}  // namespace poolgrad::structure
