// Shared by the tests of tensor/: texts of exceptions, temporary folders, and plain index arithmetic as a reference.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "tensor/geometry.h"

namespace poolgrad::testing_support {

inline constexpr DType all_dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                       DType::i64, DType::i32, DType::u8,  DType::boolean};

/// Returns the text of the exception of type E that `action` throws.
template <class E>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

/// An empty folder for one test; the destructor removes it and its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "poolgrad_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  /// Returns the names of all files, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // some file systems take milliseconds to flush a file that is truncated and rewritten
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The number of damaged copies of a file that were accepted and refused.
struct DamageCount {
  int accepted = 0;
  int refused = 0;
};

/// Calls read(copy, what) for copies of `whole` with each single bit flipped, and for `rounds` copies with `changes`
/// random bytes; counts the calls that throw FileError. Any other exception fails the test.
template <class Read>
void read_damaged(const std::string& whole, int rounds, int changes, Read read, DamageCount& count) {
  const auto attempt = [&](const std::string& bytes, const std::string& what) {
    try {
      read(bytes, what);
      ++count.accepted;
    } catch (const FileError&) {
      ++count.refused;
    }
  };
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    attempt(bytes, "bit " + std::to_string(bit));
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < rounds; ++i) {
    std::string bytes = whole;
    for (int k = 0; k < changes; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    attempt(bytes, "seed 1, round " + std::to_string(i));
  }
}

/// Returns all coordinates of a shape, in row-major order.
inline std::vector<std::vector<std::int64_t>> coordinates(const Shape& shape) {
  std::vector<std::vector<std::int64_t>> all{{}};
  for (const std::int64_t size : shape) {
    std::vector<std::vector<std::int64_t>> longer;
    for (const auto& prefix : all)
      for (std::int64_t i = 0; i < size; ++i) {
        longer.push_back(prefix);
        longer.back().push_back(i);
      }
    all = std::move(longer);
  }
  return all;
}

inline std::int64_t offset_of(const Geometry& geometry, const std::vector<std::int64_t>& coordinate) {
  std::int64_t offset = geometry.offset;
  for (std::size_t d = 0; d < coordinate.size(); ++d) offset += coordinate[d] * geometry.strides[static_cast<int>(d)];
  return offset;
}

/// Returns the offset of every element, in row-major order.
inline std::vector<std::int64_t> offsets_of(const Geometry& geometry) {
  std::vector<std::int64_t> offsets;
  for (const auto& coordinate : coordinates(geometry.shape)) offsets.push_back(offset_of(geometry, coordinate));
  return offsets;
}

}  // namespace poolgrad::testing_support
