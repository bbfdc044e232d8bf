// What a model learns from: one text or several with weights, each with a part that is held out, as bytes and as
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

/// A text to train on and its held-out part, in bytes and in tokens, which may be the same.
struct CorpusText {
  Text train, validation;
  Text train_tokens, validation_tokens;
  double weight = 1;
  std::string path = {};  // as it was asked for

  std::uint64_t train_bytes() const { return static_cast<std::uint64_t>(train.size()); }
  std::uint64_t held_out_bytes() const { return static_cast<std::uint64_t>(validation.size()); }
};

struct Corpus {
  Corpus() = default;
  /// One text of bytes.
  Corpus(Text train, Text validation, std::int64_t file_count = 0);

  std::vector<CorpusText> texts;
  bool weighted = false;  // asked for by weights, be it one text
  std::int64_t files = 0;
  std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<const Tokenizer>();  // of the tokens

  /// Tokens are bytes, and "bytes" is what they are called.
  bool of_bytes() const { return texts.empty() || texts.front().train_tokens.width() == 1; }
  /// Over all texts.
  std::uint64_t train_bytes() const;
  std::uint64_t held_out_bytes() const;
  double total_weight() const;
  /// What is trained on, one text after the other.
  Text whole_train() const;

  /// A hash of what is trained on, by which a checkpoint knows it again: of all bytes, or, of more than 4 GiB, of so
  /// many spread evenly, and the size.
  std::string fingerprint() const;
  /// Is it that of these texts, in either way?
  bool has_fingerprint(const std::string& fingerprint) const;
  /// "3,1"; "" without weights.
  std::string describe_weights() const;

 private:
  std::string fingerprint_of(bool spread) const;
};

/// What is read, and how often a window is drawn from it.
struct TextSource {
  std::string path;
  std::optional<double> weight = {};

  /// "PATH" or "PATH=WEIGHT": where all of it is the name of something that exists, a path; else the last "=" divides
  /// it, if something exists that is named by what stands before. Throws ValueError for a weight that is no number from
  /// 1e-9 to 1e9.
  static TextSource parse(const std::string& text);
};

/// Reads what TextSource::parse() makes of each: files, and folders with everything below them (hidden files, files
/// that contain a 0 byte and links to folders are left out; of a file of more than a GiB only so much is searched for a
/// 0 byte, spread evenly), in an order that depends on names alone. A file that is there by several paths or links
/// counts once. Of several files, a tenth, chosen by `seed`, is held out; of a single file, and where that would be
/// less than 1 % or more than 75 % of the bytes, the last tenth of all. Without weights all are one text, otherwise
/// each is one of its own, of weight 1 unless it has another. Files of more than a MiB are mapped and not read. Throws
/// FileError for a path that does not exist, is neither file nor folder, cannot be read or holds no text, and says why,
/// and ValueError for a file that two texts have.
Corpus read_corpus(const std::vector<std::string>& sources, std::uint64_t seed = 1);

/// Is called with what is going on ("encoding the text") and how much of it is done, in [0, 1].
using CorpusProgress = std::function<void(const std::string& what, double done)>;
/// Learns a tokenizer from what is trained on.
std::shared_ptr<const Tokenizer> learn_tokenizer(const Corpus& corpus, std::int64_t vocabulary,
                                                 const CorpusProgress& progress = {});
/// Puts the tokens of all texts into the corpus.
void tokenize(Corpus& corpus, std::shared_ptr<const Tokenizer> tokenizer, const CorpusProgress& progress = {});

}  // namespace poolgrad::nn
