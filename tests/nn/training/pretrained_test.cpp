// Weights of other programs, by rules. tests/attention/modules/load_language_model_test.cpp loads whole models.
#include "nn/training/pretrained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/operators.h"
#include "nn/layers.h"
#include "tensor/creation.h"
#include "tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::TemporaryFolder;

/// Two layers "0" and "2", (4, 3) and (2, 4), with an activation between them.
struct Mlp : Sequential {
  explicit Mlp(DType dtype = DType::f32)
      : Sequential(std::make_unique<Linear>(3, 4, LinearOptions{}, ParameterOptions{.dtype = dtype}), GELU(),
                   std::make_unique<Linear>(4, 2, LinearOptions{.bias = false}, ParameterOptions{.dtype = dtype})) {}
  std::vector<double> values(const std::string& name) const {
    return to(*entry_of(named_tensors(), name), DType::f64).detach().to_vector<double>();
  }
};

class ImportWeights : public ::testing::Test {
 protected:
  void save(std::vector<std::pair<std::string, Tensor>> tensors) {
    tensors.emplace_back("fits", counted(0, {2, 4}));
    save_safetensors(path_, {tensors, {}});
  }
  StartingWeights load(const std::string& rules) { return import_weights(path_, rules, model_); }
  /// The refusal of rules after one that fits.
  template <class E>
  std::string refusal(const std::string& rules) {
    const std::vector<double> before = all_values();
    const std::string text = error_of<E>([&] { load("2.weight = fits\n" + rules); });
    EXPECT_EQ(all_values(), before) << "a refused file changes nothing";
    return text;
  }
  std::vector<double> all_values() const {
    std::vector<double> all;
    for (const auto& [name, tensor] : model_.named_tensors()) {
      const std::vector<double> values = model_.values(name);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  static Tensor counted(double first, const Shape& shape, DType dtype = DType::f32) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    const double last = first + static_cast<double>(count);
    return to(reshape(arange(first, last, 1, {.dtype = DType::f64}), shape), dtype);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("other.safetensors");
  Mlp model_;
};

TEST_F(ImportWeights, MatchesNumbersAndCastsFloatingDtypes) {
  for (const DType own : {DType::f64, DType::f32, DType::bf16})
    for (const DType there : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      Mlp model(own);
      save({{"layers.0.w", counted(0, {4, 3}, there)},
            {"layers.2.w", counted(20, {2, 4}, there)},
            {"b", counted(-2, {4}, there)}});
      const StartingWeights weights = import_weights(path_, "*.weight = layers.*.w  # both\n0.bias = b\n", model);
      EXPECT_EQ(weights.taken, 3);
      ASSERT_EQ(weights.left.size(), 1u);
      EXPECT_EQ(weights.left[0].name, "fits") << "unused";
      EXPECT_EQ(model.values("0.weight"), counted(0, {12}).to_vector<double>());
      EXPECT_EQ(model.values("2.weight"), counted(20, {8}).to_vector<double>());
      EXPECT_EQ(model.values("0.bias"), (std::vector<double>{-2, -1, 0, 1}));
    }
}

TEST_F(ImportWeights, TransposesJoinsAndSplits) {
  const Tensor whole = counted(0, {4, 3}), second = counted(50, {4, 2});
  for (const DType there : {DType::f32, DType::bf16}) {
    save({{"top", to(slice(whole, 0, 0, 1).copy(), there)},
          {"rest", to(transpose(slice(whole, 0, 1, 4), 0, 1).copy(), there)},
          {"pair", to(cat({ones({4, 2}), second}, 1).copy(), there)}});
    const StartingWeights weights = load("0.weight = top + rest^T\n2.weight = pair^T[1/2]\n");
    EXPECT_EQ(weights.taken, 2);
    EXPECT_EQ(model_.values("0.weight"), whole.to_vector<double>());
    EXPECT_EQ(model_.values("2.weight"), transpose(second, 0, 1).copy().to_vector<double>());
  }
}

TEST_F(ImportWeights, ReportsMissingAndUnusedTensors) {
  save({{"w", counted(0, {4, 3})}, {"step", from_data<std::int64_t>({7}, {})}, {"extra", zeros({0, 5})}});
  const StartingWeights weights = load("0.weight = w\n3.weight = extra\n");
  EXPECT_EQ(weights.taken, 1);
  std::vector<std::string> lines;
  for (const auto& [name, here, there] : weights.left) lines.push_back(name + "|" + here + "|" + there);
  EXPECT_EQ(lines, (std::vector<std::string>{"0.bias|(4,) f32|", "2.weight|(2, 4) f32|", "extra||(0, 5) f32",
                                             "fits||(2, 4) f32", "step||() i64"}));
}

TEST_F(ImportWeights, RefusesAnIncompleteModelOnRequest) {
  save({{"w", counted(0, {4, 3})}, {"b", zeros({4})}, {"step", zeros({1})}});
  const std::string rules = "0.weight = w\n2.weight = fits\n";
  const std::vector<double> before = all_values();
  const auto refused = [&](const std::string& more) {
    return error_of<FileError>([&] { import_weights(path_, rules + more, model_, true); });
  };
  EXPECT_EQ(refused(""), "[load] " + path_ + ": 0.bias (4,) f32 is missing");
  EXPECT_EQ(refused("0.bias = b\n2.bias = b"),
            "[load] " + path_ + ": 2.bias (4,) f32 (made of b) is there, but not in the model");
  EXPECT_EQ(all_values(), before);
  EXPECT_EQ(import_weights(path_, rules + "0.bias = b", model_, true).left.size(), 1u) << "no rule names step";
}

TEST_F(ImportWeights, RefusesOtherShapesInOneSentence) {
  save({{"w", counted(0, {3, 4})},
        {"n", from_data<std::int64_t>({1, 2, 3, 4}, {4})},
        {"b", zeros({5})},
        {"deep", zeros({2, 3, 1})}});
  const std::string start = "[load] " + path_ + ": ";
  EXPECT_EQ(refusal<FileError>("0.weight = w"),
            start + "0.weight (made of w) is (3, 4) f32 there, but (4, 3) f32 in the model");
  EXPECT_EQ(refusal<FileError>("0.bias = n"),
            start + "0.bias (made of n) is (4,) i64 there, but (4,) f32 in the model");
  EXPECT_EQ(refusal<FileError>("0.weight = w + b"),
            start + "'b' is (5,) f32, which cannot follow (3, 4) in '0.weight'");
  EXPECT_EQ(refusal<FileError>("0.weight = w[0/2]"),
            start + "'w' is (3, 4) f32, which does not divide into 2 equal parts");
  EXPECT_EQ(refusal<FileError>("0.bias = deep^T"),
            start + "'deep' is (2, 3, 1) f32, but only two dimensions can be transposed");
  EXPECT_EQ(refusal<FileError>("0.weight = w + k"), start + "'k' is missing, a part of '0.weight'");
  EXPECT_EQ(error_of<FileError>([&] { load("0.weight = k"); }), start + "no tensor fits the model");
  EXPECT_EQ(refusal<ValueError>("0.weight = w\n0.weight = b"), "[import] two rules make '0.weight'");
}

TEST_F(ImportWeights, RefusesTensorsOfForeignDtypes) {
  const std::string header =
      R"({"w":{"dtype":"F8_E4M3","shape":[4,3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[4],"data_offsets":[12,28]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  testing_support::write_bytes(path_, bytes + header + std::string(28, '\0'));
  const StartingWeights weights = load("0.bias = b\nelsewhere = b");
  EXPECT_EQ(weights.taken, 1);
  ASSERT_EQ(weights.left.size(), 3u) << "two of the model are missing, and b is not unused";
  EXPECT_EQ(weights.left[2].name + " " + weights.left[2].there, "w F8_E4M3");
  EXPECT_THAT(refusal<FileError>("0.weight = b + w"), HasSubstr("its dtype F8_E4M3 is not supported"));
}

TEST_F(ImportWeights, NamesTheLineOfAMalformedRule) {
  save({{"w", counted(0, {4, 3})}});
  for (const char* rule :
       {"0.weight w", "0.weight =", "= w", "*.weight = w", "0.weight = w +", "a b = w", "0.weight = w[2/2]",
        "0.weight = w[-1/2]", "0.weight = w[1]", "0.weight = w]", "0.weight = w = w", "0.weight^T = w",
        "0.weight[0/2] = w", "0.weight = w[0/2]^T", "0.weight = w[0/99999999999999999999]"})
    EXPECT_THAT(refusal<ValueError>(rule), HasSubstr("[import] rule in line 2, ")) << rule;
}

TEST_F(ImportWeights, RefusesRowsBeyondTheRangeOfSizes) {
  const std::string rows = "4611686018427387904";  // 2^62, of no bytes
  std::string header;
  for (const char* name : {"a", "b"})
    header += (header.empty() ? "{\"" : ",\"") + std::string(name) + R"(":{"dtype":"F32","shape":[)" + rows +
              R"(,0],"data_offsets":[0,0]})";
  header += "}";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  testing_support::write_bytes(path_, bytes + header);
  EXPECT_THAT(refusal<FileError>("0.weight = a + b"),
              EndsWith("which cannot follow (4611686018427387904, 0) in '0.weight'"));
}

}  // namespace
}  // namespace poolgrad::nn
