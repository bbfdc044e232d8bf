// Pages of one file that refer to nothing outside themselves: light or dark as the reader prefers, for narrow and wide
// windows, without a script.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::examples {

/// The colours of a page, light and dark: --text, --quiet, --page and others.
std::string_view page_colours();

/// The page around `body`; `style` is added to the common one. With `reload`, the page loads itself again after so many
/// seconds.
std::string html_page(const std::string& title, std::string_view style, const std::string& body, int reload = 0);

/// Cells are HTML: escaped() where they are text.
std::string html_row(const std::vector<std::string>& cells, const char* cell = "td");
/// `rows` of html_row(); scrolls where the window is narrower. The first column is aligned to the left.
std::string html_table(const std::vector<std::string>& head, const std::string& rows);

std::string base64(std::string_view bytes);

/// An image of `width` columns, as a data: URL: `shades` row by row from the top, 0 (white) to 255 (black). Its class
/// in pages is "shades", which turns it over in the dark.
std::string image_url(const std::vector<unsigned char>& shades, std::size_t width);

}  // namespace poolgrad::examples
