// Turns blocks of made-up pages into sources.
#include "tests/docs/snippets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>

namespace poolgrad::docs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;

Snippets of_page(const std::string& text) { return snippets_of({{"docs/a.md", text}}); }

std::string refusal(const std::string& text) {
  try {
    of_page(text);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "taken";
}

std::string words(const std::string& text) {
  std::istringstream in(text);
  std::string joined;
  for (std::string word; in >> word;) joined += word + " ";
  return joined;
}

TEST(PageSnippets, FormOneTestPerPageWithPageLineNumbers) {
  const Snippets snippets = of_page("# A\n\n```cpp\nint x = 1;\n```\nand\n```cpp\nint x = 2;\n```\n");
  EXPECT_THAT(words(snippets.unit), HasSubstr("TEST_F(Snippets, docs_a) { { #line 4 \"docs/a.md\" int x = 1; "
                                              "{ #line 8 \"docs/a.md\" int x = 2; }} } } // namespace docs_a"));
  EXPECT_THAT(snippets.run, ElementsAre("docs/a.md:3", "docs/a.md:7"));
  EXPECT_THAT(snippets.not_run, IsEmpty());
}

TEST(PageSnippets, TakeSetupCodeFromComments) {
  const std::string unit =
      of_page("<!-- cpp int x = 1; -->\n<!-- cpp outside\nint f();\n-->\n```cpp\nf(x);\n```\n").unit;
  EXPECT_THAT(words(unit), HasSubstr("#line 2 \"docs/a.md\" int f(); TEST_F"));
  EXPECT_THAT(words(unit), HasSubstr("{ #line 1 \"docs/a.md\" int x = 1; { #line 6 \"docs/a.md\" f(x);"));
}

TEST(PageSnippets, IncludeAtTheTopOfTheFile) {
  const std::string unit = of_page("```cpp\n#include <cmath>\nstd::sqrt(1.0);\n```\n").unit;
  EXPECT_LT(unit.find("#include <cmath>"), unit.find("TEST_F"));
}

TEST(PageSnippets, MayBeDeclarationsOrProgramsOrRunWithOtherNumbers) {
  const Snippets snippets = of_page(
      "```cpp outside\nint f();\n```\n```cpp ring.cpp\nint main() {}\n```\n"
      "```cmake CMakeLists.txt\nproject(a)\n```\n```cpp, 500 as 2\nf(500);\n```\n");
  EXPECT_LT(snippets.unit.find("int f();"), snippets.unit.find("TEST_F"));
  EXPECT_THAT(snippets.unit, HasSubstr("f(2);"));
  EXPECT_THAT(snippets.files, ElementsAre(Key("CMakeLists.txt"), Key("ring.cpp")));
  EXPECT_EQ(snippets.files.at("ring.cpp"), "#line 5 \"docs/a.md\"\nint main() {}\n");
  EXPECT_THAT(snippets.run, ElementsAre("docs/a.md:1", "docs/a.md:4", "docs/a.md:10"));
}

TEST(PageSnippets, TurnCommentsIntoChecks) {
  const std::string unit = of_page(
                               "```cpp\nstd::cout << x << \"\\n\";  // [1.\n                       // 2.]\nf();\n"
                               "g();  // throws ShapeError: [g] no\n```\n")
                               .unit;
  EXPECT_THAT(unit, HasSubstr("expect_printed(R\"claim([1.  2.])claim\"); f();\n"));
  EXPECT_THAT(unit, HasSubstr("expect_throw<ShapeError>([&] { g(); }, R\"claim([g] no)claim\");"));
}

TEST(PageSnippets, ComeFromTheLastColumnOfATable) {
  const std::string unit = of_page(
                               "<!-- cpp table -->\n\n| a | b |\n|---|---|\n| `no` | `f(1)`, `nn::EMA` and `#include` "
                               "|\n| `no` | `int y;` |\n")
                               .unit;
  EXPECT_THAT(words(unit), HasSubstr("#line 5 \"docs/a.md\" (void)(f(1)); #line 5 \"docs/a.md\" { using "
                                     "poolgrad::nn::EMA; } #line 6 \"docs/a.md\" { int y; }"));
  EXPECT_THAT(unit, testing::Not(HasSubstr("no")));
}

TEST(PageSnippets, TakeATextBlockAsAString) {
  const std::string unit = of_page("<!-- cpp text said -->\n```\none\n two\n```\n```\nthree\n```\n").unit;
  EXPECT_THAT(unit, HasSubstr("const std::string said = R\"claim(one\n two)claim\";"));
  EXPECT_THAT(unit, testing::Not(HasSubstr("three")));
}

TEST(PageSnippets, NotRunGiveAReason) {
  const Snippets snippets = of_page("```cpp not run: a sketch\n...\n```\n");
  EXPECT_THAT(snippets.not_run, ElementsAre("docs/a.md:1: a sketch"));
  EXPECT_THAT(snippets.unit, testing::Not(HasSubstr("...")));
}

TEST(PageSnippets, RefusalsNamePageAndLine) {
  EXPECT_EQ(refusal("\n```c++\n```\n"), "docs/a.md:2: what is ```c++?");
  EXPECT_EQ(refusal("```cpp, 500 is 2\n```\n"), "docs/a.md:1: what is ```cpp, 500 is 2?");
  EXPECT_EQ(refusal("```cpp, 5 as 2\n55\n```\n"), "docs/a.md:1: 5 does not occur once");
  EXPECT_EQ(refusal("```cpp\nint x;\n"), "docs/a.md:1: a block without an end");
  EXPECT_EQ(refusal("<!-- cpp\nint x;\n"), "docs/a.md:1: a comment without an end");
  EXPECT_EQ(refusal("<!-- cpp table -->\nNo table.\n"), "docs/a.md:2: here is no table");
  EXPECT_EQ(refusal("```cpp a.cpp\n```\n```cpp a.cpp\n```\n"), "docs/a.md:3: a second a.cpp");
}

TEST(PageText, HasSpansLinksAndAnchors) {
  const Page page{
      "a.md",
      "# The `pool`, 2nd!\n\nSee [a](b.md#c) and `x\ny`.\n\n    `indented`\n\n```\n`fence`\n```\n# The pool 2nd\n"};
  const auto texts = [](const std::vector<Place>& places) {
    std::vector<std::string> all;
    for (const Place& place : places) all.push_back(std::to_string(place.line) + " " + place.text);
    return all;
  };
  EXPECT_THAT(texts(code_spans(page)), ElementsAre("1 pool", "3 x y"));
  EXPECT_THAT(texts(links(page)), ElementsAre("3 b.md#c"));
  EXPECT_THAT(anchors(page), ElementsAre("the-pool-2nd", "the-pool-2nd-1"));
}

}  // namespace
}  // namespace poolgrad::docs
