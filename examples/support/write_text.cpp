#include "examples/support/write_text.h"

#include <cstdio>
#include <memory>

#include "allocator/error.h"

namespace poolgrad::examples {

void write_text(const std::string& path, const std::string& text, const std::string& program) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0)
    throw FileError("[" + program + "] cannot write " + path);
}

}  // namespace poolgrad::examples
