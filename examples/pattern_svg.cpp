#include "examples/pattern_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "attention/ring/ring.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

namespace {

using attention::Pattern;

constexpr int panel = 176, gap = 18, margin = 24, title_height = 30, label_height = 18, least_width = 440;
/// For multiplicities 1, 2, 3 and more; light to dark.
constexpr const char* colours[] = {"#7fb3d9", "#2f6fb0", "#0b2f5c"};

constexpr std::int64_t shades = std::size(colours);
const char* const labels[] = {"all pairs", "& causal"};

std::string text_at(int x, int y, const char* size, const char* colour, const std::string& text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\">{}</text>\n", x, y, size, colour,
                     escaped(text));
}

/// One matrix at (x, y). Draws darker shades over lighter ones.
std::string matrix(const Pattern& pattern, std::int64_t head, std::int64_t heads, std::int64_t length, int x, int y,
                   std::int64_t& darkest) {
  std::string svg =
      fmt::format("<g transform=\"translate({} {}) scale({:.6g})\">\n<path fill=\"#f3f5f7\" d=\"M0 0h{}v{}h-{}z\"/>\n",
                  x, y, static_cast<double>(panel) / static_cast<double>(length), length, length, length);
  for (std::int64_t shade = 1; shade <= shades; ++shade) {
    std::string areas, lines;  // runs of one row are strokes, which take half the bytes
    for (const PatternRectangle& r : pattern_rectangles(pattern, head, heads, length, shade))
      if (r.height == 1)
        lines += fmt::format("M{} {}h{}", r.x, r.y, r.width);
      else
        areas += fmt::format("M{} {}h{}v{}h-{}z", r.x, r.y, r.width, r.height, r.width);
    if (areas.empty() && lines.empty()) break;
    darkest = std::max(darkest, shade);
    svg +=
        fmt::format("<path fill=\"{0}\" d=\"{1}\"/>\n<path stroke=\"{0}\" transform=\"translate(0 .5)\" d=\"{2}\"/>\n",
                    colours[shade - 1], areas, lines);
  }
  return svg + "</g>\n" +
         fmt::format("<path fill=\"none\" stroke=\"#8a939c\" d=\"M{}.5 {}.5h{}v{}h-{}z\"/>\n", x - 1, y - 1, panel + 1,
                     panel + 1, panel + 1);
}

/// A standalone file: a title above a white picture.
std::string document(int width, int height, const std::string& title, const std::string& body) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
             "font-family=\"sans-serif\" shape-rendering=\"crispEdges\">\n<title>{2}</title>\n"
             "<path fill=\"#ffffff\" d=\"M0 0h{0}v{1}h-{0}z\"/>\n",
             width, height, escaped(title)) +
         text_at(margin, 22, "13", "#1d2730", title) + body + "</svg>\n";
}

std::string legend(std::int64_t darkest, int x, int y) {
  static constexpr const char* words[] = {"once", "twice", "three times or more"};
  std::string svg;
  for (std::int64_t m = 0; darkest > 1 && m < darkest; ++m, x += 56) {
    svg += fmt::format("<path fill=\"{}\" d=\"M{} {}h10v10h-10z\"/>\n", colours[m], x, y - 9);
    svg += text_at(x + 14, y, "11", "#4a5560", words[m]);
  }
  return svg;
}

}  // namespace

std::vector<PatternRectangle> pattern_rectangles(const Pattern& pattern, std::int64_t head, std::int64_t heads,
                                                 std::int64_t length, std::int64_t least) {
  using Run = std::pair<std::int64_t, std::int64_t>;  // x, width
  std::vector<PatternRectangle> done;
  std::map<Run, std::int64_t> open;  // with its first row
  for (std::int64_t i = 0; i <= length; ++i) {
    std::map<Run, std::int64_t> row;
    const auto seen = [&](std::int64_t j) { return pattern.multiplicity(head, heads, i, j) >= least; };
    for (std::int64_t j = 0; i < length && j < length; ++j) {
      const std::int64_t first = j;
      while (j < length && seen(j)) ++j;
      if (j > first) row.emplace(Run{first, j - first}, i);
    }
    for (const auto& [run, began] : open) {
      if (const auto again = row.find(run); again != row.end())
        again->second = began;
      else
        done.push_back({run.first, began, run.second, i - began});
    }
    open = std::move(row);
  }
  return done;
}

std::string pattern_svg(const PatternPicture& picture) {
  const Pattern causal = picture.pattern & Pattern::causal();
  const int heads = static_cast<int>(picture.heads);
  const int columns = std::max(heads, 2), rows = heads == 1 ? 1 : 2;
  const int width = std::max(least_width, 2 * margin + columns * panel + (columns - 1) * gap);
  const int height = title_height + label_height + rows * (panel + gap) + 22;
  std::string body;
  std::int64_t darkest = 0;
  for (int n = 0; n < 2 * heads; ++n) {  // the pattern of all heads, then the same & causal
    const int head = n % heads, column = heads == 1 ? n : head, row = heads == 1 ? 0 : n / heads;
    const int x = margin + column * (panel + gap), y = title_height + label_height + row * (panel + gap);
    if (row == 0) body += text_at(x, y - 6, "11", "#4a5560", heads > 1 ? fmt::format("head {}", head) : labels[n]);
    if (heads > 1 && head == 0)
      body +=
          fmt::format("<text transform=\"translate({} {}) rotate(-90)\" font-size=\"11\" fill=\"#4a5560\">{}</text>\n",
                      x - 8, y + panel, escaped(labels[row]));
    body += matrix(n < heads ? picture.pattern : causal, head, heads, picture.length, x, y, darkest);
  }
  const std::string note = fmt::format("{} queries down, {} keys to the right", picture.length, picture.length);
  return document(
      width, height, picture.title,
      body + text_at(margin, height - 12, "11", "#4a5560", note) + legend(darkest, margin + 240, height - 12));
}

std::vector<PatternPicture> pattern_pictures() {
  const auto window = Pattern::window(5, 5);
  const std::vector<std::int64_t> segments{8, 16, 32}, rates{1, 2, 4};
  std::vector<bool> listed(64);
  for (const std::size_t block : {0u, 3u, 9u, 8u, 18u, 20u, 27u, 25u, 36u, 32u, 45u, 42u, 54u, 49u, 63u, 56u, 60u})
    listed[block] = true;
  return {
      {"dense", "dense(): every pair, or the past", Pattern::dense()},
      {"window", "window(5, 5): neighbors", window},
      {"documents", "documents({0, 9, 23, 32}): texts packed one after another", Pattern::documents({0, 9, 23, 32})},
      {"sink_tokens", "window(5, 5) | sink_tokens(3)", window | Pattern::sink_tokens(3)},
      {"global_tokens", "window(5, 5) | global_tokens(3)", window | Pattern::global_tokens(3)},
      {"dilated", "dilated({8, 16, 32}, {1, 2, 4}): every head runs every branch, at its own phase",
       Pattern::dilated(segments, rates), 32, 4},
      {"dilated_grouped", "dilated({8, 16, 32}, {1, 2, 4}), grouped: a branch for each group of heads",
       Pattern::dilated(segments, rates, {.mode = attention::DilatedMode::grouped}), 32, 3},
      {"block_offsets", "block_offsets(16, {{0, -1, 1}, {0, -3, 3}}): head by head",
       Pattern::block_offsets(16, std::vector<std::vector<std::int64_t>>{{0, -1, 1}, {0, -3, 3}}), 128, 2},
      {"dilated_sparse", "dilated_sparse(16, {1, 2, 4})", Pattern::dilated_sparse(16, {1, 2, 4}), 128},
      {"local_window", "local_window(16, 64)", Pattern::local_window(16, 64), 128},
      {"global_local", "global_local(16, 64, 16)", Pattern::global_local(16, 64, 16), 128},
      {"strided", "strided(6): the last six, and every sixth before", Pattern::strided(6), 36},
      {"axial", "axial(6): row and column of a grid", Pattern::axial(6), 36},
      {"random_blocks", "random_blocks(16, 0.25): by a hash, the diagonal always", Pattern::random_blocks(16, 0.25),
       128, 4},
      {"blocks", "block_bitmap(16, 8, ...): listed blocks", Pattern::block_bitmap(16, 8, listed), 128},
  };
}

// Layouts of a ring.

namespace {

using attention::Layout;

constexpr int ranks = 4, length = 16, cell = 11, panel_gap = 34, stripe = 10, top = 64;
constexpr std::array<const char*, ranks> rank_colours{"#2f6fb0", "#d9822b", "#3a9b6a", "#8e5aa8"};

std::vector<int> owners(Layout layout) {
  std::vector<int> owner(length);
  for (int rank = 0; rank < ranks; ++rank) {
    const kernels::PositionMap map = shard_map(layout, length, rank, ranks);
    for (std::int64_t row = 0; row < map.count; ++row) owner[static_cast<std::size_t>(map.position(row))] = rank;
  }
  return owner;
}

std::string square(int x, int y, int width, int height, const char* colour, double opacity) {
  return fmt::format("<path fill=\"{}\" fill-opacity=\"{:.2g}\" d=\"M{} {}h{}v{}h-{}z\"/>\n", colour, opacity, x, y,
                     width, height, width);
}

/// The pairs of a causal ring, in the color of the rank that computes them, lighter with each step.
std::string layout_panel(Layout layout, int x) {
  const std::vector<int> owner = owners(layout);
  int work[ranks][ranks] = {};  // pairs by rank and step
  std::string svg = text_at(x, top - stripe - 8, "12", "#1d2730", to_string(layout));
  for (int i = 0; i < length; ++i) {
    const auto rank = static_cast<std::size_t>(owner[static_cast<std::size_t>(i)]);
    svg += square(x - stripe - 3, top + i * cell, stripe, cell, rank_colours[rank], 1);
    svg += square(x + i * cell, top - stripe - 3, cell, stripe, rank_colours[rank], 1);
    for (int j = 0; j <= i; ++j) {
      const int step = (static_cast<int>(rank) - owner[static_cast<std::size_t>(j)] + ranks) % ranks;
      svg += square(x + j * cell, top + i * cell, cell - 1, cell - 1, rank_colours[rank], 1 - 0.24 * step);
      ++work[rank][step];
    }
  }
  int y = top + length * cell + 18;
  svg += text_at(x, y, "10", "#4a5560", "pairs in steps 0, 1, 2, 3");
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    y += 15;
    svg += square(x, y - 8, stripe, stripe - 1, rank_colours[rank], 1);
    svg += text_at(
        x + 16, y, "10", "#4a5560",
        fmt::format("rank {}: {}, {}, {}, {}", rank, work[rank][0], work[rank][1], work[rank][2], work[rank][3]));
  }
  return svg;
}

}  // namespace

std::string layouts_svg() {
  constexpr int width = 2 * margin + 3 * (length * cell + stripe) + 2 * panel_gap;
  constexpr int height = top + length * cell + 18 + ranks * 15 + 16;
  constexpr const char* title = "16 positions of 4 ranks: who has which, and computes which pairs of a causal ring";
  std::string body;
  int x = margin + stripe;
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    body += layout_panel(layout, x);
    x += length * cell + stripe + panel_gap;
  }
  return document(width, height, title, body);
}

}  // namespace poolgrad::examples
