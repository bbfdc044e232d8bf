#include "nn/text/ngram.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace poolgrad::nn {

namespace {

constexpr std::int64_t most_counted = std::int64_t{256} << 20;  // bytes

/// Counts of one order after each history: of each symbol, of all symbols, and of different symbols.
struct Counts {
  Counts(std::size_t histories, std::size_t alphabet)
      : width(alphabet), pairs(histories * alphabet), totals(histories), types(histories) {}

  void add(std::size_t history, std::size_t symbol) {
    if (pairs[history * width + symbol]++ == 0) ++types[history];
    ++totals[history];
  }
  double probability(std::size_t history, std::size_t symbol, double shorter) const {
    const double total = totals[history], different = types[history];
    if (total == 0) return shorter;
    return (pairs[history * width + symbol] + different * shorter) / (total + different);
  }

  std::size_t width;
  std::vector<std::uint32_t> pairs, totals, types;
};

/// Numbers the bytes of the training text. Symbol 0 stands for every other byte, and for the positions before the text.
/// That keeps the tables small: texts use about a hundred different bytes.
struct Symbols {
  explicit Symbols(const Text& train) {
    train.for_each_block(
        [&](std::span<const std::uint8_t> block) {
          for (const std::uint8_t byte : block)
            if (of[byte] == 0) of[byte] = alphabet++;
        },
        most_counted);
  }
  std::array<std::size_t, 256> of{};
  std::size_t alphabet = 1;
};

class NgramModels {
 public:
  explicit NgramModels(const Text& train)
      : symbols_(train), one_(1, size()), two_(size(), size()), three_(size() * size(), size()) {
    walk(train, [&](std::size_t two_before, std::size_t last, std::size_t symbol) {
      one_.add(0, symbol);
      two_.add(last, symbol);
      three_.add(two_before, symbol);
    });
  }

  Baselines score(const Text& validation) const {
    Baselines sums;
    double bytes = 0;
    walk(validation, [&](std::size_t two_before, std::size_t last, std::size_t symbol) {
      const double p1 = one_.probability(0, symbol, 1.0 / 256);
      const double p2 = two_.probability(last, symbol, p1);
      sums.unigram -= std::log(p1);
      sums.bigram -= std::log(p2);
      sums.trigram -= std::log(three_.probability(two_before, symbol, p2));
      ++bytes;
    });
    return {sums.unigram / bytes, sums.bigram / bytes, sums.trigram / bytes};
  }

 private:
  std::size_t size() const { return symbols_.alphabet; }

  /// Calls visit(symbol two before, symbol before, symbol).
  template <class Visit>
  void walk(const Text& text, const Visit& visit) const {
    std::size_t before = 0, last = 0;
    text.for_each_block(
        [&](std::span<const std::uint8_t> block) {
          for (const std::uint8_t byte : block) {
            visit(before * size() + last, last, symbols_.of[byte]);
            before = last;
            last = symbols_.of[byte];
          }
        },
        most_counted);
  }

  Symbols symbols_;
  Counts one_, two_, three_;
};

}  // namespace

Baselines ngram_baselines(const Text& train, const Text& validation) {
  if (train.empty() || validation.empty()) return {};
  return NgramModels(train).score(validation);
}

Baselines ngram_baselines(const Corpus& corpus) {
  const Text train = corpus.whole_train();
  if (train.empty()) return {};
  const NgramModels models(train);
  Baselines mean;
  double scored = 0;
  for (const CorpusText& text : corpus.texts) scored += text.validation.empty() ? 0 : text.weight;
  for (const CorpusText& text : corpus.texts) {
    if (text.validation.empty()) continue;
    const double share = text.weight / scored;
    const Baselines one = models.score(text.validation);
    mean.unigram += share * one.unigram;
    mean.bigram += share * one.bigram;
    mean.trigram += share * one.trigram;
  }
  return mean;
}

}  // namespace poolgrad::nn
