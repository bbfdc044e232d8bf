// Writes plain data as JSON; the same interface as PickleEmitter.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/trace/internal/byte_writer.h"

namespace poolgrad {

/// `text` with quotes and escapes. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);
/// `text` with U+FFFD in place of bytes that are not UTF-8.
std::string utf8_text(std::string_view text);

class JsonEmitter {
 public:
  using Token = std::uint32_t;

  Token token(std::string_view text) {
    tokens_.push_back(json_text(text));
    return static_cast<Token>(tokens_.size() - 1);
  }
  Token shared() {
    tokens_.emplace_back();
    return static_cast<Token>(tokens_.size() - 1);
  }

  void begin_dict() {
    out_.u8('{');
    first_.push_back(true);
  }
  void end_dict() {
    out_.u8('}');
    first_.pop_back();
  }
  void begin_list() {
    out_.u8('[');
    first_.push_back(true);
  }
  void item() { separate(); }
  void end_list() {
    out_.u8(']');
    first_.pop_back();
  }

  void key(Token text) {
    separate();
    out_.raw(tokens_[text]);
    out_.u8(':');
  }
  void key(std::string_view text) {
    separate();
    out_.raw(json_text(text));
    out_.u8(':');
  }
  void value(Token text) { out_.raw(tokens_[text]); }
  void value(std::string_view text) { out_.raw(json_text(text)); }
  void value(std::uint64_t number) {
    char* begin = out_.room(20);
    out_.wrote(static_cast<std::size_t>(std::to_chars(begin, begin + 20, number).ptr - begin));
  }
  /// number / 10^decimals, exactly.
  void decimal(std::uint64_t number, std::size_t decimals) {
    std::string digits = std::to_string(number);
    if (digits.size() <= decimals) digits.insert(0, decimals + 1 - digits.size(), '0');
    digits.insert(digits.size() - decimals, ".");
    out_.raw(digits);
  }
  void minus_one() { out_.raw("-1"); }
  /// A finite number.
  void number(double value) {
    char* begin = out_.room(32);
    out_.wrote(static_cast<std::size_t>(std::to_chars(begin, begin + 32, value).ptr - begin));
  }
  void boolean(bool value) { out_.raw(value ? "true" : "false"); }
  void pair(std::uint64_t first, std::uint64_t second) {
    out_.u8('[');
    value(first);
    out_.u8(',');
    value(second);
    out_.u8(']');
  }
  template <typename Write>
  void shared_list(Token token, Write write) {
    if (tokens_[token].empty()) {
      JsonEmitter once;
      once.begin_list();
      write(once);
      once.end_list();
      tokens_[token] = once.finish();
    }
    out_.raw(tokens_[token]);
  }

  std::string finish() { return std::string(out_.view()); }

 private:
  void separate() {
    if (!first_.back()) out_.u8(',');
    first_.back() = false;
  }

  ByteWriter out_;
  std::vector<std::string> tokens_;
  std::vector<char> first_;
};

}  // namespace poolgrad
