#include "nn/text/corpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "allocator/base/fnv1a.h"
#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/base/random.h"
#include "allocator/error.h"
#include "nn/text/byte_source.h"

namespace poolgrad::nn {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t largest_copied_file = std::size_t{1} << 20;
constexpr std::int64_t most_searched = std::int64_t{1} << 30;
constexpr std::int64_t most_hashed = std::int64_t{4} << 30;
constexpr double least_validation = 0.01, most_validation = 0.75;  // of the text
constexpr const char* spread_prefix = "spread:";

struct FoundFile {
  fs::path path;
  bool named = false;  // the user named it; it was not found in a folder
};

/// Finds the files below a folder, by name. Does not follow links to folders, which may lead back up.
void find_files_in(const fs::path& folder, std::vector<FoundFile>& files) {
  std::vector<fs::directory_entry> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry);
  std::ranges::sort(entries, {}, [](const auto& entry) { return entry.path(); });
  for (const auto& entry : entries) {
    std::error_code broken;
    if (entry.path().filename().string().starts_with('.')) continue;
    if (entry.is_directory(broken) && !entry.is_symlink(broken))
      find_files_in(entry.path(), files);
    else if (entry.is_regular_file(broken))
      files.push_back({entry.path()});
  }
}

void find_files(const fs::path& path, std::vector<FoundFile>& files) try {
  std::error_code error;
  if (fs::is_regular_file(path, error))
    files.push_back({path, true});
  else if (fs::is_directory(path, error))
    find_files_in(path, files);
  else if (fs::exists(path, error))
    throw FileError("[train] " + printable_path(path.string()) +
                    " is neither a file nor a folder: text is read more than once");
  else
    throw FileError("[train] the text " + printable_path(path.string()) + " does not exist");
} catch (const fs::filesystem_error& unreadable) {
  throw FileError("[train] cannot read " + printable_path(unreadable.path1().string()) + ": " +
                  unreadable.code().message());
}

/// Identifies files independent of their path. A file must belong to one text, or it could be held out of one and
/// trained on in another.
class FilesOnce {
 public:
  /// Returns the files of a text in order, each once. Throws ValueError for a file of an earlier text.
  std::vector<FoundFile> of(const std::string& text, const std::vector<FoundFile>& files) {
    const std::size_t number = texts_.size();
    texts_.push_back(text);
    std::vector<FoundFile> once;
    for (const FoundFile& file : files) {
      struct ::stat status {};
      if (::stat(file.path.c_str(), &status) != 0) {  // the reader reports why
        once.push_back(file);
        continue;
      }
      const auto [known, is_new] = seen_.try_emplace({status.st_dev, status.st_ino}, Mention{number, once.size()});
      if (is_new)
        once.push_back(file);
      else if (known->second.text == number)
        once[known->second.index].named |= file.named;
      else
        throw ValueError(fmt::format(
            "[train] {} is part of two texts, {} and {}: it would be held out of one and "
            "trained on in the other",
            printable_path(file.path.string()), printable_path(texts_[known->second.text]), printable_path(text)));
    }
    return once;
  }

 private:
  struct Mention {
    std::size_t text, index;
  };
  std::vector<std::string> texts_;  // as the user wrote them
  std::map<std::pair<::dev_t, ::ino_t>, Mention> seen_;
};

/// Most binary files have a 0 byte in the first block, so the rest is not read.
bool has_zero(const Text& text) {
  return text.any_block(
      [](std::span<const std::uint8_t> block) { return std::find(block.begin(), block.end(), 0) != block.end(); },
      most_searched);
}

/// Returns the texts of the files in order, without those from folders that are empty or binary. Throws FileError for
/// such a file that the user named.
std::vector<Text> read_files(const std::vector<FoundFile>& files) {
  struct Place {
    Text text;  // empty for a small file, whose bytes are in the spool
    std::int64_t begin = 0, end = 0;
  };
  std::vector<Place> places;
  Spool small_files;
  for (const auto& [file, named] : files) {
    const std::shared_ptr<const ByteSource> mapped = mapped_file(file.string());
    const Text text(mapped);
    if (text.empty() || has_zero(text)) {
      if (!named) continue;
      throw FileError(fmt::format("[train] no text in {}: {}", printable_path(file.string()),
                                  text.empty() ? "it is empty" : "it has a 0 byte, as binary files and UTF-16 have"));
    }
    if (mapped->size() > largest_copied_file) {
      places.push_back({text});
      continue;
    }
    std::vector<std::uint8_t> bytes(mapped->size());
    mapped->read(0, bytes);
    const auto begin = static_cast<std::int64_t>(small_files.size());
    small_files.append(bytes);
    places.push_back({{}, begin, begin + text.size()});
  }
  const Text copied(small_files.finish());
  std::vector<Text> texts;
  for (const Place& place : places)
    texts.push_back(place.text.empty() ? copied.part(place.begin, place.end) : place.text);
  return texts;
}

/// Holds out a tenth of the files, unless there is a validation text of its own. With one file, or if that would be
/// less than 1 % or more than 75 % of the bytes, holds out the last tenth of the text.
CorpusText divided(std::vector<Text> texts, std::uint64_t seed, bool own_validation) {
  for (std::size_t i = texts.size(); i > 1; --i)  // Fisher-Yates
    std::swap(texts[i - 1], texts[random_below(seed, i, i)]);
  const std::size_t validation = std::max<std::size_t>(1, texts.size() / 10);
  Text all;
  std::int64_t cut = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i + validation == texts.size()) cut = all.size();
    all.append(texts[i]);
  }
  const double share = static_cast<double>(all.size() - cut) / static_cast<double>(all.size());
  if (share < least_validation || share > most_validation) cut = all.size() / 10 * 9;
  if (own_validation) cut = all.size();
  CorpusText result;
  result.train = all.part(0, cut);
  result.validation = all.part(cut, all.size());
  result.train_tokens = result.train;
  result.validation_tokens = result.validation;
  return result;
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

Corpus::Corpus(Text train, Text validation, std::int64_t file_count) : files(file_count) {
  texts.push_back({.train = train, .validation = validation, .train_tokens = train, .validation_tokens = validation});
}

std::uint64_t Corpus::train_bytes() const {
  std::uint64_t bytes = 0;
  for (const CorpusText& text : texts) bytes += text.train_bytes();
  return bytes;
}

std::uint64_t Corpus::validation_bytes() const {
  std::uint64_t bytes = 0;
  for (const CorpusText& text : texts) bytes += text.validation_bytes();
  return bytes;
}

double Corpus::total_weight() const {
  double sum = 0;
  for (const CorpusText& text : texts) sum += text.weight;
  return sum;
}

Text Corpus::whole_train() const {
  Text whole;
  for (const CorpusText& text : texts) whole.append(text.train);
  return whole;
}

std::string Corpus::fingerprint_of(bool spread) const {
  Fnv1a hash;
  whole_train().for_each_block(
      [&](std::span<const std::uint8_t> block) {
        for (const std::uint8_t byte : block) hash.mix(byte);
      },
      spread ? most_hashed : Text::all);
  return spread ? fmt::format("{}{}:{:016x}", spread_prefix, train_bytes(), hash.value())
                : fmt::format("{:016x}", hash.value());
}

std::string Corpus::fingerprint() const {
  return fingerprint_of(train_bytes() > static_cast<std::uint64_t>(most_hashed));
}

bool Corpus::has_fingerprint(const std::string& fingerprint) const {
  return fingerprint_of(fingerprint.starts_with(spread_prefix)) == fingerprint;
}

std::string Corpus::describe_weights() const {
  std::vector<double> weights;
  if (weighted)
    for (const CorpusText& text : texts) weights.push_back(text.weight);
  return fmt::format("{}", fmt::join(weights, ","));
}

TextSource TextSource::parse(const std::string& text) {
  const std::size_t divider = text.rfind('=');
  if (divider == std::string::npos || exists(text) || !exists(text.substr(0, divider))) return {text};
  const std::string number = text.substr(divider + 1);
  TextSource source{text.substr(0, divider), number_in<double>(number)};
  if (!source.weight || !(*source.weight >= 1e-9 && *source.weight <= 1e9))
    throw ValueError(fmt::format("[train] the weight of the text {} must be a number from 1e-9 to 1e9, but is {}",
                                 printable_path(source.path), printable(number)));
  return source;
}

Corpus read_corpus(const std::vector<std::string>& sources, std::uint64_t seed, const std::string& validation) {
  Corpus corpus;
  corpus.own_validation = !validation.empty();
  std::vector<TextSource> parsed;
  for (const std::string& source : sources) parsed.push_back(TextSource::parse(source));
  corpus.weighted = std::ranges::any_of(parsed, [](const TextSource& source) { return source.weight.has_value(); });

  std::vector<FoundFile> files;
  FilesOnce once;
  std::string names;
  const auto take_files = [&] {
    std::vector<Text> texts = read_files(once.of(names, files));
    if (texts.empty())
      throw FileError(fmt::format("[train] no text in {}: {}", printable_path(names),
                                  files.empty() ? "no file is there" : "every file is empty or has a 0 byte"));
    files.clear();
    return texts;
  };
  const auto take = [&](double weight) {
    std::vector<Text> texts = take_files();
    corpus.files += std::ssize(texts);
    corpus.texts.push_back(divided(std::move(texts), seed, corpus.own_validation));
    corpus.texts.back().weight = weight;
    corpus.texts.back().path = names;
    names.clear();
  };
  for (const TextSource& source : parsed) {
    names += (names.empty() ? "" : ", ") + source.path;
    find_files(source.path, files);
    if (corpus.weighted) take(source.weight.value_or(1.0));
  }
  if (!corpus.weighted) take(1.0);
  if (!corpus.own_validation) return corpus;
  names = validation;
  find_files(validation, files);
  CorpusText& first = corpus.texts.front();
  for (const Text& text : take_files()) first.validation.append(text);
  first.validation_tokens = first.validation;
  return corpus;
}

std::shared_ptr<const Tokenizer> learn_tokenizer(const Corpus& corpus, std::int64_t vocabulary,
                                                 const CorpusProgress& progress) {
  if (progress) progress(fmt::format("learning {} tokens", vocabulary), 0);
  return std::make_shared<const Tokenizer>(Tokenizer::learn(corpus.whole_train(), vocabulary));
}

void tokenize(Corpus& corpus, std::shared_ptr<const Tokenizer> tokenizer, const CorpusProgress& progress) {
  const auto all = static_cast<double>(corpus.train_bytes() + corpus.validation_bytes());
  std::int64_t before = 0;
  const auto tokens_of = [&](const Text& text) {
    Text tokens = encode(*tokenizer, text, [&](std::int64_t done) {
      if (progress) progress("encoding the text", static_cast<double>(before + done) / all);
    });
    before += text.size();
    return tokens;
  };
  for (CorpusText& text : corpus.texts) {
    text.train_tokens = tokens_of(text.train);
    if (!text.validation.empty()) text.validation_tokens = tokens_of(text.validation);
  }
  corpus.tokenizer = std::move(tokenizer);
}

}  // namespace poolgrad::nn
