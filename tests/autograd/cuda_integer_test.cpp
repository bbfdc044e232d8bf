// Operators on integers and bools on cuda:0 give the CPU's results, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/autograd/integer_operators.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

std::vector<DType> dtypes_taken(Takes takes) {
  switch (takes) {
    case Takes::numbers: return {DType::i64, DType::i32, DType::u8};
    case Takes::bools: return {DType::boolean};
    case Takes::indices: return {DType::i64};
    default: return {DType::i64, DType::i32, DType::u8, DType::boolean};
  }
}

class IntegerOperatorTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  const IntegerOperators& row() const { return integer_operators()[GetParam()]; }
};

TEST_P(IntegerOperatorTest, MatchesTheCpuBitsOnCudaInEveryListedDtype) {
  const Device device{DeviceType::cuda, 0};
  Generator generator(test_seed());
  for (const DType dtype : dtypes_taken(row().takes))
    for (const Shape& shape : {Shape{3, 4}, Shape{37, 70}}) {
      const auto numbers = [&](std::int64_t low, std::int64_t high) {
        return to(randint(low, high, shape, {.dtype = DType::i64}, generator), dtype);
      };
      const Tensor x = numbers(dtype == DType::u8 || dtype == DType::boolean ? 0 : -4, dtype == DType::boolean ? 2 : 6),
                   y = numbers(0, dtype == DType::boolean ? 2 : 3);
      const std::vector<Tensor> expected = row().run(x, y), found = row().run(to(x, device), to(y, device));
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].device(), device);
        EXPECT_EQ(found[i].dtype(), expected[i].dtype());
        EXPECT_TRUE(bit_equal(to(found[i], cpu), expected[i]))
            << row().names[0] << ", result " << i << " of " << to_string(shape) << " " << to_string(dtype) << ", seed "
            << test_seed();
      }
    }
}

std::string name_of_row(const ::testing::TestParamInfo<std::size_t>& info) {
  std::string name = integer_operators()[info.param].names[0];
  return name.starts_with("operator") ? "operator" + std::to_string(info.param) : name;
}
INSTANTIATE_TEST_SUITE_P(Cuda, IntegerOperatorTest, ::testing::Range<std::size_t>(0, integer_operators().size()),
                         name_of_row);

TEST(IntegerOperators, AreCounted) {
  std::size_t names = 0, in_dtypes = 0;
  for (const IntegerOperators& row : integer_operators()) {
    names += row.names.size();
    in_dtypes += row.names.size() * dtypes_taken(row.takes).size();
  }
  std::printf("%zu operators in %zu rows, in all their dtypes of integers and bools: %zu\n", names,
              integer_operators().size(), in_dtypes);
  RecordProperty("operators_times_dtypes", static_cast<int>(in_dtypes));
}

}  // namespace
}  // namespace poolgrad::testing
