// Byte-pair encoding: text as tokens of one byte or several, learned from text.
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

/// The vocabulary that --tokenizer asks for: "bytes" for 256, "bpe:N" for N, 257 to 65,536. Throws ValueError, one
/// sentence.
std::int64_t parse_tokenizer(const std::string& name);

/// Words, in which alone bytes are merged: a run of ASCII letters, underscores and bytes above 127, of digits, of white
/// space, or of other bytes, at most 64 of them; a single space before one that is no white space belongs to it. How
/// long the first word of `text` is, which is not empty; where the text goes on, at least 65 bytes of it must be there.
std::size_t word_length(std::string_view text);

/// Tokens of bytes (Sennrich et al. 2016): the first 256 are the bytes, and every merge makes one more of two earlier
/// ones. Decoding gives back whatever was encoded, text or not.
class Tokenizer {
 public:
  using Merge = std::pair<std::int32_t, std::int32_t>;
  static constexpr std::size_t longest_word = 64;              // bytes; no token is longer
  static constexpr std::int64_t most_tokens = 65536;           // ever
  static constexpr std::int64_t most_learned_from = 32 << 20;  // bytes

  /// Of bytes alone: token i is byte i.
  Tokenizer() : Tokenizer(std::vector<Merge>{}) {}
  /// The i-th merge makes token 256 + i. Throws ValueError for one of tokens that are not there yet, for a pair that is
  /// merged twice, and for a token of more than longest_word bytes or too many tokens.
  explicit Tokenizer(std::vector<Merge> merges);
  /// Merges the pair that comes most often within words, of equals the smaller one, until there are `vocabulary` tokens
  /// or no pair comes twice. Of a text of bytes of more than 32 MiB only so much is read, spread evenly; behind the
  /// first million of different words no others are counted.
  static Tokenizer learn(const Text& text, std::int64_t vocabulary);

  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  const std::vector<Merge>& merges() const { return merges_; }
  /// A hash of the merges; "" where there are none.
  std::string fingerprint() const;
  /// The bytes of a token. IndexError where there is none such.
  std::string_view bytes_of(std::int64_t token) const;

  /// Merges in the order in which they were learned, word by word.
  std::vector<std::int64_t> encode(std::string_view text) const;
  std::string decode(std::span<const std::int64_t> tokens) const;

  bool operator==(const Tokenizer& other) const { return merges_ == other.merges_; }

 private:
  friend class Encoder;
  /// Appends the tokens of one word.
  void encode_word(std::string_view word, std::vector<std::uint16_t>& tokens) const;

  std::vector<Merge> merges_;
  std::unordered_map<std::uint64_t, std::int32_t> token_of_;  // of a pair
  std::string bytes_;                                         // of all tokens
  std::vector<std::size_t> ends_;                             // of each, in it
};

/// A long text, encoded piece by piece: the same tokens as at once. The tokenizer must outlive it.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Appends the tokens of the words that end in these bytes, and, with `last`, of all.
  void feed(std::string_view bytes, bool last, std::vector<std::uint16_t>& tokens);

 private:
  const Tokenizer& tokenizer_;
  std::string rest_;                                                  // no word as yet
  std::unordered_map<std::string, std::vector<std::uint16_t>> seen_;  // tokens of words, so many at most
};

/// The tokens of a text of bytes, two bytes each, in a spool: memory is bounded. `progress`, if given, is called with
/// the bytes done, now and then.
Text encode(const Tokenizer& tokenizer, const Text& text, const std::function<void(std::int64_t done)>& progress = {});

}  // namespace poolgrad::nn
