// Two writers of plain data (dictionaries, lists, texts, numbers) with one interface: JSON and pickle.
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/trace/bytes.h"

namespace poolgrad {

/// `text` with quotes and escapes. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);
/// `text` with bytes that are not UTF-8 replaced by U+FFFD.
std::string utf8_text(std::string_view text);

class JsonEmitter {
 public:
  /// A text or shared list that may be written repeatedly.
  enum class Token : std::uint32_t {};

  Token token(std::string_view text) { return keep(json_text(text)); }
  Token shared() { return keep(""); }

  void begin_dict() { begin('{'); }
  void end_dict() { end('}'); }
  void begin_list() { begin('['); }
  /// Before each item of a list.
  void item() {
    if (!first_.back()) out_.u8(',');
    first_.back() = false;
  }
  void end_list() { end(']'); }

  /// The key of the next value of a dictionary.
  void key(Token text) { key_of(text_of(text)); }
  void key(std::string_view text) { key_of(json_text(text)); }
  void value(Token text) { out_.raw(text_of(text)); }
  void value(std::string_view text) { out_.raw(json_text(text)); }
  void value(std::uint64_t number) { out_.digits(number); }
  template <typename Key, typename Value>
  void field(const Key& name, const Value& content) {
    key(name);
    value(content);
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
  /// Writes a list once, with `write(emitter)` between begin_list() and end_list(), and then refers to it.
  template <typename Write>
  void shared_list(Token token, Write write) {
    std::string& text = tokens_[static_cast<std::size_t>(token)];
    if (text.empty()) {
      JsonEmitter once;
      once.begin_list();
      write(once);
      once.end_list();
      text = once.finish();
    }
    out_.raw(text);
  }

  std::string finish() { return std::string(out_.view()); }

 private:
  void begin(char bracket) {
    out_.u8(static_cast<std::uint8_t>(bracket));
    first_.push_back(true);
  }
  void end(char bracket) {
    out_.u8(static_cast<std::uint8_t>(bracket));
    first_.pop_back();
  }
  void key_of(std::string_view text) {
    item();
    out_.raw(text);
    out_.u8(':');
  }
  Token keep(std::string text) {
    tokens_.push_back(std::move(text));
    return static_cast<Token>(tokens_.size() - 1);
  }
  const std::string& text_of(Token token) const { return tokens_[static_cast<std::size_t>(token)]; }

  ByteWriter out_;
  std::vector<std::string> tokens_;
  std::vector<char> first_;
};

/// Protocol 2 with the few opcodes that the public memory viewer supports. Writes texts and shared lists once and then
/// refers to them.
class PickleEmitter {
 public:
  enum class Token : std::uint32_t {};

  PickleEmitter() { out_.raw("\x80\x02"); }

  Token token(std::string_view text) {
    tokens_.push_back({utf8_text(text), unwritten});
    return static_cast<Token>(tokens_.size() - 1);
  }
  Token shared() { return token(""); }

  void begin_dict() { out_.raw("}("); }
  void end_dict() { out_.u8('u'); }
  void begin_list() { begin_list(nullptr); }
  /// Before each item. Batches are short because the viewer passes a batch as arguments of one call.
  void item() {
    std::size_t& items = lists_.back();
    if (items % longest_batch == 0) out_.raw(items == 0 ? "(" : "e(");
    ++items;
  }
  void end_list() {
    if (lists_.back() > 0) out_.u8('e');
    lists_.pop_back();
  }

  void key(Token text) { put(text); }
  void value(Token text) { put(text); }
  void key(std::string_view text) { write(utf8_text(text)); }
  void value(std::string_view text) { write(utf8_text(text)); }

  /// Clamps numbers to 2^63 - 1: viewers reject more than eight bytes.
  void value(std::uint64_t number) {
    number = std::min<std::uint64_t>(number, std::numeric_limits<std::int64_t>::max());
    if (number <= 0xff) {
      out_.u8('K');
      out_.u8(static_cast<std::uint8_t>(number));
    } else if (number <= 0xffff) {
      out_.u8('M');
      out_.u16(static_cast<std::uint16_t>(number));
    } else if (number <= 0x7fffffff) {
      out_.u8('J');
      out_.u32(static_cast<std::uint32_t>(number));
    } else {
      std::uint8_t bytes = 4;  // the highest bit is the sign
      while (number >> (8 * bytes - 1) != 0) ++bytes;
      out_.u8(0x8a);
      out_.u8(bytes);
      char* to = out_.room(8);
      for (unsigned i = 0; i < 8; ++i) to[i] = static_cast<char>(number >> (8 * i));
      out_.wrote(bytes);
    }
  }
  template <typename Key, typename Value>
  void field(const Key& name, const Value& content) {
    key(name);
    value(content);
  }
  void minus_one() { out_.raw(std::string_view("J\xff\xff\xff\xff", 5)); }
  void number(double value) {
    out_.u8('G');
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) out_.u8(static_cast<std::uint8_t>(bits >> shift));
  }
  void boolean(bool value) { out_.u8(value ? 0x88 : 0x89); }
  void pair(std::uint64_t first, std::uint64_t second) {
    value(first);
    value(second);
    out_.u8(0x86);
  }
  template <typename Write>
  void shared_list(Token token, Write write) {
    std::uint32_t& memo = at(token).memo;
    if (memo != unwritten) return get(memo);
    begin_list(&memo);
    write(*this);
    end_list();
  }

  std::string finish() {
    out_.u8('.');
    return std::string(out_.view());
  }

 private:
  static constexpr std::uint32_t unwritten = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::size_t longest_batch = 1000;
  struct Shared {
    std::string text;
    std::uint32_t memo;
  };

  Shared& at(Token token) { return tokens_[static_cast<std::size_t>(token)]; }
  void begin_list(std::uint32_t* memo) {
    out_.u8(']');
    if (memo != nullptr) *memo = remember();
    lists_.push_back(0);
  }
  void write(std::string_view text) {
    out_.u8('X');
    out_.u32(static_cast<std::uint32_t>(text.size()));
    out_.raw(text);
  }
  void put(Token token) {
    Shared& text = at(token);
    if (text.memo != unwritten) return get(text.memo);
    write(text.text);
    text.memo = remember();
  }
  std::uint32_t remember() {
    refer('q', 'r', memo_);
    return memo_++;
  }
  void get(std::uint32_t memo) { refer('h', 'j', memo); }
  void refer(std::uint8_t short_opcode, std::uint8_t long_opcode, std::uint32_t memo) {
    out_.u8(memo < 256 ? short_opcode : long_opcode);
    if (memo < 256)
      out_.u8(static_cast<std::uint8_t>(memo));
    else
      out_.u32(memo);
  }

  ByteWriter out_;
  std::vector<Shared> tokens_;
  std::vector<std::size_t> lists_;  // items so far of each open list
  std::uint32_t memo_ = 0;
};

}  // namespace poolgrad
