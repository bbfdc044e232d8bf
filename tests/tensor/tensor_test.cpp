// A Tensor is a handle to storage, geometry and dtype, with clear errors.
#include "tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/memory_scope.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing::ElementsAre;
using testing_support::all_dtypes;
using testing_support::error_of;

TEST(Tensor, EmptyHasTheShapeAndOptionsAskedFor) {
  for (const DType dtype : all_dtypes) {
    const Tensor x = Tensor::empty({2, 3}, {.dtype = dtype});
    EXPECT_EQ(x.shape(), (Shape{2, 3}));
    EXPECT_EQ(x.strides(), (Strides{3, 1}));
    EXPECT_EQ(x.dtype(), dtype);
    EXPECT_EQ(x.device(), cpu);
    EXPECT_EQ(x.numel(), 6);
    EXPECT_EQ(x.dim(), 2);
    EXPECT_EQ(x.size(-1), 3);
    EXPECT_TRUE(x.is_contiguous());
    EXPECT_EQ(x.storage()->bytes(), 6 * size_of(dtype));
    EXPECT_EQ(Tensor::empty_like(x).shape(), x.shape());
    EXPECT_EQ(Tensor::empty_like(x).dtype(), dtype);
  }
}

TEST(Tensor, MayBeZeroDimensionalOrEmpty) {
  EXPECT_EQ(Tensor::empty({}).numel(), 1);
  EXPECT_EQ(Tensor::empty({3, 0}).numel(), 0);
  EXPECT_TRUE(Tensor::empty({3, 0}).to_vector<float>().empty());
  EXPECT_EQ(scalar(2.5).item(), 2.5);
}

TEST(Tensor, UndefinedTensorsAreReported) {
  const Tensor undefined;
  EXPECT_FALSE(undefined.defined());
  EXPECT_FALSE(undefined.is_sole_owner());
  EXPECT_EQ(describe(undefined), "undefined");
  EXPECT_EQ(error_of<Error>([&] { undefined.shape(); }), "[shape] the tensor is undefined");
  EXPECT_EQ(error_of<Error>([&] { undefined.numel(); }), "[numel] the tensor is undefined");
  EXPECT_EQ(error_of<Error>([&] { undefined.data<float>(); }), "[data] the tensor is undefined");
  EXPECT_EQ(error_of<Error>([&] { undefined.backward(); }), "[backward] the tensor is undefined");
  EXPECT_EQ(error_of<Error>([&] { zeros({2}).copy_from(undefined); }),
            "[copy_from] the source is undefined: destination (2,) f32 on cpu");
}

TEST(Tensor, RejectsImpossibleSizes) {
  EXPECT_EQ(error_of<ShapeError>([] { Tensor::empty({-1}); }), "[shape] negative size: (-1,)");
  EXPECT_EQ(error_of<ShapeError>([] { Tensor::empty({std::int64_t{1} << 61}); }),
            "[empty] more than 2^63 - 1 bytes: (2305843009213693952,) f32");
  EXPECT_THROW(Tensor::empty({std::int64_t{1} << 60}), OutOfMemoryError);
  EXPECT_EQ(zeros({2}).numel(), 2) << "the library goes on";
}

TEST(Tensor, CopiedHandlesAreTheSameTensor) {
  const Tensor a = zeros({2}), b = a;
  EXPECT_TRUE(a.is_same(b));
  const Tensor c = a.detach();
  EXPECT_FALSE(a.is_same(c));
  EXPECT_TRUE(a.shares_storage_with(c));
  EXPECT_FALSE(a.shares_storage_with(a.copy()));
}

TEST(Tensor, SwapsTheContentsOfAllHandles) {
  const Tensor a = ones({2, 3}), handle = a, b = zeros({4}, {.dtype = DType::i64});
  const Tensor memory = a.detach();
  swap_tensors(a, b);
  EXPECT_EQ(handle.shape(), Shape({4}));
  EXPECT_EQ(handle.dtype(), DType::i64);
  EXPECT_TRUE(handle.is_same(a) && !a.is_same(b));
  EXPECT_TRUE(b.shares_storage_with(memory));
  EXPECT_EQ(b.shape(), Shape({2, 3}));
  swap_tensors(a, a);
  EXPECT_EQ(a.shape(), Shape({4}));
  EXPECT_EQ(error_of<Error>([&] { swap_tensors(a, Tensor()); }), "[swap_tensors] the tensor is undefined");
}

TEST(Tensor, ReportsSharedMemory) {
  Tensor a = zeros({2});
  EXPECT_TRUE(a.is_sole_owner());
  {
    const Tensor handle = a;
    EXPECT_FALSE(a.is_sole_owner());
  }
  {
    const Tensor view = a.detach();
    EXPECT_FALSE(a.is_sole_owner());
  }
  EXPECT_TRUE(a.is_sole_owner());
}

TEST(Tensor, DataPointsAtTheFirstElement) {
  const Tensor x = from_data({1.0f, 2.0f, 3.0f, 4.0f}, {4});
  const Tensor tail = x.alias(sliced(x.geometry(), 0, 2, 4, 1));
  EXPECT_EQ(*tail.data<float>(), 3.0f);
  EXPECT_EQ(tail.view().data, tail.data<float>());
  EXPECT_EQ(error_of<DTypeError>([&] { x.data<double>(); }), "[data] read as f64: (4,) f32 on cpu");
}

TEST(Tensor, AliasStaysInsideItsStorage) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of<ShapeError>([&] {
              x.alias({{2, 3}, {3, 1}, 1});
            }),
            "[alias] shape (2, 3) with strides (3, 1) from 1 reaches beyond the storage of (2, 3) f32 on cpu");
  EXPECT_THROW(x.alias({{2}, {-1}, 0}), ShapeError);
  EXPECT_NO_THROW(x.alias({{2}, {-1}, 1}));
  EXPECT_NO_THROW(x.alias({{0, 3}, {3, 1}, 6})) << "nothing is touched";
}

TEST(Tensor, AliasWithoutElementsIgnoresItsOffset) {
  const Tensor x = zeros({2, 3});
  const Tensor nothing = x.alias({{0}, {1}, INT64_MAX});
  EXPECT_EQ(nothing.view().data, x.view().data) << "INT64_MAX elements would not fit in 64 bits";
  EXPECT_EQ(nothing.alias({{0, 2}, {INT64_MAX, 1}, INT64_MIN}).to_vector<double>(), std::vector<double>());
}

TEST(Tensor, AliasRejects64BitOverflow) {
  const Tensor x = zeros({9});
  constexpr std::int64_t far = std::int64_t{1} << 61;
  EXPECT_THROW(x.alias({{9}, {far}, 0}), ShapeError) << "8 * 2^61 = 2^64";
  EXPECT_THROW(x.alias({{9}, {-far}, 0}), ShapeError);
  EXPECT_THROW(x.alias({{5}, {far}, 0}), ShapeError) << "4 * 2^61 = 2^63";
  EXPECT_THROW(x.alias({{2, 2, 3}, {INT64_MAX, INT64_MAX, 1}, 0}), ShapeError) << "the sum wraps, no product does";
  EXPECT_THROW(x.alias({{2, 2}, {INT64_MAX, INT64_MIN}, 0}), ShapeError);
  EXPECT_THROW(x.alias({{2}, {1}, INT64_MAX}), ShapeError);
}

TEST(Tensor, ItemReadsOneElementOfAnyDtype) {
  for (const DType dtype : all_dtypes) {
    EXPECT_EQ(full({1, 1}, 1, {.dtype = dtype}).item(), 1.0);
    const Tensor row = arange(0, 2, 1, {.dtype = dtype});
    EXPECT_EQ(row.alias(selected(row.geometry(), 0, 1)).item(), 1.0);
  }
  const std::int64_t big = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(from_data<std::int64_t>({big}, {1}).item<std::int64_t>(), big);
  EXPECT_EQ(from_data<std::int64_t>({big}, {1}).item(), 0x1p53);
  EXPECT_EQ(scalar(-2.75).item<std::int32_t>(), -2);
  EXPECT_EQ(scalar(300.0).item<std::uint8_t>(), 255);
  EXPECT_TRUE(scalar(0.5, {.dtype = DType::f16}).item<bool>());
  EXPECT_EQ(static_cast<float>(scalar(1.003906251, {.dtype = DType::f64}).item<BFloat16>()), 1.0078125f);
  EXPECT_EQ(error_of<ShapeError>([] { zeros({2}).item(); }), "[item] needs exactly one element: (2,) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([] { zeros({0}).item(); }), "[item] needs exactly one element: (0,) f32 on cpu");
}

TEST(Tensor, ToVectorReadsInRowMajorOrderAndConverts) {
  const Tensor x = from_data({0, 1, 2, 3, 4, 5}, {2, 3});
  const Tensor t = x.alias(transposed(x.geometry(), 0, 1));
  EXPECT_THAT(t.to_vector<std::int32_t>(), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(t.to_vector<double>(), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(t.to_vector<bool>(), ElementsAre(false, true, true, true, true, true));
  EXPECT_THAT(from_data({-1.9, 2.9}, {2}).to_vector<std::int64_t>(), ElementsAre(-1, 2)) << "towards zero";
}

TEST(Tensor, CopyIsRowMajorAndUnshared) {
  const Tensor x = from_data({0.0f, 1.0f, 2.0f, 3.0f}, {2, 2});
  const Tensor t = x.alias(transposed(x.geometry(), 0, 1));
  EXPECT_FALSE(t.is_contiguous());
  Tensor copy = t.copy();
  EXPECT_TRUE(copy.is_contiguous());
  EXPECT_TRUE(bit_equal(copy, t));
  copy.fill(9);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 1, 2, 3));
}

TEST(Tensor, OnHostCopiesOnlyIfNeeded) {
  const Tensor x = from_data({0.0f, 1.0f, 2.0f, 3.0f}, {2, 2});
  EXPECT_TRUE(x.on_host().shares_storage_with(x));
  const Tensor t = x.alias(transposed(x.geometry(), 0, 1));
  EXPECT_FALSE(t.on_host().shares_storage_with(t));
  EXPECT_THAT(t.on_host().to_vector<float>(), ElementsAre(0, 2, 1, 3));
}

std::uint64_t live_bytes() { return allocator_for(cpu).statistics().requested_bytes.current; }

std::uint64_t live_bytes(Category category) {
  return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(category)].current;
}

TEST(Storage, ComesFromThePoolAndReturnsToIt) {
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

TEST(Storage, HasItsOwnAddressWithZeroBytes) {
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
