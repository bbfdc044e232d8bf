// Pictures as SVG, for the pages of html.h and as files: light or dark by the reader's preference.
#pragma once

#include <string>
#include <string_view>

namespace poolgrad::examples {

/// The style of pages and files. Classes are grid, mark, level, limit, reserved and c0 to c5 for lines; end, middle,
/// quiet, name and group for texts; and each category of memory for areas.
std::string_view svg_style();
/// A line of class `kind`, with a title that shows at the pointer.
std::string svg_line(std::string_view kind, double x1, double y1, double x2, double y2, const std::string& title = "");
std::string svg_text(std::string_view kind, double x, double y, const std::string& text);
/// A picture in a page, which scales it.
std::string svg_picture(double width, double height, const std::string& label, const std::string& body);
/// The same as a file.
std::string svg_file(double width, double height, const std::string& label, const std::string& body);

}  // namespace poolgrad::examples
