#include "tests/docs/markdown.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace poolgrad::docs {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\n") + 1 - first));
}

std::string at(const Page& page, int line) { return page.path + ":" + std::to_string(line) + ": "; }

std::vector<Page> read_pages(const fs::path& root) {
  std::vector<Page> pages;
  for (fs::recursive_directory_iterator entry(root), end; entry != end; ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory() && (name == "build" || name.starts_with("."))) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && entry->path().extension() == ".md") {
      std::ifstream file(entry->path(), std::ios::binary);
      pages.push_back({fs::relative(entry->path(), root).generic_string(),
                       std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>())});
    }
  }
  std::ranges::sort(pages, {}, &Page::path);
  return pages;
}

std::vector<Piece> pieces_of(const Page& page) {
  std::vector<Piece> pieces;
  const std::vector<std::string> lines = lines_of(page.text);
  const auto add = [&](PieceKind kind, std::size_t first, const std::string& line) {
    if (pieces.empty() || pieces.back().kind != kind || kind == PieceKind::fence || kind == PieceKind::comment)
      pieces.push_back({kind, static_cast<int>(first) + 1, "", ""});
    pieces.back().text += line + "\n";
  };
  bool after_empty = true;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line.starts_with("```")) {
      const std::size_t first = i + 1;
      Piece fence{PieceKind::fence, static_cast<int>(first) + 1, trimmed(line.substr(3)), ""};
      for (++i; i < lines.size() && lines[i] != "```"; ++i) fence.text += lines[i] + "\n";
      if (i == lines.size()) throw std::runtime_error(at(page, static_cast<int>(first)) + "a block without an end");
      pieces.push_back(fence);
    } else if (line.starts_with("<!--")) {
      const std::size_t first = i;
      std::string text = line.substr(4);
      while (!text.ends_with("-->")) {
        if (++i == lines.size())
          throw std::runtime_error(at(page, static_cast<int>(first) + 1) + "a comment without an end");
        text += "\n" + lines[i];
      }
      text.resize(text.size() - 3);
      pieces.push_back({PieceKind::comment, static_cast<int>(first) + 1, "", text + "\n"});
    } else {
      const bool goes_on = !pieces.empty() && pieces.back().kind == PieceKind::indented;
      const bool indented = line.starts_with("    ") && (after_empty || goes_on);
      add(indented ? PieceKind::indented : PieceKind::prose, i, line);
    }
    after_empty = line.empty();
  }
  return pieces;
}

namespace {

/// Calls found(line, text) for each text between `open` and `close` in prose, within one paragraph.
template <class F>
void between(const Page& page, std::string_view open, std::string_view close, F&& found) {
  for (const Piece& piece : pieces_of(page)) {
    if (piece.kind != PieceKind::prose) continue;
    const std::string& text = piece.text;
    for (std::size_t begin = text.find(open); begin != std::string::npos;) {
      const std::size_t inside = begin + open.size(), end = text.find(close, inside);
      if (end == std::string::npos) break;
      std::string span = text.substr(inside, end - inside);
      if (span.find("\n\n") == std::string::npos) {
        std::ranges::replace(span, '\n', ' ');
        found(piece.line +
                  static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n')),
              span);
      }
      begin = text.find(open, end + close.size());
    }
  }
}

}  // namespace

std::vector<Place> code_spans(const Page& page) {
  std::vector<Place> spans;
  between(page, "`", "`", [&](int line, const std::string& text) { spans.push_back({line, text}); });
  return spans;
}

std::vector<Place> links(const Page& page) {
  std::vector<Place> targets;
  between(page, "](", ")", [&](int line, const std::string& text) {
    if (text.find(' ') == std::string::npos && text.find('`') == std::string::npos) targets.push_back({line, text});
  });
  return targets;
}

std::vector<std::string> anchors(const Page& page) {
  std::vector<std::string> found, plain;
  for (const Piece& piece : pieces_of(page)) {
    if (piece.kind != PieceKind::prose) continue;
    for (const std::string& line : lines_of(piece.text)) {
      if (!line.starts_with("#")) continue;
      std::string anchor;
      for (const char c : trimmed(std::string_view(line).substr(line.find_first_not_of('#')))) {
        const auto byte = static_cast<unsigned char>(c);
        if (std::isalnum(byte) || c == '-' || c == '_') anchor += static_cast<char>(std::tolower(byte));
        if (c == ' ') anchor += '-';
      }
      const auto again = std::ranges::count(plain, anchor);
      plain.push_back(anchor);
      found.push_back(again > 0 ? anchor + "-" + std::to_string(again) : anchor);
    }
  }
  return found;
}

}  // namespace poolgrad::docs
