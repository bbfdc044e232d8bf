// Files that programs write whole.
#pragma once

#include <string>

namespace poolgrad::examples {

/// Throws FileError, "[program] cannot write path".
void write_text(const std::string& path, const std::string& text, const std::string& program);

}  // namespace poolgrad::examples
