// Draws every attention pattern: the keys that each query sees, head by head, causal and not; and the layouts of a
// ring.
//
//   pattern_gallery --output patterns       one SVG file for each pattern
//   pattern_gallery --output - --only axial  one of them on standard output
//
// It draws the pictures in docs/patterns.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "allocator/base/printable.h"
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
  const auto draw_one = [&](const std::string& name, const std::string& of, const auto& svg_of) {
    names += (names.empty() ? "" : ", ") + name;
    if (!only.empty() && name != only) return;
    found = true;
    const std::string svg = svg_of();
    if (output == "-") {
      fmt::print("{}", svg);
      return;
    }
    const std::string path = (std::filesystem::path(output) / (name + ".svg")).string();
    write_text(path, svg, "pattern_gallery", std::cout);
    fmt::print("{:<40} {:>6} bytes  {}\n", path, svg.size(), of);
  };
  for (const PatternPicture& picture : pattern_pictures())
    draw_one(picture.name, picture.pattern.to_string(), [&] { return pattern_svg(picture); });
  draw_one("layouts", "the layouts of a ring", layouts_svg);
  if (!found)
    throw poolgrad::ValueError("[pattern_gallery] --only must be one of " + names + ", but is " +
                               poolgrad::printable(only));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Draws every attention pattern as an SVG file", "./run example pattern_gallery"};
  std::string output = "patterns", only;
  app.add_option("--output", output, "Folder to write to, created if missing; -: standard output")
      ->capture_default_str();
  app.add_option("--only", only, "One pattern, by the name of its file");
  using namespace poolgrad::examples;
  return run_program([&] { return parse_command_line(app, argc, argv); },
                     [&](std::ostream&, bool) { draw(output, only); });
}
