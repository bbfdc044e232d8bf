// The C++ of the pages as source files. What stands behind ```cpp says what a block is:
//
//   cpp               a fragment. Those of a page run in order in one test, in a folder of their own; each sees what
//   the
//                     ones before it have made, and may give a name anew
//   cpp outside       declarations, before the test
//   cpp FILE.cpp      a whole program, its own file; likewise `cmake FILE.txt`
//   cpp, 500 as 2     a fragment that is run with 2 where readers see 500; what is replaced occurs once
//   cpp not run: WHY  what no compiler takes
//
// Comments that readers do not see say what a fragment takes as given: <!-- cpp ... --> is code in place, <!-- cpp
// outside
// ... --> code before the test. <!-- cpp table --> stands before a table whose last column is C++ in `spans`: what ends
// with a semicolon or is an EXPECT_... is a statement, a name must exist, all else is an expression; what is a part of
// something ("struct F", "#include", ".peak", with "...") is left alone. <!-- cpp text NAME --> stands before a block
// of text, which is then the string NAME.
//
// What a line says of itself is checked: `std::cout << x << "\n";  // [1. 2.]` prints that (the comment may go on in
// lines of its own; spaces do not count), `f(x);  // throws ShapeError: [matmul] inner` throws an error whose text
// begins so.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/docs/markdown.h"

namespace poolgrad::docs {

struct Snippets {
  std::string unit;                          // the fragments of all pages: a source of tests
  std::map<std::string, std::string> files;  // programs by name
  std::vector<std::string> run;              // "docs/nn.md:24", of every block in `unit` and `files`
  std::vector<std::string> not_run;          // "docs/nn.md:24: WHY"
};

/// Throws std::runtime_error, "docs/nn.md:24: reason", for what is none of the above.
Snippets snippets_of(const std::vector<Page>& pages);

}  // namespace poolgrad::docs
