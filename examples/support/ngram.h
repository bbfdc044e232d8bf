// What counting achieves: n-gram models of bytes, to hold a language model against.
#pragma once

#include <cstdint>
#include <vector>

namespace poolgrad::examples {

/// Nats per byte on held-out text.
struct Baselines {
  double unigram = 0, bigram = 0, trigram = 0;
};

/// Counts `train` and scores `validation`. A bigram or trigram model mixes its counts with the model one shorter by
/// Witten-Bell's weights (1991): P(c | h) = (n(hc) + t(h) P(c | shorter h)) / (n(h) + t(h)), where t(h) is the number
/// of different bytes seen after h; the unigram mixes with 1/256. An empty text gives 0.
Baselines ngram_baselines(const std::vector<std::uint8_t>& train, const std::vector<std::uint8_t>& validation);

}  // namespace poolgrad::examples
