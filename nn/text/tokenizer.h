// Byte-pair encoding, learned from text: a token is one byte or several.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace poolgrad::nn {

class Text;

/// Returns the vocabulary of a --tokenizer value: 256 for "bytes", N for "bpe:N", 257 to 65,536. Throws ValueError, one
/// sentence.
std::int64_t parse_tokenizer(const std::string& name);

/// Returns the length of the first word of `text`, which must not be empty. Bytes merge only within words. A word is a
/// run of letters (ASCII letters, underscores and bytes above 127), of digits, of white space, or of other bytes, at
/// most 64 bytes. A single space before a word that is not white space belongs to it. If the text continues beyond
/// `text`, `text` must have at least 65 bytes.
std::size_t word_length(std::string_view text);

/// Tokens of bytes (Sennrich et al. 2016): the first 256 are the bytes, and every merge joins two earlier tokens to a
/// new one. Decoding restores the encoded bytes, text or not.
class Tokenizer {
 public:
  using Merge = std::pair<std::int32_t, std::int32_t>;
  static constexpr std::size_t longest_word = 64;              // bytes; no token is longer
  static constexpr std::int64_t most_tokens = 65536;           // limit of a vocabulary
  static constexpr std::int64_t most_learned_from = 32 << 20;  // bytes

  /// The tokenizer of bytes: token i is byte i.
  Tokenizer() : Tokenizer(std::vector<Merge>{}) {}
  /// Merge i makes token 256 + i. Throws ValueError for a merge of later tokens, a repeated pair, a token of more than
  /// longest_word bytes, and too many tokens.
  explicit Tokenizer(std::vector<Merge> merges);
  /// Merges the most frequent pair within words, of equals the smaller one, until there are `vocabulary` tokens or no
  /// pair comes twice. Of a text of more than 32 MiB, reads 32 MiB, spread evenly. Counts only the first million
  /// different words.
  static Tokenizer learn(const Text& text, std::int64_t vocabulary);

  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  const std::vector<Merge>& merges() const { return merges_; }
  /// Returns a hash of the merges; "" without merges.
  std::string fingerprint() const;
  /// Returns the bytes of a token. Throws IndexError for a token that does not exist.
  std::string_view bytes_of(std::int64_t token) const;

  /// Applies merges in the order in which they were learned, word by word.
  std::vector<std::int64_t> encode(std::string_view text) const;
  std::string decode(std::span<const std::int64_t> tokens) const;

  bool operator==(const Tokenizer& other) const { return merges_ == other.merges_; }

 private:
  friend class Encoder;
  /// Appends the tokens of one word.
  void encode_word(std::string_view word, std::vector<std::uint16_t>& tokens) const;

  std::vector<Merge> merges_;
  std::unordered_map<std::uint64_t, std::int32_t> token_of_;  // of a pair
  std::string bytes_;                                         // bytes of all tokens
  std::vector<std::size_t> ends_;                             // end of each token in bytes_
};

/// Encodes a long text piece by piece, to the same tokens as at once. The tokenizer must outlive it.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Appends the tokens of the words that end in these bytes; with `last`, of all words.
  void feed(std::string_view bytes, bool last, std::vector<std::uint16_t>& tokens);

 private:
  const Tokenizer& tokenizer_;
  std::string rest_;                                                  // bytes of the last word, which may continue
  std::unordered_map<std::string, std::vector<std::uint16_t>> seen_;  // tokens of words, for a limited number of words
};

/// Returns the tokens of a text of bytes, two bytes each, in a spool, so that memory is bounded. Calls `progress`, if
/// given, now and then with the number of bytes done.
Text encode(const Tokenizer& tokenizer, const Text& text, const std::function<void(std::int64_t done)>& progress = {});

}  // namespace poolgrad::nn
