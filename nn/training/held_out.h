// What held-out text costs: over several texts, and by position.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/text/corpus.h"

namespace poolgrad::nn {

/// In nats per byte. Of several texts it is the mean by their weights.
struct HeldOutLoss {
  double loss = 0;
  std::vector<double> by_text = {};  // of a corpus with several
  /// By position in the window, where i + 1 tokens are there to go by, if it was asked for; and what each position
  /// counts in a mean over some: the share of the bytes that it has, times the length of the window. All 1 for bytes.
  std::vector<double> by_position = {}, shares = {};
  std::int64_t bytes = 0;  // scored
};

/// Adds up held-out batches of the texts of a corpus, which must outlive it.
class HeldOutSums {
 public:
  explicit HeldOutSums(const Corpus& corpus) : corpus_(corpus), scores_(corpus.texts.size()) {}

  /// Of all targets of a text so far, in one sum or by position: to be added to.
  std::vector<double>& nats(std::size_t text) { return scores_[text].nats; }
  /// The bytes of further targets, by position.
  void add_bytes(std::size_t text, const std::vector<double>& bytes);
  HeldOutLoss mean() const;

 private:
  struct Score {
    std::vector<double> nats, bytes;
  };
  const Corpus& corpus_;
  std::vector<Score> scores_;
};

}  // namespace poolgrad::nn
