#include "examples/support/corpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "allocator/error.h"
#include "examples/support/random.h"

namespace poolgrad::examples {

namespace {

namespace fs = std::filesystem;

void find_files(const fs::path& path, std::vector<fs::path>& files) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (!fs::is_regular_file(path, error)) throw FileError("[train] no text at " + path.string());
    files.push_back(path);
    return;
  }
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(path)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries)
    if (!entry.filename().string().starts_with('.') && (fs::is_directory(entry) || fs::is_regular_file(entry)))
      find_files(entry, files);
}

std::vector<std::uint8_t> read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint8_t> bytes(fs::file_size(path));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw FileError("[train] cannot read " + path.string());
  return bytes;
}

void append(std::vector<std::uint8_t>& to, const std::vector<std::uint8_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

Corpus read_corpus(const std::vector<std::string>& paths, std::uint64_t seed) {
  std::vector<std::vector<std::uint8_t>> texts;
  std::string names;
  for (const std::string& path : paths) {
    names += (names.empty() ? "" : ", ") + path;
    std::vector<fs::path> files;
    find_files(path, files);
    for (const fs::path& file : files) {
      std::vector<std::uint8_t> bytes = read_bytes(file);
      const bool text = std::find(bytes.begin(), bytes.end(), 0) == bytes.end();
      if (text && !bytes.empty()) texts.push_back(std::move(bytes));
    }
  }
  if (texts.empty()) throw FileError("[train] no text in " + names);

  Corpus corpus;
  corpus.files = static_cast<std::int64_t>(texts.size());
  if (texts.size() == 1) {
    const auto cut = texts[0].begin() + static_cast<std::ptrdiff_t>(texts[0].size() / 10 * 9);
    corpus.train.assign(texts[0].begin(), cut);
    corpus.validation.assign(cut, texts[0].end());
    return corpus;
  }
  for (std::size_t i = texts.size(); i > 1; --i)  // Fisher-Yates
    std::swap(texts[i - 1], texts[random_below(seed, i, i)]);
  const std::size_t held_out = std::max<std::size_t>(1, texts.size() / 10);
  for (std::size_t i = 0; i < texts.size(); ++i)
    append(i + held_out < texts.size() ? corpus.train : corpus.validation, texts[i]);
  return corpus;
}

std::string default_text() {
  for (const char* path : {POOLGRAD_DEFAULT_TEXT, "/usr/include/eigen3", "/usr/local/include/eigen3"})
    if (std::error_code error; fs::is_directory(path, error)) return path;
  throw FileError("[train] no Eigen headers to train on; give --text PATH or install libeigen3-dev");
}

}  // namespace poolgrad::examples
