// Parses the pages of the tree for tests: blocks of code, hidden comments, spans of code, headings, links.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::docs {

struct Page {
  std::string path;  // from the root: "docs/reference/nn.md"
  std::string text;
};

/// Returns every .md file under the root, without build and hidden folders, sorted by path.
std::vector<Page> read_pages(const std::filesystem::path& root);

enum class PieceKind {
  prose,
  fence,     // between two lines of ```
  indented,  // four spaces or more, after an empty line
  comment    // <!-- ... -->, which no reader sees
};

/// Consecutive lines of one kind.
struct Piece {
  PieceKind kind = PieceKind::prose;
  int line = 0;      // of the first line of `text`
  std::string info;  // of a fence: the text after its first ```
  std::string text;  // lines, each with its end
};

/// Returns the pieces in order; together they are the page. Throws std::runtime_error for a fence or a comment without
/// an end.
std::vector<Piece> pieces_of(const Page& page);

/// A piece of text and the line on which it begins.
struct Place {
  int line = 0;
  std::string text;
};

/// Returns each `code` in prose; a line's end within it becomes a space.
std::vector<Place> code_spans(const Page& page);
/// Returns the targets of [text](target) and ![text](target) in prose.
std::vector<Place> links(const Page& page);
/// Returns the possible #... of links: the headings as GitHub spells them there.
std::vector<std::string> anchors(const Page& page);

/// Returns "docs/reference/nn.md:24: ", the beginning of every error message.
std::string at(const Page& page, int line);

std::vector<std::string> lines_of(std::string_view text);
std::string trimmed(std::string_view text);

}  // namespace poolgrad::docs
