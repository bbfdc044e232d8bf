#include "allocator/base/sparse_array.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace poolgrad {
namespace {

class SparseArrayTest : public ::testing::Test {
 protected:
  const std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t per_page_ = page_ / sizeof(std::uint64_t);
  SparseArray<std::uint64_t> array_{4096 * per_page_};

  bool is_resident(std::size_t page) const {
    unsigned char resident = 0;
    EXPECT_EQ(mincore(&array_[page * per_page_], page_, &resident), 0);
    return (resident & 1) != 0;
  }
  bool populates() const {
#ifdef MADV_POPULATE_WRITE
    return madvise(&array_[4095 * per_page_], page_, MADV_POPULATE_WRITE) == 0;
#else
    return false;
#endif
  }
};

TEST_F(SparseArrayTest, CountsWhatWasTouchedAlone) {
  array_.touch(5 * per_page_ + 3);
  array_.touch(5 * per_page_ + 7);
  array_[5 * per_page_ + 3] = 1;
  EXPECT_EQ(array_.bytes(), page_);
  EXPECT_TRUE(array_.is_touched(5 * per_page_));
  EXPECT_FALSE(array_.is_touched(6 * per_page_));
  EXPECT_FALSE(is_resident(6));
}

TEST_F(SparseArrayTest, TakesPagesInARowTogetherButFewAheadOfNeed) {
  constexpr std::size_t pages = 1000;
  const bool together = populates();
  std::size_t came_alone = 0;
  for (std::size_t page = 0; page < pages; ++page) {
    came_alone += !array_.is_touched(page * per_page_);
    array_.touch(page * per_page_);
    array_[page * per_page_] = page + 1;
  }
  EXPECT_LT(came_alone, together ? pages / 10 : pages + 1);
  EXPECT_GE(array_.bytes(), pages * page_);
  EXPECT_LE(array_.bytes(), (pages + 32) * page_);
  // What is counted is there, and nothing else.
  for (std::size_t page = 0; page < 2 * pages; ++page) {
    ASSERT_EQ(is_resident(page), array_.is_touched(page * per_page_)) << page;
    ASSERT_EQ(array_[page * per_page_], page < pages ? page + 1 : 0) << page;
  }
}

TEST_F(SparseArrayTest, HasNoPagesBehindItsEnd) {
  for (std::size_t page = 0; page < 4096; ++page) array_.touch(page * per_page_);
  EXPECT_EQ(array_.bytes(), 4096 * page_);
}

TEST_F(SparseArrayTest, GivesBackWhatHoldsNothing) {
  for (std::size_t page = 0; page < 100; ++page) array_.touch(page * per_page_);
  array_[50 * per_page_] = 1;
  array_.trim();
  EXPECT_EQ(array_.bytes(), page_);
  EXPECT_TRUE(array_.is_touched(50 * per_page_));
  EXPECT_FALSE(is_resident(51));
}

}  // namespace
}  // namespace poolgrad
