#include "allocator/base/printable.h"

#include <gtest/gtest.h>

namespace poolgrad {
namespace {

TEST(VisibleText, KeepsPrintableUtf8) {
  const auto visible = [](const char* text) { return visible_text(text, [](char) { return "?"; }); };
  for (const char* text : {"", "a ~", "\xc2\xa0\xdf\xbf", "\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf",
                           "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(visible(text), text);
  EXPECT_EQ(visible("a\n\x7f\x1b[b"), "a???[b");
  EXPECT_EQ(visible("\x80\xffz\xc3"), "??z?") << "no beginning, and none that goes on";
  EXPECT_EQ(visible("\xc3\x28\xe4\xb8z"), "?(??z");
  EXPECT_EQ(visible("\xc2\x9b"), "??") << "a control character of ISO 6429";
  EXPECT_EQ(visible("\xc1\xbf"), "??") << "too long a form";
  EXPECT_EQ(visible("\xe0\x9f\xbf"), "???");
  EXPECT_EQ(visible("\xf0\x8f\xbf\xbf"), "????");
  EXPECT_EQ(visible("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(visible("\xf4\x90\x80\x80\xf5\x80\x80\x80"), "????????") << "beyond the last character";
}

TEST(VisibleText, ReplacesLineBreaksAndDirectionMarks) {
  for (const char* text : {"\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x80\x8f"})
    EXPECT_EQ(visible_text(text, [](char) { return "?"; }), "???") << printable(text);
  EXPECT_EQ(printable("\xe2\x80\x94"), "\xe2\x80\x94") << "a dash beside them";
}

TEST(Printable, EscapesEachByteThatIsNotPrintable) {
  EXPECT_EQ(printable("a\n[train] done\x1b[2J\t\xff"), "a\\n[train] done\\x1b[2J\\t\\xff");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable(printable("\x1b")), "\\x1b") << "text that was shown before stays";
  EXPECT_EQ(in_quotes("a\rb"), "'a\\x0db'");
  EXPECT_EQ(printable_lines("one\n\ttwo\x1b"), "one\n\ttwo\\x1b");
}

TEST(Printable, CutsALongTextBetweenTwoCharacters) {
  EXPECT_EQ(printable("12345678", 8), "12345678");
  EXPECT_EQ(printable("123456789", 8), "12345678...");
  EXPECT_EQ(printable("123456\xe2\x82\xac", 8), "123456...") << "half a character is none";
  EXPECT_EQ(printable("12345\xe2\x82\xac"
                      "6",
                      8),
            "12345\xe2\x82\xac...");
  EXPECT_EQ(printable(std::string(20, '\x80'), 8), R"(\x80\x80\x80\x80\x80...)");
  EXPECT_LT(printable(std::string(5'000'000, 'x')).size(), 100u);
  EXPECT_EQ(printable_path(std::string(4096, '/')), std::string(4096, '/'));
}

}  // namespace
}  // namespace poolgrad
