#include "allocator/trace/internal/json_emitter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace poolgrad {

std::string json_text(std::string_view text) {
  const auto plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), plain)) return '"' + std::string(text) + '"';
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string utf8_text(std::string_view text) { return nlohmann::json::parse(json_text(text)).get<std::string>(); }

}  // namespace poolgrad
