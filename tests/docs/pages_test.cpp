// The pages' statements about the tree are true: blocks run, links have targets, and files, tests and pictures exist.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "tests/docs/markdown.h"

namespace poolgrad::docs {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

const std::vector<Page>& pages() {
  static const std::vector<Page> all = read_pages(POOLGRAD_SOURCE_DIR);
  return all;
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Returns the paths of all files of the tree, from its root.
const std::vector<std::string>& tree() {
  static const std::vector<std::string> paths = [] {
    std::vector<std::string> all;
    const fs::path root = POOLGRAD_SOURCE_DIR;
    for (fs::recursive_directory_iterator entry(root), end; entry != end; ++entry) {
      const std::string name = entry->path().filename().string();
      if (entry->is_directory() && (name == "build" || name.starts_with(".")))
        entry.disable_recursion_pending();
      else if (entry->is_regular_file())
        all.push_back(fs::relative(entry->path(), root).generic_string());
    }
    return all;
  }();
  return paths;
}

TEST(Pages, HaveATestForEveryCppBlock) {
  const std::vector<std::string> lines = lines_of(read(POOLGRAD_SNIPPETS "/run.txt"));
  const std::set<std::string> run(lines.begin(), lines.end());
  std::vector<std::string> idle;
  for (const Page& page : pages()) {
    int line = 0;
    for (const std::string& text : lines_of(page.text)) {
      const std::string here = page.path + ":" + std::to_string(++line);
      if (text.starts_with("```cpp") && !text.starts_with("```cpp not run:") && !run.contains(here))
        idle.push_back(here);
    }
  }
  EXPECT_THAT(idle, IsEmpty());
  EXPECT_GE(run.size(), 15u);
}

TEST(Pages, HaveNoUnrunnableCpp) { EXPECT_EQ(read(POOLGRAD_SNIPPETS "/not_run.txt"), ""); }

TEST(Pages, HaveNoBrokenLinks) {
  std::vector<std::string> broken;
  for (const Page& page : pages())
    for (const auto& [line, target] : links(page)) {
      if (target.starts_with("http")) continue;
      const std::size_t mark = std::min(target.find('#'), target.size());
      const std::string path =
          mark == 0 ? page.path
                    : (fs::path(page.path).parent_path() / target.substr(0, mark)).lexically_normal().generic_string();
      const auto to = std::ranges::find(pages(), path, &Page::path);
      const bool found = fs::exists(fs::path(POOLGRAD_SOURCE_DIR) / path);
      const bool marked = mark == target.size() ||
                          (to != pages().end() && std::ranges::count(anchors(*to), target.substr(mark + 1)) == 1);
      if (!found || !marked) broken.push_back(at(page, line) + target);
    }
  EXPECT_THAT(broken, IsEmpty());
}

TEST(Pages, NameExistingFiles) {
  std::vector<std::string> missing;
  for (const Page& page : pages())
    for (const auto& [line, span] : code_spans(page)) {
      const fs::path path = span;
      const bool is_source =
          std::ranges::count(std::vector<fs::path>{".h", ".cpp", ".cu", ".cuh", ".py"}, path.extension()) > 0;
      if (!is_source || span.find_first_of(" *<{") != std::string::npos || path.stem().empty()) continue;
      if (std::ranges::none_of(tree(),
                               [&](const std::string& known) { return known == span || known.ends_with("/" + span); }))
        missing.push_back(at(page, line) + span);
    }
  EXPECT_THAT(missing, IsEmpty());
}

/// Returns whether the span is "Suite.Name" or "Suite.*": capital letters, no spaces.
bool names_a_test(const std::string& span) {
  const std::size_t dot = span.find('.');
  if (dot == std::string::npos || dot + 1 >= span.size() || !std::isupper(static_cast<unsigned char>(span[0])))
    return false;
  const std::string name = span.substr(dot + 1);
  return (name == "*" ||
          (std::isupper(static_cast<unsigned char>(name[0])) && !name.ends_with("txt") && !name.ends_with("json"))) &&
         std::ranges::all_of(span, [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '*'; });
}

TEST(Pages, NameExistingTests) {
  std::string tests;
  for (const std::string& path : tree())
    if (path.starts_with("tests/") && path.ends_with("_test.cpp") && !path.starts_with("tests/docs/"))
      tests += read(fs::path(POOLGRAD_SOURCE_DIR) / path);
  std::vector<std::string> missing;
  for (const Page& page : pages())
    for (const auto& [line, span] : code_spans(page)) {
      if (!names_a_test(span)) continue;
      const std::size_t dot = span.find('.');
      const std::string name = span.substr(dot + 1);
      const std::string start =
          "(" + span.substr(0, dot) + "," + (name == "*" ? "" : " " + name.substr(0, name.find('*')));
      if (tests.find(start) == std::string::npos) missing.push_back(at(page, line) + span);
    }
  EXPECT_THAT(missing, IsEmpty());
}

TEST(Pages, NameExistingSettings) {
  std::string sources;
  for (const std::string& path : tree())
    if (!path.ends_with(".md") && !path.starts_with("tests/docs/") && !path.ends_with(".png") &&
        !path.ends_with(".pgt"))
      sources += read(fs::path(POOLGRAD_SOURCE_DIR) / path);
  std::set<std::string> missing;
  const std::string prefix = "POOLGRAD_";
  for (const Page& page : pages())
    for (std::size_t begin = page.text.find(prefix); begin != std::string::npos;
         begin = page.text.find(prefix, begin + 1)) {
      const std::string rest = page.text.substr(begin, 60);
      const std::string name = rest.substr(0, rest.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"));
      if (sources.find(name) == std::string::npos) missing.insert(page.path + ": " + name);
    }
  EXPECT_THAT(missing, IsEmpty());
}

TEST(Pages, ShowSmallPictures) {
  std::vector<std::string> bad;
  int pictures = 0;
  for (const Page& page : pages())
    for (const auto& [line, target] : links(page)) {
      if (!target.ends_with(".png")) continue;
      ++pictures;
      const std::string picture = read(fs::path(POOLGRAD_SOURCE_DIR) / fs::path(page.path).parent_path() / target);
      if (!picture.starts_with("\x89PNG") || picture.size() >= 200 * 1024)
        bad.push_back(at(page, line) + target + ", " + std::to_string(picture.size()) + " bytes");
    }
  EXPECT_THAT(bad, IsEmpty());
  EXPECT_GE(pictures, 2);
}

}  // namespace
}  // namespace poolgrad::docs
