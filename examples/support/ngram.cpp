#include "examples/support/ngram.h"

#include <array>
#include <cmath>

namespace poolgrad::examples {

namespace {

/// Counts of one order: after each history, how often each symbol came, how often any, and how many different ones.
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

}  // namespace

Baselines ngram_baselines(const std::vector<std::uint8_t>& train, const std::vector<std::uint8_t>& validation) {
  if (train.empty() || validation.empty()) return {};
  // Symbol 0 stands for every byte that the training text does not have (and for what comes before the text); it keeps
  // the tables small: texts use about a hundred different bytes.
  std::array<std::size_t, 256> symbols{};
  std::size_t alphabet = 1;
  for (const std::uint8_t byte : train)
    if (symbols[byte] == 0) symbols[byte] = alphabet++;

  Counts one(1, alphabet), two(alphabet, alphabet), three(alphabet * alphabet, alphabet);
  std::size_t before = 0, last = 0;
  for (const std::uint8_t byte : train) {
    const std::size_t symbol = symbols[byte];
    one.add(0, symbol);
    two.add(last, symbol);
    three.add(before * alphabet + last, symbol);
    before = last;
    last = symbol;
  }

  Baselines sums;
  before = last = 0;
  for (const std::uint8_t byte : validation) {
    const std::size_t symbol = symbols[byte];
    const double p1 = one.probability(0, symbol, 1.0 / 256);
    const double p2 = two.probability(last, symbol, p1);
    const double p3 = three.probability(before * alphabet + last, symbol, p2);
    sums.unigram -= std::log(p1);
    sums.bigram -= std::log(p2);
    sums.trigram -= std::log(p3);
    before = last;
    last = symbol;
  }
  const double bytes = static_cast<double>(validation.size());
  return {sums.unigram / bytes, sums.bigram / bytes, sums.trigram / bytes};
}

}  // namespace poolgrad::examples
