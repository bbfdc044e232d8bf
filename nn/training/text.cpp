#include "nn/training/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/views.h"
#include "nn/training/random.h"
#include "tensor/creation.h"

namespace poolgrad::nn {

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

/// Counts of one order: after each history, how often each symbol came, how often any, and how many different ones.
struct Counts {
  Counts(std::size_t histories, std::size_t alphabet)
      : width(alphabet), pairs(histories * alphabet), totals(histories), types(histories) {}

  void add(std::size_t history, std::size_t symbol) {
    if (pairs[history * width + symbol]++ == 0) ++types[history];
    ++totals[history];
  }
  double probability(std::size_t history, std::size_t symbol, double shorter) const {
    const double total = totals[history], different = types[history];
    if (total == 0) return shorter;
    return (pairs[history * width + symbol] + different * shorter) / (total + different);
  }

  std::size_t width;
  std::vector<std::uint32_t> pairs, totals, types;
};

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

TextWindows windows_of(const std::vector<std::uint8_t>& text, const std::vector<std::int64_t>& starts,
                       std::int64_t length, Device device) {
  const MemoryScope scope("batch", Category::input);
  const auto last_start = static_cast<std::int64_t>(text.size()) - 1 - length;
  std::vector<std::uint8_t> rows;
  for (const std::int64_t start : starts) {
    if (start < 0 || start > last_start)
      throw IndexError("[windows_of] a window of " + std::to_string(length) + " and the byte behind it from " +
                       std::to_string(start) + " leave the text of " + std::to_string(text.size()));
    const auto first = text.begin() + static_cast<std::ptrdiff_t>(start);
    rows.insert(rows.end(), first, first + static_cast<std::ptrdiff_t>(length + 1));
  }
  // Bytes go to the device, and become i64 there.
  const Tensor bytes = from_data(rows, {static_cast<std::int64_t>(starts.size()), length + 1}, device);
  return {to(slice(bytes, 1, 0, length), DType::i64), to(slice(bytes, 1, 1, length + 1), DType::i64)};
}

Baselines ngram_baselines(const std::vector<std::uint8_t>& train, const std::vector<std::uint8_t>& validation) {
  if (train.empty() || validation.empty()) return {};
  // Symbol 0 stands for every byte that the training text does not have (and for what comes before the text); it keeps
  // the tables small: texts use about a hundred different bytes.
  std::array<std::size_t, 256> symbols{};
  std::size_t alphabet = 1;
  for (const std::uint8_t byte : train)
    if (symbols[byte] == 0) symbols[byte] = alphabet++;

  Counts one(1, alphabet), two(alphabet, alphabet), three(alphabet * alphabet, alphabet);
  const auto walk = [&](const std::vector<std::uint8_t>& text, const auto& visit) {
    std::size_t before = 0, last = 0;
    for (const std::uint8_t byte : text) {
      visit(before * alphabet + last, last, symbols[byte]);
      before = last;
      last = symbols[byte];
    }
  };
  walk(train, [&](std::size_t two_before, std::size_t last, std::size_t symbol) {
    one.add(0, symbol);
    two.add(last, symbol);
    three.add(two_before, symbol);
  });
  Baselines sums;
  walk(validation, [&](std::size_t two_before, std::size_t last, std::size_t symbol) {
    const double p1 = one.probability(0, symbol, 1.0 / 256);
    const double p2 = two.probability(last, symbol, p1);
    sums.unigram -= std::log(p1);
    sums.bigram -= std::log(p2);
    sums.trigram -= std::log(three.probability(two_before, symbol, p2));
  });
  const double bytes = static_cast<double>(validation.size());
  return {sums.unigram / bytes, sums.bigram / bytes, sums.trigram / bytes};
}

}  // namespace poolgrad::nn
