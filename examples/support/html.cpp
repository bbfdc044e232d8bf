#include "examples/support/html.h"

#include <fmt/format.h>

#include <cstdint>

#include "examples/support/console.h"
#include "examples/support/svg.h"

namespace poolgrad::examples {

namespace {

constexpr std::string_view colours_of_pages = R"(
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --text: #222; --quiet: #666; --page: #fdfdfc; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --quiet: #999; --page: #161618; } }
)";

constexpr std::string_view page_style = R"(
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
       max-width: 72rem; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { max-width: 60rem; margin: .3rem 0 .8rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .left { text-align: left; } tr:hover td { background: var(--soft); }
td small { display: block; white-space: normal; color: var(--quiet); }
@media (max-width: 40rem) { th { white-space: normal; } th, td { padding: .25rem .3rem; font-size: .8rem; }
                            td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 6.5rem; } }
svg { width: 100%; height: auto; }
.charts { display: grid; gap: .6rem 1.6rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.charts h2 { margin-top: 1.4rem; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .5em; border-radius: 2px; }
)";

}  // namespace

std::string_view page_colours() { return colours_of_pages; }

std::string html_page(const std::string& title, std::string_view style, const std::string& body, int reload) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\n"
      "<meta name=\"viewport\" "
      "content=\"width=device-width\">{}<style>{}{}{}{}</style></head><body>\n{}</body></html>\n",
      escaped(title), reload > 0 ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">", reload) : "",
      colours_of_pages, page_style, svg_style(), style, body);
}

std::string html_row(const std::vector<std::string>& cells, const char* cell, const std::vector<bool>& left) {
  std::string html = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i)
    html +=
        fmt::format("<{0}{1}>{2}</{0}>", cell, i > 0 && i < left.size() && left[i] ? " class=\"left\"" : "", cells[i]);
  return html + "</tr>\n";
}

std::string html_table(const std::vector<std::string>& head, const std::string& rows, const std::vector<bool>& left) {
  return "<div class=\"wide\"><table><thead>" + html_row(head, "th", left) + "</thead><tbody>\n" + rows +
         "</tbody></table></div>\n";
}

std::string html_table(const Table& table) {
  const auto all_escaped = [](std::vector<std::string> cells) {
    for (std::string& cell : cells) cell = escaped(cell);
    return cells;
  };
  std::string rows;
  for (const std::vector<std::string>& row : table.rows())
    if (!row.empty()) rows += html_row(all_escaped(row), "td", table.left());
  return html_table(all_escaped(table.headers()), rows, table.left());
}

std::string base64(std::string_view bytes) {
  static constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      group = (group << 8) | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    for (std::size_t digit = 0; digit < 4; ++digit)
      text += i + digit > bytes.size() ? '=' : digits[(group >> (18 - 6 * digit)) & 63];
  }
  return text;
}

std::string image_url(const std::vector<unsigned char>& shades, std::size_t width) {
  const std::size_t height = width == 0 ? 0 : shades.size() / width, line = (width + 3) / 4 * 4;
  constexpr std::size_t colours = 256, header = 14 + 40, pixels = header + 4 * colours;
  std::string file = "BM";  // a Windows bitmap: needs no compression or checksum
  const auto number = [&](std::size_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file += static_cast<char>(value >> (8 * i) & 0xff);
  };
  number(pixels + line * height, 4);
  number(0, 4);
  number(pixels, 4);
  number(40, 4);
  number(width, 4);
  number(height, 4);
  number(1, 2);
  number(8, 2);  // bits
  for (const std::size_t rest :
       {std::size_t{0}, line * height, std::size_t{0}, std::size_t{0}, colours, std::size_t{0}})
    number(rest, 4);
  for (std::size_t shade = 0; shade < colours; ++shade) number(0x010101 * (colours - 1 - shade), 4);
  for (std::size_t row = height; row-- > 0;) {  // bottom row first
    for (std::size_t column = 0; column < line; ++column)
      file += column < width ? static_cast<char>(shades[row * width + column]) : '\0';
  }
  return "data:image/bmp;base64," + base64(file);
}

}  // namespace poolgrad::examples
