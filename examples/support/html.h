// Self-contained pages in one file: light or dark by the reader's preference, for narrow and wide windows, without
// scripts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::examples {

class Table;

/// The colors of a page, light and dark: --text, --quiet, --page and others.
std::string_view page_colours();

/// The page around `body`; `style` extends the common style. With `reload`, the page reloads itself after that many
/// seconds.
std::string html_page(const std::string& title, std::string_view style, const std::string& body, int reload = 0);

/// Cells are HTML: use escaped() for text. Columns of `left` are left-aligned, as the first one always is.
std::string html_row(const std::vector<std::string>& cells, const char* cell = "td",
                     const std::vector<bool>& left = {});
/// `rows` of html_row(); scrolls in a narrow window.
std::string html_table(const std::vector<std::string>& head, const std::string& rows,
                       const std::vector<bool>& left = {});
/// The same cells as the text of `table`, aligned alike, without its horizontal lines.
std::string html_table(const Table& table);

std::string base64(std::string_view bytes);

/// An image of `width` columns as a data: URL: `shades` row by row from the top, 0 (white) to 255 (black). Pages give
/// it the class "shades", which inverts it in dark mode.
std::string image_url(const std::vector<unsigned char>& shades, std::size_t width);

}  // namespace poolgrad::examples
