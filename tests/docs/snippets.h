// The C++ of the pages as source files. The words after ```cpp give the kind of a block:
//
//   cpp               a fragment. The fragments of a page run in order in one test, in their own folder. Each sees the
//                     names of earlier ones and may redefine them
//   cpp outside       declarations, before the test
//   cpp FILE.cpp      a whole program, its own file; likewise `cmake FILE.txt`
//   cpp, 500 as 2     a fragment that is run with 2 where readers see 500; the replaced text must occur once
//   cpp not run: WHY  a block that does not compile
//
// Hidden comments contain the code that a fragment needs: <!-- cpp ... --> is code in place, and
// <!-- cpp outside ... --> code before the test. <!-- cpp table --> precedes a table whose last column is C++ in
// `spans`: a span that ends with a semicolon or is an EXPECT_... is a statement, a name must exist, and any other span
// is an expression. Incomplete code ("struct F", "#include", ".peak", with "...") is skipped. <!-- cpp text NAME -->
// precedes a block of text, which becomes the string NAME.
//
// The claim in a line's comment is checked: `std::cout << x << "\n";  // [1. 2.]` must print that (the comment may
// continue on lines of its own; spaces are ignored), and `f(x);  // throws ShapeError: [matmul] inner` must throw an
// error whose text begins so.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/docs/markdown.h"

namespace poolgrad::docs {

struct Snippets {
  std::string unit;                          // the fragments of all pages: a source of tests
  std::map<std::string, std::string> files;  // programs by name
  std::vector<std::string> run;              // "docs/reference/nn.md:24", of every block in `unit` and `files`
  std::vector<std::string> not_run;          // "docs/reference/nn.md:24: WHY"
};

/// Throws std::runtime_error, "docs/reference/nn.md:24: reason", for a block of none of these kinds.
Snippets snippets_of(const std::vector<Page>& pages);

}  // namespace poolgrad::docs
