#include "tests/docs/snippets.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace poolgrad::docs {
namespace {

bool is_name(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == ':'; });
}

/// Returns the line's claim: "// throws ShapeError: text" gives "throws ShapeError: text"; without a claim, "".
std::string claim_of(const std::string& line, std::string_view statement) {
  const std::size_t comment = line.find(";  // ");
  if (comment == std::string::npos || !trimmed(line).starts_with(statement)) return "";
  return line.substr(comment + 6);
}

std::string raw_string(const std::string& text) { return "R\"claim(" + text + ")claim\""; }

class PageWriter {
 public:
  PageWriter(const Page& page, Snippets& snippets) : page_(page), snippets_(snippets) {
    for (const char c : page.path.substr(0, page.path.size() - 3))
      name_ += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }

  void write() {
    bool table = false;
    for (const Piece& piece : pieces_of(page_)) {
      if (piece.kind == PieceKind::comment) {
        table = comment(piece);
      } else if (piece.kind == PieceKind::fence) {
        fence(piece);
      } else if (table && piece.kind == PieceKind::prose) {
        rows(piece);
        table = false;
      }
    }
    if (outside_.empty() && inside_.empty()) return;
    snippets_.unit += includes_ + "\nnamespace " + name_ + " {\nusing namespace poolgrad;\n" + outside_;
    if (!inside_.empty())
      snippets_.unit += "TEST_F(Snippets, " + name_ + ") {\n" + inside_ + std::string(open_, '}') + "\n}\n";
    snippets_.unit += "}  // namespace " + name_ + "\n";
  }

 private:
  [[noreturn]] void fail(int line, const std::string& reason) const {
    throw std::runtime_error(at(page_, line) + reason);
  }

  std::string line_directive(int line) const { return "#line " + std::to_string(line) + " \"" + page_.path + "\"\n"; }

  /// Returns the code with its #include lines moved to the top of the file.
  std::string hoisted(const std::string& code, int line) {
    std::string rest;
    for (const std::string& text : lines_of(code)) {
      const bool includes = trimmed(text).starts_with("#include");
      if (includes) includes_ += line_directive(line) + text + "\n";
      rest += (includes ? "" : text) + "\n";
      ++line;
    }
    return rest;
  }

  /// Returns whether a table of C++ follows.
  bool comment(const Piece& piece) {
    const std::string text = trimmed(piece.text);
    if (text == "cpp table") return true;
    if (text.starts_with("cpp text ")) {
      text_ = text.substr(9);
      return false;
    }
    if (!text.starts_with("cpp")) return false;
    const bool outside = text.starts_with("cpp outside");
    const std::size_t begin = piece.text.find("cpp") + (outside ? 11 : 3);
    const std::string code = line_directive(piece.line) + hoisted(piece.text.substr(begin), piece.line);
    outside ? void(outside_ += code) : add_inside(code);
    return false;
  }

  /// Adds the code in a new scope inside that of the earlier code, so that it may reuse names.
  void add_inside(const std::string& code) {
    inside_ += "{\n" + code;
    ++open_;
  }

  void fence(const Piece& piece) {
    const std::string& info = piece.info;
    const std::string here = page_.path + ":" + std::to_string(piece.line - 1);
    if (info.empty() && !text_.empty()) {
      add_inside("const std::string " + text_ + " = " + raw_string(trimmed(piece.text)) + ";\n");
      text_.clear();
    } else if (info.starts_with("cpp not run:")) {
      snippets_.not_run.push_back(here + ":" + info.substr(12));
    } else if (info == "cpp outside") {
      outside_ += line_directive(piece.line) + hoisted(piece.text, piece.line);
      snippets_.run.push_back(here);
    } else if (info == "cpp" || info.starts_with("cpp, ")) {
      add_inside(line_directive(piece.line) +
                 checked(hoisted(replaced(piece, info.size() > 5 ? info.substr(5) : ""), piece.line)));
      snippets_.run.push_back(here);
    } else if (info.starts_with("cpp ") || info.starts_with("cmake ")) {
      const std::string file = info.substr(info.find(' ') + 1);
      if (!file.ends_with(".cpp") && !file.ends_with(".txt")) fail(piece.line - 1, "what is ```" + info + "?");
      const bool fresh =
          snippets_.files.emplace(file, (info.starts_with("cpp") ? line_directive(piece.line) : "") + piece.text)
              .second;
      if (!fresh) fail(piece.line - 1, "a second " + file);
      if (info.starts_with("cpp")) snippets_.run.push_back(here);
    } else if (!info.empty()) {
      fail(piece.line - 1, "what is ```" + info + "?");
    }
  }

  std::string replaced(const Piece& piece, const std::string& change) const {
    std::string code = piece.text;
    if (change.empty()) return code;
    const std::size_t as = change.find(" as ");
    if (as == std::string::npos) fail(piece.line - 1, "what is ```" + piece.info + "?");
    const std::string from = change.substr(0, as);
    const std::size_t place = code.find(from);
    if (place == std::string::npos || code.find(from, place + 1) != std::string::npos)
      fail(piece.line - 1, from + " does not occur once");
    return code.replace(place, from.size(), change.substr(as + 4));
  }

  /// Returns the code with checks of its comments' claims.
  static std::string checked(const std::string& code) {
    std::string out;
    const std::vector<std::string> lines = lines_of(code);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      std::string line = lines[i];
      if (std::string throws = claim_of(line, ""); throws.starts_with("throws ")) {
        const std::size_t colon = std::min(throws.find(": "), throws.size());
        const std::string type = throws.substr(7, colon - 7),
                          text = colon < throws.size() ? throws.substr(colon + 2) : "";
        line = "expect_throw<" + type + ">([&] { " + line.substr(0, line.find(";  // ")) + "; }, " + raw_string(text) +
               ");";
      } else if (std::string printed = claim_of(line, "std::cout << "); !printed.empty()) {
        std::size_t more = i + 1;
        for (; more < lines.size() && trimmed(lines[more]).starts_with("//"); ++more)
          printed += " " + trimmed(lines[more]).substr(2);
        line = "prints_from_here(); " + line + "\n" + std::string(more - i - 1, '\n') + "expect_printed(" +
               raw_string(printed) + ");";
        // The check follows the claim on the same line and takes the place of the line's end.
        out += line + " ";
        i = more - 1;
        continue;
      }
      out += line + "\n";
    }
    return out + "\n";
  }

  void rows(const Piece& piece) {
    int line = piece.line;
    bool begun = false;
    for (const std::string& row : lines_of(piece.text)) {
      const std::string cells = trimmed(row);
      if (cells.starts_with("|")) {
        begun = true;
        const std::size_t last = cells.rfind('|', cells.size() - 2);
        spans(cells.substr(last), line);
      } else if (begun) {
        break;
      }
      ++line;
    }
    if (!begun) fail(piece.line, "here is no table");
  }

  void spans(const std::string& cell, int line) {
    for (std::size_t open = cell.find('`'); open != std::string::npos;) {
      const std::size_t close = cell.find('`', open + 1);
      if (close == std::string::npos) fail(line, "a ` without another");
      const std::string code = cell.substr(open + 1, close - open - 1);
      open = cell.find('`', close + 1);
      const bool part = code.starts_with("#") || code.starts_with(".") || code.find("...") != std::string::npos ||
                        (code.starts_with("struct ") && !code.ends_with(";"));
      if (part) continue;
      inside_ += line_directive(line);
      if (code.ends_with(";")) {
        inside_ += "{ " + code + " }\n";
      } else if (code.starts_with("EXPECT_")) {
        inside_ += code + ";\n";
      } else if (is_name(code)) {
        inside_ += "{ using poolgrad::" + code + "; }\n";
      } else {
        inside_ += "(void)(" + code + ");\n";
      }
    }
  }

  const Page& page_;
  Snippets& snippets_;
  std::string name_, includes_, outside_, inside_;
  std::size_t open_ = 0;  // braces
  std::string text_;      // the name of the next block
};

}  // namespace

Snippets snippets_of(const std::vector<Page>& pages) {
  Snippets snippets;
  for (const Page& page : pages) PageWriter(page, snippets).write();
  snippets.unit =
      "// The C++ of the pages; see tests/docs/snippets.h.\n#include \"tests/docs/snippet.h\"\n" + snippets.unit;
  return snippets;
}

}  // namespace poolgrad::docs
