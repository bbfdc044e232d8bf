// The training data: one text, or several with weights. Each has a training part and a validation part, as bytes and as
// tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/text/text.h"
#include "nn/text/tokenizer.h"

namespace poolgrad::nn {

/// A text to train on and its validation part, in bytes and in tokens, which may be the same.
struct CorpusText {
  Text train, validation;
  Text train_tokens, validation_tokens;
  double weight = 1;
  std::string path = {};  // as the user wrote it

  std::uint64_t train_bytes() const { return static_cast<std::uint64_t>(train.size()); }
  std::uint64_t validation_bytes() const { return static_cast<std::uint64_t>(validation.size()); }
};

struct Corpus {
  Corpus() = default;
  /// One text of bytes.
  Corpus(Text train, Text validation, std::int64_t file_count = 0);

  std::vector<CorpusText> texts;
  bool weighted = false;  // the user gave weights, even for one text
  /// The first text has a validation text of its own, which is scored whole; nothing is held out of any text.
  bool own_validation = false;
  std::int64_t files = 0;
  std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<const Tokenizer>();  // of the tokens

  /// Returns whether tokens are bytes; messages then say "bytes".
  bool of_bytes() const { return texts.empty() || texts.front().train_tokens.width() == 1; }
  /// Over all texts.
  std::uint64_t train_bytes() const;
  std::uint64_t validation_bytes() const;
  double total_weight() const;
  /// Returns the training parts of all texts, one after the other.
  Text whole_train() const;

  /// Returns a hash of the training text, by which a checkpoint identifies it. It covers the size and all bytes, or 4
  /// GiB of a longer text, spread evenly.
  std::string fingerprint() const;
  /// Returns whether the fingerprint is that of these texts, of all bytes or of spread ones.
  bool has_fingerprint(const std::string& fingerprint) const;
  /// "3,1"; "" without weights.
  std::string describe_weights() const;

 private:
  std::string fingerprint_of(bool spread) const;
};

/// A path to read, and the weight with which windows are drawn from it.
struct TextSource {
  std::string path;
  std::optional<double> weight = {};

  /// Parses "PATH" or "PATH=WEIGHT". If a file with the whole name exists, the text is a path. Otherwise the last "="
  /// separates the weight, if the part before it exists. Throws ValueError for a weight that is not a number from 1e-9
  /// to 1e9.
  static TextSource parse(const std::string& text);
};

/// Reads each source, a text for TextSource::parse(): a file, or a folder with all files below it, ordered by name.
/// Skips hidden files, links to folders, and files that contain a 0 byte. Of a file of more than a GiB, searches only a
/// GiB for a 0 byte, spread evenly. A file that several paths or links lead to counts once.
///
/// With `validation`, a file or folder, that is the validation text, and all text of the sources is for training.
/// Otherwise holds out a tenth of the files, chosen by `seed`. Holds out the last tenth of all text for a single file,
/// or if the files would be less than 1 % or more than 75 % of the bytes. Without weights, all files are one text. With
/// weights, each source is a text of its own, with default weight 1. Maps files of more than a MiB and does not read
/// them. Throws FileError, with the reason, for a path that does not exist, is neither file nor folder, cannot be read
/// or holds no text. Throws ValueError for a file that belongs to two texts.
Corpus read_corpus(const std::vector<std::string>& sources, std::uint64_t seed = 1, const std::string& validation = {});

/// Called with the current work ("encoding the text") and the fraction done, in [0, 1].
using CorpusProgress = std::function<void(const std::string& what, double done)>;
/// Learns a tokenizer from the training parts.
std::shared_ptr<const Tokenizer> learn_tokenizer(const Corpus& corpus, std::int64_t vocabulary,
                                                 const CorpusProgress& progress = {});
/// Sets the tokens of all texts of the corpus.
void tokenize(Corpus& corpus, std::shared_ptr<const Tokenizer> tokenizer, const CorpusProgress& progress = {});

}  // namespace poolgrad::nn
