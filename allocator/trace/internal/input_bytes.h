// The content of a file.
#pragma once

#include <string>

namespace poolgrad {

/// Throws FileError for what is no regular file or cannot be read.
std::string read_whole_file(const std::string& path);

}  // namespace poolgrad
