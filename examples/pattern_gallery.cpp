// Draws every pattern that attention knows: which keys each query sees, head by head, causal and not.
//
//   pattern_gallery --output patterns       one SVG file for each pattern
//   pattern_gallery --output - --only axial  one of them on standard output
//
// The pictures in docs/patterns are what it draws.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "allocator/error.h"
#include "examples/pattern_svg.h"
#include "examples/support/console.h"
#include "examples/support/options.h"

namespace {

void draw(const std::string& output, const std::string& only) {
  using namespace poolgrad::examples;
  bool found = false;
  std::string names;
  if (output != "-") std::filesystem::create_directories(output);
  for (const PatternPicture& picture : pattern_pictures()) {
    names += (names.empty() ? "" : ", ") + picture.name;
    if (!only.empty() && picture.name != only) continue;
    found = true;
    const std::string svg = pattern_svg(picture);
    if (output == "-") {
      fmt::print("{}", svg);
      continue;
    }
    const std::string path = (std::filesystem::path(output) / (picture.name + ".svg")).string();
    write_text(path, svg, "pattern_gallery");
    fmt::print("{:<40} {:>6} bytes  {}\n", path, svg.size(), picture.pattern.to_string());
  }
  if (!found) throw poolgrad::ValueError("[pattern_gallery] --only must be one of " + names + ", but is " + only);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Draws every attention pattern as an SVG file"};
  std::string output = "patterns", only;
  app.add_option("--output", output, "Folder to write to, made where it is missing; -: standard output")
      ->capture_default_str();
  app.add_option("--only", only, "One pattern, by the name of its file");
  using namespace poolgrad::examples;
  return run_program([&] { return parse_command_line(app, argc, argv); },
                     [&](std::ostream&, bool) { draw(output, only); });
}
