#include "nn/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "allocator/base/fnv1a.h"
#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "nn/text/byte_source.h"
#include "nn/text/text.h"

namespace poolgrad::nn {

namespace {

constexpr std::int32_t byte_tokens = 256;
constexpr std::size_t most_seen_words = std::size_t{1} << 16;

enum class ByteClass : std::uint8_t { letter, digit, space, other };

ByteClass class_of(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '_')
    return ByteClass::letter;
  if (byte >= '0' && byte <= '9') return ByteClass::digit;
  return byte == ' ' || (byte >= '\t' && byte <= '\r') ? ByteClass::space : ByteClass::other;
}

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
}

}  // namespace

std::int64_t parse_tokenizer(const std::string& name) {
  if (name == "bytes") return byte_tokens;
  if (name.starts_with("bpe:")) {
    const auto vocabulary = number_in<std::int64_t>(std::string_view(name).substr(4));
    if (vocabulary && *vocabulary > byte_tokens && *vocabulary <= Tokenizer::most_tokens) return *vocabulary;
  }
  throw ValueError(fmt::format("[train] --tokenizer must be bytes, or bpe:N with N from {} to {}, but is {}",
                               byte_tokens + 1, Tokenizer::most_tokens, printable(name)));
}

std::size_t word_length(std::string_view text) {
  const bool led = text.size() > 1 && text[0] == ' ' && class_of(text[1]) != ByteClass::space;
  const ByteClass kind = class_of(text[led ? 1 : 0]);
  const std::size_t most = std::min(text.size(), Tokenizer::longest_word);
  std::size_t end = led ? 2 : 1;
  while (end < most && class_of(text[end]) == kind) ++end;
  const bool leads = kind == ByteClass::space && end > 1 && end < text.size() && text[end - 1] == ' ' &&
                     class_of(text[end]) != ByteClass::space;
  return leads ? end - 1 : end;
}

Tokenizer::Tokenizer(std::vector<Merge> merges) : merges_(std::move(merges)) {
  const auto count = static_cast<std::int64_t>(merges_.size());
  if (count > most_tokens - byte_tokens)
    throw ValueError(fmt::format("[tokenizer] {} merges are more than {}", count, most_tokens - byte_tokens));
  for (int byte = 0; byte < byte_tokens; ++byte) {
    bytes_ += static_cast<char>(byte);
    ends_.push_back(bytes_.size());
  }
  token_of_.reserve(merges_.size());
  for (const auto& [left, right] : merges_) {
    const auto token = static_cast<std::int32_t>(size());
    if (left < 0 || right < 0 || left >= token || right >= token)
      throw ValueError(
          fmt::format("[tokenizer] token {} joins {} and {}, which are not both earlier tokens", token, left, right));
    if (bytes_of(left).size() + bytes_of(right).size() > longest_word)
      throw ValueError(fmt::format("[tokenizer] token {} has more than {} bytes", token, longest_word));
    if (!token_of_.emplace(key_of(left, right), token).second)
      throw ValueError(fmt::format("[tokenizer] token {} joins {} and {}, like an earlier token", token, left, right));
    const std::string joined = std::string(bytes_of(left)) + std::string(bytes_of(right));
    bytes_ += joined;
    ends_.push_back(bytes_.size());
  }
}

std::string Tokenizer::fingerprint() const {
  Fnv1a hash;
  for (const auto& [left, right] : merges_)
    for (const std::int32_t token : {left, right}) hash.mix(static_cast<std::uint64_t>(token));
  return merges_.empty() ? "" : fmt::format("{:016x}", hash.value());
}

std::string_view Tokenizer::bytes_of(std::int64_t token) const {
  if (token < 0 || token >= size())
    throw IndexError(fmt::format("[tokenizer] there is no token {} among {}", token, size()));
  const auto i = static_cast<std::size_t>(token);
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(bytes_).substr(begin, ends_[i] - begin);
}

void Tokenizer::encode_word(std::string_view word, std::vector<std::uint16_t>& tokens) const {
  std::int32_t parts[longest_word];
  std::size_t count = 0;
  for (const char c : word) parts[count++] = static_cast<unsigned char>(c);
  for (;;) {  // applies the earliest merge, wherever its pair is
    std::int32_t first = INT32_MAX;
    for (std::size_t i = 0; i + 1 < count; ++i)
      if (const auto found = token_of_.find(key_of(parts[i], parts[i + 1])); found != token_of_.end())
        first = std::min(first, found->second);
    if (first == INT32_MAX) break;
    const auto& [left, right] = merges_[static_cast<std::size_t>(first - byte_tokens)];
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const bool merged = i + 1 < count && parts[i] == left && parts[i + 1] == right;
      parts[kept++] = merged ? first : parts[i];
      i += merged ? 1 : 0;
    }
    count = kept;
  }
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::uint16_t>(parts[i]));
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::uint16_t> tokens;
  Encoder(*this).feed(text, true, tokens);
  return {tokens.begin(), tokens.end()};
}

std::string Tokenizer::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (const std::int64_t token : tokens) text += bytes_of(token);
  return text;
}

void Encoder::feed(std::string_view bytes, bool last, std::vector<std::uint16_t>& tokens) {
  rest_ += bytes;
  std::string_view left = rest_;
  while (left.size() > (last ? 0 : Tokenizer::longest_word)) {
    const std::string word(left.substr(0, word_length(left)));
    left.remove_prefix(word.size());
    auto known = seen_.find(word);
    if (known == seen_.end()) {
      if (seen_.size() == most_seen_words) seen_.clear();
      known = seen_.emplace(word, std::vector<std::uint16_t>()).first;
      tokenizer_.encode_word(word, known->second);
    }
    tokens.insert(tokens.end(), known->second.begin(), known->second.end());
  }
  rest_ = std::string(left);
}

Text encode(const Tokenizer& tokenizer, const Text& text, const std::function<void(std::int64_t)>& progress) {
  Encoder encoder(tokenizer);
  Spool spool;
  std::int64_t done = 0;
  std::vector<std::uint16_t> tokens;
  const auto append = [&](std::string_view bytes, bool last) {
    tokens.clear();
    encoder.feed(bytes, last, tokens);
    spool.append({reinterpret_cast<const std::uint8_t*>(tokens.data()), 2 * tokens.size()});
    done += static_cast<std::int64_t>(bytes.size());
    if (progress) progress(done);
  };
  text.for_each_block([&](std::span<const std::uint8_t> block) {
    append({reinterpret_cast<const char*>(block.data()), block.size()}, false);
  });
  append({}, true);
  return Text(spool.finish(), 2);
}

}  // namespace poolgrad::nn
