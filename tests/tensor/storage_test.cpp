#include "tensor/storage.h"

#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/memory_scope.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

std::uint64_t live_bytes() { return allocator_for(cpu).statistics().requested_bytes.current; }

std::uint64_t live_bytes(Category category) {
  return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(category)].current;
}

TEST(Storage, ComesFromThePoolAndGoesBackToIt) {
  const std::uint64_t before = live_bytes();
  {
    const Storage storage(cpu, 1000);
    EXPECT_EQ(live_bytes(), before + 1000);
    EXPECT_EQ(storage.bytes(), 1000u);
    EXPECT_EQ(storage.device(), cpu);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(storage.data()) % 64, 0u);
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST(Storage, OfNoBytesStillHasAnAddressOfItsOwn) {
  const Storage a(cpu, 0), b(cpu, 0);
  EXPECT_NE(a.data(), nullptr);
  EXPECT_NE(a.data(), b.data());
}

TEST(Storage, LivesAsLongAsItsLastTensor) {
  const std::uint64_t before = live_bytes();
  Tensor view;
  {
    const Tensor x = zeros({100}, {.dtype = DType::f64});
    view = x.alias(sliced(x.geometry(), 0, 40, 60, 1));
  }
  EXPECT_EQ(live_bytes(), before + 800);
  EXPECT_EQ(view.to_vector<double>(), std::vector<double>(20, 0.0));
  view = Tensor();
  EXPECT_EQ(live_bytes(), before);
}

TEST(Storage, IsTaggedByTheScopesAlive) {
  const std::uint64_t before = live_bytes(Category::parameter);
  Tensor weight;
  {
    const MemoryScope scope("layer", Category::parameter);
    weight = zeros({10});
  }
  const Tensor other = zeros({10});
  EXPECT_EQ(live_bytes(Category::parameter), before + 40);
  weight = Tensor();
  EXPECT_EQ(live_bytes(Category::parameter), before);
}

TEST(Storage, CountsItsVersions) {
  Storage storage(cpu, 8);
  EXPECT_EQ(storage.version(), 0u);
  storage.bump_version();
  storage.bump_version();
  EXPECT_EQ(storage.version(), 2u);
}

}  // namespace
}  // namespace poolgrad
