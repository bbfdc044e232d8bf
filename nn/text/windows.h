// Windows of text: as tensors, and which of them a run trains on and is judged by.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/text/corpus.h"
#include "tensor/tensor.h"

namespace poolgrad::nn {

/// What a model reads and what it is to say: both (windows, length) i64, the targets one token further on.
struct TextWindows {
  Tensor tokens, targets;
};
/// A window's first token. The text outlives it.
struct WindowPlace {
  const Text* text = nullptr;
  std::int64_t start = 0;
};
/// The windows at these places of texts of one width, tagged Category::input. IndexError where one, with the token
/// behind it, does not lie within its text, and for a length below 1; ValueError for a place without a text.
TextWindows windows_of(const std::vector<WindowPlace>& places, std::int64_t length, Device device = cpu, CallSite = {});
/// Those of one text.
TextWindows windows_of(const Text& text, const std::vector<std::int64_t>& starts, std::int64_t length,
                       Device device = cpu, CallSite = {});

/// Which windows of a corpus, which must outlive it, are drawn in training, and which are held-out batches.
class WindowPlan {
 public:
  /// Throws ValueError for a text of which not more than `context` tokens are to be trained on, or less than two are
  /// held out, and for a batch below 1.
  WindowPlan(const Corpus& corpus, std::int64_t context, std::int64_t batch, std::uint64_t seed);

  /// The number-th window of `context` tokens to train on: of several texts one that is drawn by (seed, number) with
  /// probability weight / sum of weights; from there a place that is drawn alike, any as likely as any other.
  WindowPlace drawn(std::int64_t number) const;

  /// Windows of one text, as long as the context or as its held-out part allows.
  struct Batch {
    std::size_t text = 0;  // of the corpus
    std::vector<WindowPlace> places;
    std::int64_t length = 0;
  };
  /// So many batches, or as many as there are, spread evenly over what is held out; each text has a share of them by
  /// its length, and at least one.
  std::vector<Batch> held_out(std::int64_t batches) const;
  /// How many batches are there.
  std::int64_t held_out_batches() const;

  /// By position, the bytes of the targets of such windows.
  std::vector<double> target_bytes(const std::vector<WindowPlace>& places, std::int64_t length) const;

 private:
  std::int64_t held_out_length(const CorpusText& text) const;
  std::int64_t held_out_batches(const CorpusText& text) const;

  const Corpus& corpus_;
  std::int64_t context_, batch_;
  std::uint64_t seed_;
};

}  // namespace poolgrad::nn
