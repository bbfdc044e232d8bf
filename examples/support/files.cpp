#include "examples/support/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad::examples {

namespace {

namespace fs = std::filesystem;

/// Whether two paths refer to one file, which may not exist yet.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code unknown;
  if (fs::equivalent(a, b, unknown)) return true;
  return a == b || fs::weakly_canonical(fs::absolute(a), unknown) == fs::weakly_canonical(fs::absolute(b), unknown);
}

/// Whether `path` is the input, or a file in an input folder.
bool is_part_of(const std::string& path, const std::string& input) {
  if (same_file(path, input)) return true;
  std::error_code unknown;
  if (!fs::is_regular_file(path, unknown) || !fs::is_directory(input, unknown)) return false;
  const fs::path within = fs::canonical(path, unknown).lexically_relative(fs::canonical(input, unknown));
  return !within.empty() && *within.begin() != ".." &&
         std::ranges::none_of(within, [](const fs::path& part) { return part.native().starts_with('.'); });
}

}  // namespace

void check_files(const std::string& program, const std::vector<OutputFile>& outputs,
                 const std::vector<InputFile>& inputs) {
  const auto refuse = [&](const std::string& reason) { throw ValueError(fmt::format("[{}] {}", program, reason)); };
  std::vector<const OutputFile*> written;
  for (const OutputFile& output : outputs) {
    const auto& [option, path, may_be_standard_output] = output;
    if (path == "-" && !may_be_standard_output) refuse(option + " needs a file, but is -");
    std::error_code unknown;
    const fs::file_type kind = fs::status(path, unknown).type();
    if (path.empty() || (kind != fs::file_type::not_found && kind != fs::file_type::regular)) continue;
    for (const OutputFile* const other : written)
      if (same_file(path, other->path))
        refuse(fmt::format("{} and {} are both {}", other->option, option, printable_path(path)));
    for (const InputFile& input : inputs)
      if (!input.path.empty() && option != input.replaced_by && is_part_of(path, input.path))
        refuse(fmt::format("{} {} would replace {}", option, printable_path(path), input.what));
    written.push_back(&output);
  }
}

}  // namespace poolgrad::examples
