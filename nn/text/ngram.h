// Baselines for a language model: n-gram models of bytes.
#pragma once

#include "nn/text/corpus.h"

namespace poolgrad::nn {

/// Losses in nats per byte on validation text.
struct Baselines {
  double unigram = 0, bigram = 0, trigram = 0;
};

/// Counts `train` and scores `validation`, both texts of bytes. A bigram or trigram model mixes its counts with the
/// next shorter model by Witten-Bell weights (1991): P(c | h) = (n(hc) + t(h) P(c | shorter h)) / (n(h) + t(h)), with
/// t(h) the number of different bytes seen after h. The unigram mixes with 1/256. An empty text gives 0. Of a text of
/// more than 256 MiB, reads 256 MiB, spread evenly.
Baselines ngram_baselines(const Text& train, const Text& validation);
/// Counts the training parts of all texts, one after the other. Scores each validation part by itself, and returns the
/// mean by the weights of the texts.
Baselines ngram_baselines(const Corpus& corpus);

}  // namespace poolgrad::nn
