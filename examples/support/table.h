// Tables of text with aligned columns.
#pragma once

#include <string>
#include <vector>

namespace poolgrad::examples {

/// Columns as wide as their widest cell. A header that begins with '<' aligns its column to the left; others to the
/// right. Cells may hold any UTF-8.
class Table {
 public:
  explicit Table(std::vector<std::string> headers);

  /// As many cells as there are headers.
  void add(std::vector<std::string> row);
  /// A line across, below the last row.
  void rule();
  /// The lines, each ended, none with spaces at its end; `indent` spaces before each.
  std::string text(std::size_t indent = 2) const;

 private:
  std::vector<std::string> headers_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a line across
};

}  // namespace poolgrad::examples
