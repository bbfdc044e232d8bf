#include "allocator/base/json_events.h"

#include <nlohmann/json.hpp>

namespace poolgrad {

namespace {

class Adapter : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Adapter(JsonEvents& events) : events_(events) {}

  std::optional<std::size_t> fault;

  bool start_object(std::size_t) override { return events_.start_object(), true; }
  bool key(string_t& name) override { return events_.key(name), true; }
  bool end_object() override { return events_.end_object(), true; }
  bool start_array(std::size_t) override { return events_.start_array(), true; }
  bool end_array() override { return events_.end_array(), true; }
  bool string(string_t& text) override { return events_.string(text), true; }
  bool number_unsigned(number_unsigned_t value) override { return events_.number_unsigned(value), true; }
  bool number_integer(number_integer_t value) override { return events_.number_negative(value), true; }
  bool number_float(number_float_t value, const string_t&) override { return events_.number_float(value), true; }
  bool boolean(bool value) override { return events_.boolean(value), true; }
  bool null() override { return events_.null(), true; }
  bool binary(binary_t&) override { return false; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fault = position;
    return false;
  }

 private:
  JsonEvents& events_;
};

}  // namespace

std::optional<std::size_t> parse_json(std::string_view text, JsonEvents& events) {
  // The library ends its input at a NUL byte. JSON contains none, not even in strings.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) return nul + 1;
  Adapter adapter(events);
  nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
  return adapter.fault;
}

}  // namespace poolgrad
