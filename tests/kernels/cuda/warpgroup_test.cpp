// Warpgroup products: the layout of a matrix in shared memory and the results, on a GPU and on the emulated device.
#include "tests/kernels/cuda/warpgroup_products.h"

namespace poolgrad::kernels::cuda {
namespace {

/// PTX ISA, "Swizzling Modes": bits 4 to 6 of a byte address are XORed with bits 7 to 9; in the 64-byte mode, bits 4
/// and 5 with bits 7 and 8.
template <int Depth>
void expect_swizzled() {
  constexpr PanelRows<warpgroup_rows, Depth> staged{0};
  constexpr int width = Depth < 64 ? 64 : 128;  // bytes
  for (int row = 0; row < warpgroup_rows; ++row)
    for (int chunk = 0; chunk < Depth / 8; ++chunk) {
      const int panel = chunk * 16 / width, plain = panel * warpgroup_rows * width + row * width + chunk * 16 % width;
      const int swizzled = plain ^ (plain >> 7 & (width / 16 - 1)) << 4;
      EXPECT_EQ(staged.at(row, chunk) * 16, swizzled) << "row " << row << ", chunk " << chunk << " of " << Depth;
    }
}

TEST(PanelRows, FollowTheSwizzleOfThePtxIsa) {
  expect_swizzled<32>();
  expect_swizzled<64>();
  expect_swizzled<128>();
}

TEST(StagedMatrix, HasTheDescriptorOfThePtxIsa) {
  const auto field = [](std::uint64_t descriptor, int from, int bits) {
    return descriptor >> from & ((1u << bits) - 1);
  };
  struct Expected {
    StagedMatrix matrix;
    std::uint64_t start, eight_rows, swizzle, beyond;  // bytes, bytes, mode, bytes
  };
  const Expected all[] = {
      {StagedMatrix::columns(PanelRows<warpgroup_rows, 64>{512}, 6), 512 * 16 + 96, 1024, 1, 8192},
      {StagedMatrix::columns(PanelRows<warpgroup_rows, 128>{1024}, 10), 1024 * 16 + 8192 + 32, 1024, 1, 8192},
      {StagedMatrix::columns(PanelRows<warpgroup_rows, 32>{256}, 2), 256 * 16 + 32, 512, 2, 4096},
      {StagedMatrix::rows(PanelRows<warpgroup_rows, 64>{512}, 48), 512 * 16 + 48 * 128, 1024, 1, 8192},
      {StagedMatrix::rows(PanelRows<warpgroup_rows, 128>{0}, 16), 16 * 128, 1024, 1, 8192},
      {StagedMatrix::rows(PanelRows<warpgroup_rows, 32>{0}, 32), 32 * 64, 512, 2, 4096},
  };
  for (const Expected& e : all) {
    const std::uint64_t found = e.matrix.descriptor(0x18400);
    EXPECT_EQ(field(found, 0, 14) << 4, 0x18400 + e.start);
    EXPECT_EQ(field(found, 16, 14) << 4, e.beyond);
    EXPECT_EQ(field(found, 32, 14) << 4, e.eight_rows);
    EXPECT_EQ(field(found, 49, 3), 0u) << "offset of the base";
    EXPECT_EQ(field(found, 62, 2), e.swizzle);
  }
}

template <class S, int Depth>
void expect_products() {
  for (const bool adds : {false, true}) {
    EXPECT_EQ((multiply<S, Depth, Product::scores>(adds).wrong), 0) << Depth << " columns, seed " << test_seed();
    EXPECT_EQ((multiply<S, Depth, Product::scores_of_staged>(adds).wrong), 0)
        << Depth << " columns, seed " << test_seed();
    EXPECT_EQ((multiply<S, Depth, Product::scores_of_128>(adds).wrong), 0) << Depth << " columns, seed " << test_seed();
    EXPECT_EQ((multiply<S, Depth, Product::results>(adds).wrong), 0) << Depth << " columns, seed " << test_seed();
  }
}

TEST_F(Warpgroup, MultipliesRowsOfEveryWidth) {
  expect_products<BFloat16, 32>();
  expect_products<BFloat16, 64>();
  expect_products<BFloat16, 128>();
  expect_products<Half, 32>();
  expect_products<Half, 64>();
  expect_products<Half, 128>();
}

}  // namespace
}  // namespace poolgrad::kernels::cuda
