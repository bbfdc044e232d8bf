// Windows of text: as tensors, and the choice of windows for training and validation.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/text/corpus.h"
#include "tensor/tensor.h"

namespace poolgrad::nn {

/// Inputs and targets of a model, both (windows, length) i64. The targets are one token further on.
struct TextWindows {
  Tensor tokens, targets;
};
/// The first token of a window. The text must outlive it.
struct WindowPlace {
  const Text* text = nullptr;
  std::int64_t start = 0;
};
/// Returns the windows at these places of texts of one width, tagged Category::input. Throws IndexError if a window,
/// with the token after it, exceeds its text, and for a length below 1. Throws ValueError for a place without a text.
TextWindows windows_of(const std::vector<WindowPlace>& places, std::int64_t length, Device device = cpu, CallSite = {});
/// The same for one text.
TextWindows windows_of(const Text& text, const std::vector<std::int64_t>& starts, std::int64_t length,
                       Device device = cpu, CallSite = {});

/// Draws the training windows of a corpus and lists its validation batches. The corpus must outlive it.
class WindowPlan {
 public:
  /// Throws ValueError for a training part of at most `context` tokens, a validation part of less than two tokens, and
  /// a batch below 1.
  WindowPlan(const Corpus& corpus, std::int64_t context, std::int64_t batch, std::uint64_t seed);

  /// Returns training window `number`, of `context` tokens. With several texts, draws one by (seed, number) with
  /// probability weight / sum of weights. Then draws a place in it, all equally likely.
  WindowPlace drawn(std::int64_t number) const;

  /// Windows of one text, as long as the context or, if shorter, its validation part.
  struct Batch {
    std::size_t text = 0;  // index in the corpus
    std::vector<WindowPlace> places;
    std::int64_t length = 0;
  };
  /// Returns so many batches, or all if there are fewer, spread evenly over the validation parts. The number for each
  /// text follows its length and is at least one. All batches of a separate validation text cover it and may overlap.
  std::vector<Batch> validation(std::int64_t batches) const;
  /// Returns the number of all validation batches.
  std::int64_t validation_batches() const;

  /// Returns the bytes of the targets of such windows, by position.
  std::vector<double> target_bytes(const std::vector<WindowPlace>& places, std::int64_t length) const;

 private:
  std::int64_t validation_length(const CorpusText& text) const;
  std::int64_t validation_batches(const CorpusText& text) const;

  const Corpus& corpus_;
  std::int64_t context_, batch_;
  std::uint64_t seed_;
};

}  // namespace poolgrad::nn
