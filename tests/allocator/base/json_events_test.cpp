#include "allocator/base/json_events.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace poolgrad {
namespace {

using namespace std::string_literals;

/// Writes the events of a text in short form; "!7" says that character 7 is not JSON.
class Told : public JsonEvents {
 public:
  static std::string of(std::string_view text) {
    Told told;
    const auto fault = parse_json(text, told);
    return fault ? "!" + std::to_string(*fault) : told.events_;
  }

  void start_object() override { events_ += '{'; }
  void key(const std::string& name) override { events_ += name + ':'; }
  void end_object() override { events_ += '}'; }
  void start_array() override { events_ += '['; }
  void end_array() override { events_ += ']'; }
  void string(const std::string& text) override { events_ += "'" + text + "'"; }
  void number_unsigned(std::uint64_t value) override { events_ += "u" + std::to_string(value); }
  void number_negative(std::int64_t value) override { events_ += "n" + std::to_string(value); }
  void number_float(double value) override { events_ += value == 1.5 ? "f1.5" : "f"; }
  void boolean(bool value) override { events_ += value ? "yes" : "no"; }
  void null() override { events_ += "none"; }

 private:
  std::string events_;
};

TEST(JsonEvents, ComeInTheOrderOfTheText) {
  EXPECT_EQ(Told::of(" {\"a\": [1, -2, 1.5], \"b\": {\"\": null}, \"c\": [true, false, \"\\u0041\"]}\n "),
            "{a:[u1n-2f1.5]b:{:none}c:[yesno'A']}");
  EXPECT_EQ(Told::of("18446744073709551615"), "u18446744073709551615");
  EXPECT_EQ(Told::of("18446744073709551616"), "f");
  EXPECT_EQ(Told::of("[1e999999]").front(), '!') << "beyond every double";
}

TEST(JsonEvents, EndWhereTheTextEnds) {
  EXPECT_EQ(Told::of("{}  \r\n\t"), "{}");
  EXPECT_EQ(Told::of("{}\0"s), "!3");
  EXPECT_EQ(Told::of("{}\0{\"b\": 1}"s), "!3") << "a second value behind a NUL byte";
  EXPECT_EQ(Told::of("{\"a\0\": 1}"s), "!4");
  EXPECT_EQ(Told::of("\0{}"s), "!1");
  EXPECT_EQ(Told::of("{\"a\\u0000\": 1}"), "{a\0:u1}"s) << "written as JSON writes it";
  EXPECT_EQ(Told::of("{} {}"), "!4");
  EXPECT_EQ(Told::of("{},"), "!3");
  EXPECT_EQ(Told::of(""), "!1");
  EXPECT_EQ(Told::of("[1"), "!3");
}

TEST(JsonEvents, UseNoStackForDepthAndPassOnTheReadersErrors) {
  EXPECT_EQ(Told::of(std::string(1'000'000, '[')), "!1000001");
  struct Refusing : Told {
    void null() override { throw std::runtime_error("no null here"); }
  } refusing;
  EXPECT_THROW(parse_json("[null, nonsense]", refusing), std::runtime_error);
}

}  // namespace
}  // namespace poolgrad
