// extract ROOT FOLDER FILE...: writes the C++ of the pages below ROOT to FOLDER (snippets.h). It writes snippets.cpp,
// run.txt, which lists the blocks that are run, and not_run.txt. The pages' programs must be exactly FILE..., because
// the build compiles these.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <string>

#include "tests/docs/snippets.h"

namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: extract ROOT FOLDER FILE...\n";
    return 2;
  }
  try {
    const poolgrad::docs::Snippets snippets = poolgrad::docs::snippets_of(poolgrad::docs::read_pages(argv[1]));
    const std::filesystem::path folder = argv[2];
    std::set<std::string> known(argv + 3, argv + argc);
    for (const auto& [name, text] : snippets.files) {
      if (known.erase(name) == 0) throw std::runtime_error("no test builds the program " + name + " of the pages");
      write(folder / name, text);
    }
    if (!known.empty()) throw std::runtime_error("no page has the program " + *known.begin());
    write(folder / "snippets.cpp", snippets.unit);
    write(folder / "run.txt", joined(snippets.run));
    write(folder / "not_run.txt", joined(snippets.not_run));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
