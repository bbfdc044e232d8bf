// Bytes from memory, mapped files and spools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "nn/text/byte_source.h"
#include "tests/process_guards.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

std::string part_of(const ByteSource& source, std::size_t offset, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  source.read(offset, bytes);
  return {bytes.begin(), bytes.end()};
}

TEST(MappedFile, KeepsItsBytesAfterTheFileIsRemoved) {
  const TemporaryFolder folder;
  const std::string path = folder.file("text");
  write_bytes(path, "0123456789");
  const auto source = mapped_file(path);
  EXPECT_EQ(source->size(), 10u);
  EXPECT_EQ(part_of(*source, 3, 4), "3456");
  source->release(0, 10);
  EXPECT_EQ(part_of(*source, 0, 10), "0123456789") << "given back and read again";
  std::filesystem::remove(path);
  EXPECT_EQ(part_of(*source, 9, 1), "9");
  write_bytes(path, "x");
  EXPECT_EQ(part_of(*source, 9, 1), "9") << "another file of that name is none of ours";
}

TEST(MappedFile, ReportsATruncatedFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("text");
  write_bytes(path, std::string(100000, 'a'));
  const auto source = mapped_file(path);
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  EXPECT_EQ(part_of(*source, 4000, 1000), std::string(1000, 'a'));
  EXPECT_EQ(error_of<FileError>([&] { part_of(*source, 50000, 10); }),
            "[train] " + path + " became shorter while it was read: 5000 bytes of 100000");
}

TEST(MappedFile, MayBeEmptyAndMustExist) {
  const TemporaryFolder folder;
  write_bytes(folder.file("empty"), "");
  EXPECT_EQ(mapped_file(folder.file("empty"))->size(), 0u);
  const std::string missing = folder.file("missing");
  EXPECT_EQ(error_of<FileError>([&] { mapped_file(missing); }),
            "[train] cannot read " + missing + ": No such file or directory");
}

TEST(Spool, ReturnsItsBytesFromMemoryOrATemporaryFile) {
  const TemporaryFolder folder;
  const testing_support::EnvironmentVariable temporary("TMPDIR", folder.file(""));
  std::vector<std::uint8_t> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  for (const std::size_t in_memory : {0u, 1u, 100u, 999u, 1000u, 5000u}) {
    Spool spool(in_memory);
    for (std::size_t begin = 0; begin < bytes.size(); begin += 50) spool.append(std::span(bytes).subspan(begin, 50));
    EXPECT_EQ(spool.size(), 1000u);
    const auto source = spool.finish();
    EXPECT_EQ(part_of(*source, 0, 1000), std::string(bytes.begin(), bytes.end())) << in_memory;
    EXPECT_EQ(spool.size(), 0u);
    EXPECT_EQ(spool.finish()->size(), 0u);
  }
  EXPECT_TRUE(folder.names().empty()) << "a file has no name";
}

TEST(Spool, NamesAnUnusableFolder) {
  const TemporaryFolder folder;
  const testing_support::EnvironmentVariable temporary("TMPDIR", folder.file("missing"));
  Spool spool(3);
  spool.append(std::vector<std::uint8_t>(3));
  EXPECT_EQ(error_of<FileError>([&] { spool.append(std::vector<std::uint8_t>(1)); }),
            "[train] cannot make a file for text in the folder " + folder.file("missing") +
                " (TMPDIR): No such file or directory");
}

}  // namespace
}  // namespace poolgrad::nn
