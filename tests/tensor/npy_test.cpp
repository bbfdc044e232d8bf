#include "tensor/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace std::string_literals;
using namespace testing_support;
using testing::ElementsAre;
using testing::HasSubstr;

// Written by NumPy 2.4: np.array([[1, 2, 3], [4, 5, 6]], '<f4').
const std::string row_major =
    "\223NUMPY\001\000v\000{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    "                                                          \012"
    "\000\000\200?\000\000\000@\000\000@@\000\000\200@\000\000\240@\000\000\300@"s;
// np.asfortranarray(np.array([[1, 2, 3], [4, 5, 6]], '<i4')).
const std::string column_major =
    "\223NUMPY\001\000v\000{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }"
    "                                                           \012"
    "\001\000\000\000\004\000\000\000\002\000\000\000\005\000\000\000\003\000\000\000\006\000\000\000"s;
// version (2, 0), np.array([0.5]).
const std::string version_two =
    "\223NUMPY\002\000t\000\000\000{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }"
    "                                                          \012\000\000\000\000\000\000\340?"s;
// version (3, 0), np.array(-2).
const std::string version_three =
    "\223NUMPY\003\000t\000\000\000{'descr': '<i8', 'fortran_order': False, 'shape': (), }"
    "                                                            \012\376\377\377\377\377\377\377\377"s;

/// Returns a version 1.0 file with any header.
std::string npy_file(const std::string& header, const std::string& data = "") {
  std::string bytes = "\223NUMPY\001\000"s;
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + data;
}

class Npy : public testing::Test {
 protected:
  Tensor load(const std::string& bytes) {
    write_bytes(path_, bytes);
    return load_npy(path_);
  }
  /// Returns the error's text after "[load_npy] <path>: ".
  std::string refusal(const std::string& bytes) {
    const std::string text = error_of<FileError>([&] { load(bytes); }), begin = "[load_npy] " + path_ + ": ";
    return text.starts_with(begin) ? text.substr(begin.size()) : text;
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("x.npy");
};

TEST_F(Npy, ReadsNumPyFiles) {
  const Tensor rows = load(row_major);
  EXPECT_EQ(describe(rows), "(2, 3) f32 on cpu");
  EXPECT_THAT(rows.to_vector<float>(), ElementsAre(1, 2, 3, 4, 5, 6));

  const Tensor columns = load(column_major);
  EXPECT_EQ(describe(columns), "(2, 3) i32 on cpu");
  EXPECT_TRUE(columns.is_contiguous());
  EXPECT_THAT(columns.to_vector<float>(), ElementsAre(1, 2, 3, 4, 5, 6));

  EXPECT_EQ(describe(load(version_two)), "(1,) f64 on cpu");
  EXPECT_EQ(load(version_two).item(), 0.5);
  EXPECT_EQ(describe(load(version_three)), "() i64 on cpu");
  EXPECT_EQ(load(version_three).item(), -2);
  EXPECT_THAT(
      load(npy_file("{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", "\001\000"s)).to_vector<bool>(),
      ElementsAre(true, false));
  EXPECT_EQ(load(npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 3), }")).shape(), (Shape{0, 3}));
  EXPECT_THAT(
      load(npy_file("{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }", "\000>\000\300"s)).to_vector<float>(),
      ElementsAre(1.5f, -2.0f));
}

TEST_F(Npy, ReadsAnyOrderOfKeysAndOldSpellings) {
  const auto shape = [&](const std::string& header, int bytes) {
    return to_string(load(npy_file(header, std::string(static_cast<std::size_t>(bytes), '\0'))).shape());
  };
  EXPECT_EQ(shape("{\"shape\":(1,2),\"fortran_order\":False,\"descr\":\"<f4\"}\n", 8), "(1, 2)");
  EXPECT_EQ(shape("{'descr': '<f4', 'shape': (3L, 2L), 'fortran_order': True}", 24), "(3, 2)") << "Python 2";
  EXPECT_EQ(shape("{'descr': '>u1', 'shape': (3,), 'fortran_order': True}", 3), "(3,)") << "one byte has no order";
}

TEST_F(Npy, WritesTheSameBytesAsNumPy) {
  save_npy(path_, from_data({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {2, 3}));
  EXPECT_EQ(read_bytes(path_), row_major);
  const Tensor x = from_data({1.0f, 4.0f, 2.0f, 5.0f, 3.0f, 6.0f}, {3, 2});
  save_npy(path_, x.alias(transposed(x.geometry(), 0, 1)));
  EXPECT_EQ(read_bytes(path_), row_major) << "a view is written in its own order";
}

TEST_F(Npy, KeepsEveryBitOfEveryDtypeAndShape) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::i64, DType::i32, DType::u8, DType::boolean})
    for (const Shape& shape :
         {Shape{}, Shape{1}, Shape{5}, Shape{0}, Shape{3, 0, 2}, Shape{2, 3, 4}, Shape{1, 2, 1, 2, 1, 2, 1, 2}}) {
      Tensor x = Tensor::empty(shape, {.dtype = dtype});
      x.copy_from(randint(0, 200, shape));
      save_npy(path_, x);
      EXPECT_TRUE(bit_equal(load_npy(path_), x)) << describe(x);
    }
}

TEST_F(Npy, RejectsUnsupportedDtypes) {
  EXPECT_EQ(error_of<DTypeError>([&] { save_npy(path_, zeros({2}, {.dtype = DType::bf16})); }),
            "[save_npy] npy files have no dtype for bf16");
  EXPECT_TRUE(folder_.names().empty());
  const auto descr = [&](const std::string& code) {
    return refusal(npy_file("{'descr': " + code + ", 'fortran_order': False, 'shape': (1,), }", "12345678"));
  };
  EXPECT_EQ(descr("'>f8'"), "big-endian data ('>f8') is not supported (at byte 10)");
  EXPECT_EQ(descr("'<c8'"), "dtype '<c8' is not supported (f2 f4 f8 i4 i8 u1 b1 are) (at byte 10)");
  EXPECT_EQ(descr("'|f8'"), "dtype '|f8' is not supported (f2 f4 f8 i4 i8 u1 b1 are) (at byte 10)");
  EXPECT_THAT(descr("[('x', '<f4')]"), HasSubstr("expected '\"' at character 10"));
}

TEST_F(Npy, RejectsSizesBeyondTheFileBeforeAllocating) {
  const std::uint64_t requests = allocator_for(cpu).statistics().requests;
  const auto shape = [&](const std::string& text) {
    return refusal(npy_file("{'descr': '<f8', 'fortran_order': False, 'shape': " + text + ", }", "12345678"));
  };
  EXPECT_EQ(shape("(2,)"), "shape (2,) f64 does not fit the 8 bytes of data (at byte 67)");
  EXPECT_EQ(shape("(0,)"), "shape (0,) f64 does not fit the 8 bytes of data (at byte 67)") << "trailing bytes";
  EXPECT_THAT(shape("(2305843009213693953,)"), HasSubstr("does not fit")) << "2^61 + 1 eights are 8 bytes, modulo 2^64";
  EXPECT_THAT(shape("(4294967296, 4294967296)"), HasSubstr("does not fit"));
  EXPECT_THAT(shape("(0, 9223372036854775807, 9223372036854775807)"), HasSubstr("does not fit"));
  EXPECT_THAT(shape("(9223372036854775808,)"), HasSubstr("expected a size below 2^63"));
  EXPECT_THAT(shape("(-1,)"), HasSubstr("expected a size below 2^63"));
  EXPECT_THAT(shape("(1,1,1,1,1,1,1,1,1)"), HasSubstr("more than 8 dimensions"));
  EXPECT_EQ(allocator_for(cpu).statistics().requests, requests);
}

TEST_F(Npy, RejectsMalformedHeaders) {
  const std::string good = "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }";
  EXPECT_EQ(load(npy_file(good, "12345678")).numel(), 1);
  for (const char* header :
       {"", "{", "}", "{}", "[]", "{'descr': '<f8'}", "{'descr': '<f8', 'fortran_order': False}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1)}", "{'descr': '<f8', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'extra': 1}",
        "{'descr': '<f8', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,,)}",
        "{'descr': '<f8', 'fortran_order': False 'shape': (1,)}", "{'descr': '<f8, 'fortran_order': False}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1.0,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,"})
    EXPECT_THROW(load(npy_file(header, "12345678")), FileError) << header;
}

TEST_F(Npy, RejectsOtherFiles) {
  EXPECT_EQ(refusal("PK\003\004 a zip archive"), "not an npy file: its 18 bytes do not begin with '\\x93NUMPY'");
  EXPECT_EQ(refusal("\223NUM"), "not an npy file: its 4 bytes do not begin with '\\x93NUMPY'");
  EXPECT_EQ(refusal("\223NUMPY\004\000\000\000\000\000"s), "unknown version 4.0 (at byte 6)");
  EXPECT_EQ(refusal("\223NUMPY\377\377\000\000"s), "unknown version 255.255 (at byte 6)");
  EXPECT_EQ(refusal("\223NUMPY\002\000\377\377\377\377"s), "a header of 4294967295 bytes (at byte 8)");
  EXPECT_EQ(error_of<FileError>([&] { load_npy(folder_.file("none.npy")); }),
            "[load_npy] " + folder_.file("none.npy") + ": does not exist");
  EXPECT_EQ(error_of<FileError>([&] { load_npy(folder_.file(".")); }),
            "[load_npy] " + folder_.file(".") + ": not a regular file");
  EXPECT_EQ(error_of<FileError>([] { load_npy("/dev/zero"); }), "[load_npy] /dev/zero: not a regular file");
}

TEST_F(Npy, RejectsAnInvalidBool) {
  EXPECT_EQ(refusal(npy_file("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }", "\001\000\002"s)),
            "a bool of value 2 (at byte 69)");
}

TEST_F(Npy, SurvivesEveryTruncation) {
  for (const std::string& whole : {row_major, column_major, version_two, version_three})
    for (std::size_t length = 0; length < whole.size(); ++length)
      ASSERT_THROW(load(whole.substr(0, length)), FileError) << length;
}

TEST_F(Npy, SurvivesFlippedBitsAndBytes) {
  DamageCount count;
  for (const std::string& whole : {row_major, column_major, version_two, version_three})
    read_damaged(
        whole, 500, 4,
        [&](const std::string& bytes, const std::string& what) {
          const Tensor x = load(bytes);
          ASSERT_LE(static_cast<std::size_t>(x.numel()) * size_of(x.dtype()), bytes.size()) << what;
        },
        count);
  EXPECT_GT(count.accepted, 100) << "changes of the data alone";
  EXPECT_GT(count.refused, 100);
}

}  // namespace
}  // namespace poolgrad
