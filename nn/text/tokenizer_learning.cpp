// Learning of a Tokenizer: words are counted once, and every merge changes only the words that contain the pair.
#include <algorithm>
#include <cstdint>
#include <queue>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nn/text/text.h"
#include "nn/text/tokenizer.h"

namespace poolgrad::nn {

namespace {

constexpr std::size_t most_different_words = std::size_t{1} << 20;

using WordCounts = std::unordered_map<std::string, std::int64_t>;

WordCounts count_words(const Text& text) {
  WordCounts counts;
  std::string rest, word;
  const auto take = [&](std::size_t kept) {
    std::string_view left = rest;
    while (left.size() > kept) {
      word = left.substr(0, word_length(left));
      left.remove_prefix(word.size());
      if (const auto known = counts.find(word); known != counts.end())
        ++known->second;
      else if (counts.size() < most_different_words)
        counts.emplace(word, 1);
    }
    rest = std::string(left);
  };
  text.for_each_block(
      [&](std::span<const std::uint8_t> block) {
        rest.append(block.begin(), block.end());
        take(Tokenizer::longest_word);
      },
      Tokenizer::most_learned_from);
  take(0);
  return counts;
}

using Merge = Tokenizer::Merge;

struct PairHash {
  std::size_t operator()(const Merge& pair) const {
    const auto key = static_cast<std::uint64_t>(pair.first) << 32 | static_cast<std::uint64_t>(pair.second);
    return static_cast<std::size_t>((key ^ key >> 29) * 0x9e3779b97f4a7c15u);
  }
};

/// Words as tokens, and the count of each pair of neighbors. The result does not depend on the order of the words.
class PairCounts {
 public:
  explicit PairCounts(const WordCounts& counts) {
    for (const auto& [text, count] : counts) {
      if (text.size() < 2) continue;
      Word& word = words_.emplace_back(Word{{}, count});
      for (const char c : text) word.tokens.push_back(static_cast<unsigned char>(c));
      add(words_.size() - 1, 1, -1);
    }
    for (const auto& [pair, found] : pairs_) queue_.emplace(found.count, pair);
  }

  /// Finds the most frequent pair, of equals the smaller one. Returns false if no pair comes twice.
  bool most_frequent(Merge& pair) {
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      const std::int64_t count = pairs_.at(top.second).count;
      if (count == top.first && count >= 2) {
        pair = top.second;
        return true;
      }
      if (count < top.first && count >= 2) queue_.emplace(count, top.second);
    }
    return false;
  }

  void merge(const Merge& pair, std::int32_t token) {
    const std::vector<std::size_t> places = std::move(pairs_.at(pair).words);
    changed_.clear();
    for (const std::size_t index : places) {
      std::vector<std::int32_t>& tokens = words_[index].tokens;
      const auto is_pair = [&](std::size_t i) {
        return i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
      };
      add(index, -1, token);
      std::size_t kept = 0;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const bool merged = is_pair(i);
        tokens[kept++] = merged ? token : tokens[i];
        i += merged ? 1 : 0;
      }
      tokens.resize(kept);
      add(index, 1, token);
    }
    std::ranges::sort(changed_);
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Merge& made : changed_) queue_.emplace(pairs_.at(made).count, made);
  }

 private:
  struct Word {
    std::vector<std::int32_t> tokens;
    std::int64_t count;
  };
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::size_t> words = {};  // that contain the pair, or did
  };
  using Entry = std::pair<std::int64_t, Merge>;
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    }
  };

  /// Counts the pairs of a word, or with sign -1 removes them. Pairs with the token `made` (-1: all) are new to the
  /// word. In three equal tokens, the second pair overlaps the first. A merge replaces only one, so only one counts.
  void add(std::size_t index, std::int64_t sign, std::int32_t made) {
    const Word& word = words_[index];
    bool overlaps = false;  // the previous pair counts and shares a token with an equal one
    for (std::size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      const Merge pair{word.tokens[i], word.tokens[i + 1]};
      if (overlaps && pair.first == pair.second) {
        overlaps = false;
        continue;
      }
      overlaps = pair.first == pair.second;
      Pair& found = pairs_[pair];
      found.count += sign * word.count;
      if (sign < 0 || (made >= 0 && pair.first != made && pair.second != made)) continue;
      if (found.words.empty() || found.words.back() != index) found.words.push_back(index);
      if (made >= 0) changed_.push_back(pair);
    }
  }

  std::vector<Word> words_;
  std::unordered_map<Merge, Pair, PairHash> pairs_;
  std::priority_queue<Entry, std::vector<Entry>, Later> queue_;  // counts may have fallen since
  std::vector<Merge> changed_;
};

}  // namespace

Tokenizer Tokenizer::learn(const Text& text, std::int64_t vocabulary) {
  PairCounts pairs(count_words(text));
  std::vector<Merge> merges;
  for (Merge pair; 256 + std::ssize(merges) < vocabulary && pairs.most_frequent(pair);) {
    pairs.merge(pair, static_cast<std::int32_t>(256 + std::ssize(merges)));
    merges.push_back(pair);
  }
  return Tokenizer(std::move(merges));
}

}  // namespace poolgrad::nn
