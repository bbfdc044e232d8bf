// Text to train on and text held out, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poolgrad::examples {

struct Corpus {
  std::vector<std::uint8_t> train, validation;
  std::int64_t files = 0;
};

/// Reads files, and folders with everything below them (hidden files and files that contain a 0 byte are left out), in
/// an order that depends on names alone. Of several files, a tenth, chosen by `seed`, is held out; of a single file the
/// last tenth of its bytes. Throws FileError for a path that does not exist or holds no text.
Corpus read_corpus(const std::vector<std::string>& paths, std::uint64_t seed);

/// The folder of Eigen's headers, which the build needs anyway. Throws FileError where there is none.
std::string default_text();

}  // namespace poolgrad::examples
