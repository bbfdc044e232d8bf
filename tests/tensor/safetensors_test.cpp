#include "tensor/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "allocator/caching_allocator.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/cpu_timer.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace std::string_literals;
using namespace testing_support;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string with_header(const std::string& json, const std::string& data = "") {
  const std::uint64_t length = json.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + json + data;
}

// The reference writer's layout of {"weight": f32 (2, 2), "step": i64 ()} with PyTorch's metadata: wide types first,
// the header padded with spaces to a multiple of 8.
const std::string reference =
    "\230\000\000\000\000\000\000\000"
    "{\"__metadata__\":{\"format\":\"pt\"},\"step\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]}}    "
    "\007\000\000\000\000\000\000\000"
    "\000\000\200?\000\000\000@\000\000@@\000\000\200@"s;

class Safetensors : public testing::Test {
 protected:
  SafetensorsFile load(const std::string& bytes) {
    write_bytes(path_, bytes);
    return load_safetensors(path_);
  }
  /// Returns the error's text after "[load_safetensors] <path>: ".
  std::string refusal(const std::string& bytes) {
    const std::string text = error_of<FileError>([&] { load(bytes); }), begin = "[load_safetensors] " + path_ + ": ";
    return text.starts_with(begin) ? text.substr(begin.size()) : text;
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("x.safetensors");
};

TEST_F(Safetensors, ReadsTheReferenceLayout) {
  const SafetensorsFile file = load(reference);
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].first, "step");
  EXPECT_EQ(file.at("step").item(), 7);
  EXPECT_EQ(describe(file.at("weight")), "(2, 2) f32 on cpu");
  EXPECT_THAT(file.at("weight").to_vector<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(file.metadata, ElementsAre(Pair("format", "pt")));
}

TEST_F(Safetensors, WritesTheReferenceLayout) {
  const Tensor weight = from_data({1.0f, 3.0f, 2.0f, 4.0f}, {2, 2});
  save_safetensors(path_, {{{"weight", weight.alias(transposed(weight.geometry(), 0, 1))},
                            {"step", scalar(7, {.dtype = DType::i64})}},
                           {{"format", "pt"}}});
  EXPECT_EQ(read_bytes(path_), reference);
  EXPECT_THAT(folder_.names(), ElementsAre("x.safetensors"));
}

TEST_F(Safetensors, KeepsEveryBitOfEveryDtypeAndShape) {
  SafetensorsFile file;
  file.metadata = {{"step", "12"}, {"text", "\"quoted\"\n\xC3\xA9"}, {"", ""}};
  for (const DType dtype :
       {DType::boolean, DType::u8, DType::f16, DType::bf16, DType::f32, DType::i32, DType::i64, DType::f64})
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{0}, Shape{3, 0, 2}, Shape{5, 1, 7}}) {
      Tensor x = Tensor::empty(shape, {.dtype = dtype});
      x.copy_from(randint(0, 200, shape));
      file.tensors.emplace_back(std::string(to_string(dtype)) + to_string(shape) + "\\ \"\n\t\xE2\x82\xAC", x);
    }
  save_safetensors(path_, file);
  const SafetensorsFile again = load_safetensors(path_);
  EXPECT_EQ(again.metadata, file.metadata);
  ASSERT_EQ(again.tensors.size(), file.tensors.size());
  for (const auto& [name, x] : file.tensors) EXPECT_TRUE(bit_equal(again.at(name), x)) << name;
  std::uint64_t length = 0;
  std::memcpy(&length, read_bytes(path_).data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
}

TEST_F(Safetensors, MayBeEmpty) {
  save_safetensors(path_, {});
  const SafetensorsFile file = load_safetensors(path_);
  EXPECT_TRUE(file.tensors.empty());
  EXPECT_TRUE(file.metadata.empty());
}

TEST_F(Safetensors, SuggestsNamesForAMissingTensor) {
  SafetensorsFile file;
  for (const char* name : {"block0.weight", "block1.weight", "embedding", "block0.bias"})
    file.tensors.emplace_back(name, zeros({1}));
  EXPECT_TRUE(file.contains("embedding"));
  EXPECT_FALSE(file.contains("embeding"));
  EXPECT_EQ(error_of<FileError>([&] { file.at("block2.weight"); }),
            "[safetensors] no tensor is called 'block2.weight'; near: 'block0.weight', 'block1.weight', "
            "'block0.bias'");
  EXPECT_EQ(error_of<FileError>([] { SafetensorsFile().at("x"); }), "[safetensors] no tensor is called 'x'");
}

TEST_F(Safetensors, SkipsATensorOfAForeignDtypeAndLoadsTheOthers) {
  const std::string odd =
      "{\"a\":{\"dtype\":\"U32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[8,10]},"
      "\"c\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[10,13]}}";
  const SafetensorsFile file = load(with_header(odd, std::string(8, '\0') + "\001\002" + "xyz"));
  ASSERT_EQ(file.tensors.size(), 1u);
  EXPECT_THAT(file.at("b").to_vector<std::uint8_t>(), ElementsAre(1, 2));
  EXPECT_THAT(file.unsupported, ElementsAre(Pair("a", "U32"), Pair("c", "F8_E4M3")));
  EXPECT_FALSE(file.contains("a"));
  EXPECT_EQ(error_of<FileError>([&] { file.at("a"); }),
            "[safetensors] tensor 'a' was left out: its dtype U32 is not supported (F64 F32 F16 BF16 I64 I32 U8 BOOL "
            "are)");
  EXPECT_THAT(error_of<FileError>([&] { save_safetensors(path_, file); }), HasSubstr("'a' was left out"))
      << "a copy would lack them";
  EXPECT_EQ(refusal(with_header(odd, std::string(12, '\0'))),
            "tensor 'c': data_offsets [10, 13) outside the 12 bytes of data");
}

// These are the sizes that safetensors 0.8.0 for Python accepts.
TEST_F(Safetensors, NamesEveryForeignDtypeOfTheFormatAndChecksItsSize) {
  struct Case {
    const char* dtype;
    int elements, bytes;
  };
  for (const auto& [dtype, elements, bytes] : {Case{"F4", 6, 3},
                                               {"F6_E2M3", 4, 3},
                                               {"F6_E3M2", 8, 6},
                                               {"I8", 3, 3},
                                               {"F8_E4M3", 3, 3},
                                               {"F8_E5M2", 3, 3},
                                               {"F8_E8M0", 3, 3},
                                               {"F8_E4M3FNUZ", 3, 3},
                                               {"F8_E5M2FNUZ", 3, 3},
                                               {"I16", 3, 6},
                                               {"U16", 3, 6},
                                               {"U32", 3, 12},
                                               {"U64", 3, 24},
                                               {"C64", 3, 24}}) {
    const auto file = [&, &dtype = dtype, &bytes = bytes](int count) {
      return with_header("{\"a\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":[" + std::to_string(count) +
                             "],\"data_offsets\":[0," + std::to_string(bytes) + "]}}",
                         std::string(static_cast<std::size_t>(bytes), 'x'));
    };
    EXPECT_EQ(error_of<FileError>([&] { load(file(elements)).at("a"); }),
              "[safetensors] tensor 'a' was left out: its dtype " + std::string(dtype) +
                  " is not supported (F64 F32 F16 BF16 I64 I32 U8 BOOL are)");
    EXPECT_EQ(refusal(file(elements - 1)), "tensor 'a': shape (" + std::to_string(elements - 1) + ",) " + dtype +
                                               " does not fit data_offsets [0, " + std::to_string(bytes) + ")");
  }
}

TEST_F(Safetensors, ShowsNamesEscapedAndCut) {
  const std::string evil = "\\u001b[2J\\n[train] saved", long_name(1'000'000, 'n');
  EXPECT_EQ(refusal(with_header("{\"" + evil + "\":3}")), "tensor '\\x1b[2J\\n[train] saved': unexpected number");
  EXPECT_LT(refusal(with_header("{\"" + long_name + "\":3}")).size(), 200u);
  EXPECT_LT(refusal(with_header("{\"a\":{\"dtype\":\"" + long_name + "\"}}")).size(), 300u);
  EXPECT_LT(error_of<FileError>([&] { SafetensorsFile().at(long_name); }).size(), 200u);
}

TEST_F(Safetensors, RejectsUnreadableNamesOnWrite) {
  const Tensor x = zeros({1});
  const auto refused = [&](const SafetensorsFile& file) {
    return error_of<ValueError>([&] { save_safetensors(path_, file); });
  };
  EXPECT_EQ(refused({{{"x", x}, {"x", x}}, {}}), "[save_safetensors] duplicate or reserved name 'x'");
  EXPECT_EQ(refused({{{"__metadata__", x}}, {}}), "[save_safetensors] duplicate or reserved name '__metadata__'");
  EXPECT_EQ(refused({{{"x", Tensor()}}, {}}), "[save_safetensors] tensor 'x' is undefined");
  EXPECT_EQ(refused({{{"\xFF", x}}, {}}), "[save_safetensors] " + path_ + ": a name or a metadata text is not UTF-8");
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(Safetensors, RejectsHolesOverlapsAndTrailingBytes) {
  const std::uint64_t requests = allocator_for(cpu).statistics().requests;
  const auto two = [&](const std::string& a, const std::string& b, std::size_t data) {
    return refusal(with_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + a +
                                   "},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + b + "}}",
                               std::string(data, '\0')));
  };
  EXPECT_EQ(two("[0,4]", "[4,6]", 6), "no exception");
  EXPECT_EQ(two("[2,6]", "[0,2]", 6), "no exception") << "any order in the header";
  EXPECT_EQ(two("[0,4]", "[4,6]", 7), "bytes that belong to no tensor (at byte 119)");
  EXPECT_EQ(two("[0,4]", "[5,7]", 7), "tensor 'b': a hole before its data (at byte 117)");
  EXPECT_EQ(two("[0,4]", "[3,5]", 5), "tensor 'b': its data overlap another tensor's (at byte 116)");
  EXPECT_EQ(two("[0,4]", "[4,6]", 5), "tensor 'b': data_offsets [4, 6) outside the 5 bytes of data");
  EXPECT_EQ(two("[0,4]", "[6,4]", 6), "tensor 'b': data_offsets [6, 4) outside the 6 bytes of data");
  EXPECT_EQ(two("[0,3]", "[3,5]", 5), "tensor 'a': shape (4,) u8 does not fit data_offsets [0, 3)");
  EXPECT_EQ(two("[1,5]", "[5,7]", 7), "tensor 'a': a hole before its data (at byte 113)");
  EXPECT_EQ(allocator_for(cpu).statistics().requests, requests + 8)
      << "only the two good files, an outline and bytes of each tensor";
}

TEST_F(Safetensors, RejectsOverflowingShapes) {
  const auto shape = [&](const std::string& text) {
    return refusal(
        with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":" + text + ",\"data_offsets\":[0,8]}}", "12345678"));
  };
  EXPECT_EQ(shape("[1]"), "no exception");
  EXPECT_THAT(shape("[2305843009213693953]"), HasSubstr("does not fit"));
  EXPECT_THAT(shape("[4294967296,4294967296]"), HasSubstr("does not fit"));
  EXPECT_EQ(shape("[9223372036854775808]"), "tensor 'a': a number beyond 2^63 - 1");
  EXPECT_EQ(shape("[99999999999999999999]"), "tensor 'a': a number that is not a whole number below 2^63");
  EXPECT_EQ(shape("[1.0]"), "tensor 'a': a number that is not a whole number below 2^63");
  EXPECT_EQ(shape("[-1]"), "tensor 'a': negative number");
  EXPECT_EQ(shape("[1,1,1,1,1,1,1,1,1]"), "tensor 'a': more than 8 dimensions");
}

TEST_F(Safetensors, RejectsInvalidHeaders) {
  const auto entry = [&](const std::string& fields) { return refusal(with_header("{\"a\":{" + fields + "}}")); };
  const std::string dtype = "\"dtype\":\"U8\"", shape = "\"shape\":[0]", offsets = "\"data_offsets\":[0,0]";
  EXPECT_EQ(entry(dtype + "," + shape + "," + offsets), "no exception");
  EXPECT_EQ(entry(offsets + "," + dtype + "," + shape), "no exception");
  EXPECT_EQ(entry(dtype + "," + shape), "tensor 'a': needs dtype, shape and data_offsets");
  EXPECT_EQ(entry(dtype + "," + dtype), "tensor 'a': duplicate key 'dtype'");
  EXPECT_EQ(entry("\"stride\":1"), "tensor 'a': unknown key 'stride'");
  EXPECT_EQ(entry("\"dtype\":\"F8_E4M3\""), "tensor 'a': needs dtype, shape and data_offsets");
  for (const std::string name : {"", "f32", "X9", "F4\\u001b[2J"})
    EXPECT_THAT(entry("\"dtype\":\"" + name + "\""),
                testing::MatchesRegex("tensor 'a': unknown dtype '.*'; known are F64 F32 .* F4 .* F8_E8M0 .*"))
        << name;
  EXPECT_EQ(entry("\"dtype\":3"), "tensor 'a': unexpected number");
  EXPECT_EQ(entry("\"dtype\":[]"), "tensor 'a': unexpected array");
  EXPECT_EQ(entry("\"shape\":{}"), "tensor 'a': unexpected object");
  EXPECT_EQ(entry("\"shape\":[[1]]"), "tensor 'a': unexpected array");
  EXPECT_EQ(entry("\"shape\":null"), "tensor 'a': unexpected null");
  EXPECT_EQ(entry("\"shape\":[true]"), "tensor 'a': unexpected boolean");
  EXPECT_EQ(entry("\"data_offsets\":[0]"), "tensor 'a': data_offsets needs two numbers");
  EXPECT_EQ(entry("\"data_offsets\":[0,0,0]"), "tensor 'a': unexpected number");

  const auto header = [&](const std::string& json) { return refusal(with_header(json)); };
  EXPECT_EQ(header("{}"), "no exception");
  EXPECT_EQ(header("{}   "), "no exception");
  EXPECT_EQ(header(" \t\r\n{}"), "no exception");
  EXPECT_EQ(header("{\"__metadata__\":null}"), "no exception") << "none, as the reference reader has it";
  EXPECT_EQ(header("{\"__metadata__\":{\"a\":null}}"), "unexpected null");
  EXPECT_EQ(header("{\"__metadata__\":null,\"__metadata__\":{}}"), "duplicate name '__metadata__'");
  EXPECT_EQ(header("{}\0"s), "invalid JSON at character 3 of the header");
  EXPECT_EQ(header("{}\0{\"b\":1}"s), "invalid JSON at character 3 of the header");
  EXPECT_EQ(header("{} {}"), "invalid JSON at character 4 of the header");
  EXPECT_EQ(header("{\"a\""), "invalid JSON at character 5 of the header");
  EXPECT_EQ(header("{\"\xFF\":1}"), "invalid JSON at character 3 of the header");
  EXPECT_EQ(header("{\"a\":1}"), "tensor 'a': unexpected number");
  EXPECT_EQ(header("{\"a\":{" + dtype + "," + shape + "," + offsets + "},\"a\":{"), "duplicate name 'a'");
  EXPECT_EQ(header("{\"__metadata__\":{\"a\":1}}"), "unexpected number");
  EXPECT_EQ(header("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}"), "duplicate key 'a' in __metadata__");
  EXPECT_EQ(header("{\"__metadata__\":{},\"__metadata__\":{}}"), "duplicate name '__metadata__'");
  EXPECT_EQ(header("{\"a\":" + std::string(1000000, '[')), "tensor 'a': unexpected array") << "no recursion";
}

TEST_F(Safetensors, RejectsOtherFiles) {
  const auto none = [](std::size_t bytes) {
    return "not a safetensors file: its " + std::to_string(bytes) +
           " bytes do not begin with the length of a header and '{'";
  };
  const std::string text = "# A text\n\nof some lines\n";
  EXPECT_EQ(refusal(text), none(text.size()));
  EXPECT_EQ(refusal(""), none(0));
  EXPECT_EQ(refusal(with_header("")), none(8));
  EXPECT_EQ(refusal(with_header("   ")), none(11));
  EXPECT_EQ(refusal(with_header("\xef\xbb\xbf{}")), none(13)) << "a byte order mark";
  EXPECT_EQ(refusal(with_header("\f{}")), none(11)) << "no white space of JSON";
  EXPECT_EQ(refusal("\377\377\377\377\377\377\377\377{}"), none(10));
  EXPECT_EQ(refusal("\003\000\000\000\000\000\000\000{}"s), "the file ends in the middle of the header (at byte 10)")
      << "one that was cut off";
  EXPECT_EQ(error_of<FileError>([&] { load_safetensors(folder_.file("none")); }),
            "[load_safetensors] " + folder_.file("none") + ": does not exist");
}

TEST_F(Safetensors, RejectsAnInvalidBool) {
  EXPECT_EQ(refusal(with_header("{\"a\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}", "\001\003")),
            "a bool of value 3 (at byte 64)");
}

TEST_F(Safetensors, SurvivesEveryTruncation) {
  for (std::size_t length = 0; length < reference.size(); ++length)
    ASSERT_THROW(load(reference.substr(0, length)), FileError) << length;
}

TEST_F(Safetensors, SurvivesFlippedBitsAndBytes) {
  DamageCount count;
  read_damaged(
      reference, 3000, 3,
      [&](const std::string& bytes, const std::string& what) {
        for (const auto& [name, x] : load(bytes).tensors)
          ASSERT_LE(static_cast<std::size_t>(x.numel()) * size_of(x.dtype()), bytes.size()) << what;
      },
      count);
  EXPECT_GT(count.accepted, 100) << "changes of data and names";
  EXPECT_GT(count.refused, 100);
}

TEST_F(Safetensors, LoadsOntoADevice) {
  write_bytes(path_, reference);
  const SafetensorsFile file = load_safetensors(path_, Device::parse("sim:0"));
  EXPECT_EQ(describe(file.at("weight")), "(2, 2) f32 on sim:0");
  save_safetensors(path_, file);
  EXPECT_THAT(load_safetensors(path_).at("weight").to_vector<float>(), ElementsAre(0, 0, 0, 0))
      << "what is read from sim is zero";
}

TEST_F(Safetensors, RejectsADestinationWithRepeatedElements) {
  write_bytes(path_, reference);
  const SafetensorsReader reader(path_);
  const Tensor one = zeros({1}), shared = one.alias({{2, 2}, {0, 0}, 0});
  EXPECT_EQ(error_of<ValueError>([&] { reader.read("weight", shared); }),
            "[read] tensor 'weight' cannot be read into elements that share memory: (2, 2) f32 on cpu");
  EXPECT_EQ(one.item(), 0.0);
}

TEST_F(Safetensors, TakesTimeLinearInTheNumberOfTensors) {
  const auto seconds = [&](int count) {
    SafetensorsFile file;
    const Tensor one = zeros({1});
    for (int i = 0; i < count; ++i) file.tensors.emplace_back("model.layer.weight." + std::to_string(i), one);
    const CpuTimer timer;
    save_safetensors(path_, file);
    return timer.seconds();
  };
  const double few = std::min(seconds(1000), seconds(1000));
  EXPECT_LT(seconds(40'000), 4 * 40 * few) << "quadratic: 1600 times as long";
}

}  // namespace
}  // namespace poolgrad
