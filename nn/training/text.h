// Text for language models: read as bytes, cut into windows, and counted as a baseline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad::nn {

/// Text to train on and text held out, as bytes.
struct Corpus {
  std::vector<std::uint8_t> train, validation;
  std::int64_t files = 0;
};

/// Reads files, and folders with everything below them (hidden files and files that contain a 0 byte are left out), in
/// an order that depends on names alone. Of several files, a tenth, chosen by `seed`, is held out; of a single file the
/// last tenth of its bytes. Throws FileError for a path that does not exist or holds no text.
Corpus read_corpus(const std::vector<std::string>& paths, std::uint64_t seed = 1);

/// What a model reads and what it is to say: both (windows, length) i64, the targets one byte further on.
struct TextWindows {
  Tensor tokens, targets;
};
/// The windows of `text` that begin at `starts`, tagged Category::input. IndexError where one, with the byte behind it,
/// does not lie within the text.
TextWindows windows_of(const std::vector<std::uint8_t>& text, const std::vector<std::int64_t>& starts,
                       std::int64_t length, Device device = cpu);

/// What counting achieves, in nats per byte on held-out text: n-gram models to hold a language model against.
struct Baselines {
  double unigram = 0, bigram = 0, trigram = 0;
};

/// Counts `train` and scores `validation`. A bigram or trigram model mixes its counts with the model one shorter by
/// Witten-Bell's weights (1991): P(c | h) = (n(hc) + t(h) P(c | shorter h)) / (n(h) + t(h)), where t(h) is the number
/// of different bytes seen after h; the unigram mixes with 1/256. An empty text gives 0.
Baselines ngram_baselines(const std::vector<std::uint8_t>& train, const std::vector<std::uint8_t>& validation);

}  // namespace poolgrad::nn
