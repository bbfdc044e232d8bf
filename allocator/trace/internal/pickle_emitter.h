// Writes plain data (dictionaries, lists, texts, numbers) as a pickle of protocol 2 with the few opcodes that the
// public memory viewer knows. Texts, and lists that are said to be shared, are written once and then referred to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/trace/internal/byte_writer.h"
#include "allocator/trace/internal/json_emitter.h"

namespace poolgrad {

class PickleEmitter {
 public:
  /// A text, or a shared list, that can be written many times.
  using Token = std::uint32_t;

  PickleEmitter() { out_.raw("\x80\x02"); }

  Token token(std::string_view text) {
    tokens_.push_back({utf8_text(text), unwritten});
    return static_cast<Token>(tokens_.size() - 1);
  }
  Token shared() { return token(""); }

  void begin_dict() { out_.raw("}("); }
  void end_dict() { out_.u8('u'); }
  void begin_list() { begin_list(nullptr); }
  /// Before each item. The viewer spreads a batch over the arguments of a call, so batches are short.
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

  /// Numbers above 2^63 - 1 become that: more than eight bytes are refused by viewers.
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
  void minus_one() { out_.raw(std::string_view("J\xff\xff\xff\xff", 5)); }
  void number(double value);
  void boolean(bool value) { out_.u8(value ? 0x88 : 0x89); }
  void pair(std::uint64_t first, std::uint64_t second) {
    value(first);
    value(second);
    out_.u8(0x86);
  }
  /// A list that is written by `write(emitter)` between begin_list() and end_list() the first time.
  template <typename Write>
  void shared_list(Token token, Write write) {
    if (tokens_[token].memo != unwritten) return get(tokens_[token].memo);
    begin_list(&tokens_[token].memo);
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
    Shared& text = tokens_[token];
    if (text.memo != unwritten) return get(text.memo);
    write(text.text);
    text.memo = remember();
  }
  std::uint32_t remember() {
    if (memo_ < 256) {
      out_.u8('q');
      out_.u8(static_cast<std::uint8_t>(memo_));
    } else {
      out_.u8('r');
      out_.u32(memo_);
    }
    return memo_++;
  }
  void get(std::uint32_t memo) {
    if (memo < 256) {
      out_.u8('h');
      out_.u8(static_cast<std::uint8_t>(memo));
    } else {
      out_.u8('j');
      out_.u32(memo);
    }
  }

  ByteWriter out_;
  std::vector<Shared> tokens_;
  std::vector<std::size_t> lists_;  // items so far of each open list
  std::uint32_t memo_ = 0;
};

inline void PickleEmitter::number(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  out_.u8('G');
  for (int shift = 56; shift >= 0; shift -= 8) out_.u8(static_cast<std::uint8_t>(bits >> shift));
}

}  // namespace poolgrad
