// The loss of validation text, over several texts and by position.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/text/corpus.h"

namespace poolgrad::nn {

/// Losses in nats per byte; the mean of several texts is weighted.
struct ValidationLoss {
  double loss = 0;
  std::vector<double> by_text = {};  // of a corpus of several texts
  /// Loss by position in the window, if asked for; position i has a context of i + 1 tokens. `shares` is the weight of
  /// each position in a mean: its share of the bytes times the length of the window. All 1 for bytes.
  std::vector<double> by_position = {}, shares = {};
  std::int64_t bytes = 0;  // scored
};

/// Sums over validation batches of the texts of a corpus, which must outlive it.
class ValidationSums {
 public:
  explicit ValidationSums(const Corpus& corpus) : corpus_(corpus), scores_(corpus.texts.size()) {}

  /// Returns the sum over all targets of a text so far, or the sums by position. The caller adds to it.
  std::vector<double>& nats(std::size_t text) { return scores_[text].nats; }
  /// Adds the bytes of further targets, by position.
  void add_bytes(std::size_t text, const std::vector<double>& bytes);
  ValidationLoss mean() const;

 private:
  struct Score {
    std::vector<double> nats, bytes;
  };
  const Corpus& corpus_;
  std::vector<Score> scores_;
};

}  // namespace poolgrad::nn
