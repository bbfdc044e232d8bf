// What counting achieves: n-gram models of bytes, to hold a language model against.
#pragma once

#include "nn/text/corpus.h"

namespace poolgrad::nn {

/// In nats per byte on held-out text.
struct Baselines {
  double unigram = 0, bigram = 0, trigram = 0;
};

/// Counts `train` and scores `validation`, both texts of bytes. A bigram or trigram model mixes its counts with the
/// model one shorter by Witten-Bell's weights (1991): P(c | h) = (n(hc) + t(h) P(c | shorter h)) / (n(h) + t(h)), where
/// t(h) is the number of different bytes seen after h; the unigram mixes with 1/256. An empty text gives 0. Of texts of
/// more than 256 MiB only so much is read, spread evenly.
Baselines ngram_baselines(const Text& train, const Text& validation);
/// Counts all texts of a corpus, one after the other; what is held out of each is scored by itself, and the mean is by
/// the weights of the texts.
Baselines ngram_baselines(const Corpus& corpus);

}  // namespace poolgrad::nn
