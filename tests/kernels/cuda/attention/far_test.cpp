// Attention cases that need the emulated device. Rows more than 2^31 elements apart take little memory, because every
// row has its own address and all addresses map one page. Results have the bits of adjacent rows. Also: a GPU with
// little shared memory for each block.
#include <gtest/gtest.h>

#include "kernels/schedule/device_program.h"
#include "tests/kernels/cuda/attention/operands.h"
#include "tests/mma_allowed.h"

namespace poolgrad::kernels::testing {
namespace {

/// As DeviceOperands, but row r of an array lies r windows after its first row. A window is an odd number of pages, so
/// a 32-bit address faults.
class FarOperands {
 public:
  template <class... Arrays>
  explicit FarOperands(const Arrays&... arrays) {
    (add(arrays), ...);
  }
  FarOperands(const FarOperands&) = delete;
  ~FarOperands() {
    cuda::synchronize(cuda0);
    for (const Copy& copy : copies_) {
      for (std::uintptr_t r = 0; r < copy.rows; ++r) driver_->unmap(copy.base + r * copy.window, page);
      driver_->address_free(copy.base, copy.rows * copy.window);
      driver_->release(copy.handle);
    }
  }

  View operator()(View view) const {
    if (!view.data) return view;
    for (const Copy& copy : copies_) {
      const auto* at = view.as<const std::uint8_t>();
      if (at < copy.host->data() || at > copy.host->data() + copy.host->size()) continue;
      view.data = reinterpret_cast<void*>(copy.base + static_cast<std::uintptr_t>(at - copy.host->data()));
      for (int d = 0; d < view.rank; ++d)
        if (view.strides[d] != 0) view.strides[d] += copy.further[d];
      return view;
    }
    throw std::logic_error("a view of no array");
  }
  AttentionScores operator()(AttentionScores scores) const {
    for (View* view : {&scores.bias, &scores.alibi, &scores.sinks}) *view = (*this)(*view);
    return scores;
  }
  void fetch() const {
    for (const Copy& copy : copies_)
      cuda::copy_bytes(cuda0, const_cast<std::uint8_t*>(copy.host->data()), reinterpret_cast<void*>(copy.base),
                       copy.host->size());
  }

 private:
  static constexpr std::size_t page = emulation::Device::page;
  struct Copy {
    const std::vector<std::uint8_t>* host;
    std::uintptr_t base = 0;
    std::uint64_t handle = 0;
    std::uintptr_t rows = 1, window = page;
    std::int64_t further[max_rank] = {};  // additional elements of a stride
  };

  template <class Array>
  void add(const Array& array) {
    if constexpr (requires { array.get(); }) {
      if (array) add(*array);
    } else {
      const View& near = array.view();
      if (near.count() == 0) return;
      Copy copy{&array.bytes()};
      ASSERT_LE(copy.host->size(), page);
      const int row_dimensions = near.rank == 4 ? 3 : near.rank;  // a row is dense, or one number
      for (int d = 0; d < row_dimensions; ++d) copy.rows *= static_cast<std::uintptr_t>(near.shape[d]);
      const std::uintptr_t size = size_of(near.dtype), far = (std::uintptr_t{1} << 31) * size;
      if (copy.rows > 1) copy.window = page * ((far / (copy.rows - 1) / page + 4) | 1);
      const auto step = static_cast<std::int64_t>(copy.window / size);
      for (std::int64_t d = row_dimensions - 1, windows = 1; d >= 0; windows *= near.shape[d--])
        copy.further[d] = windows * step;

      copy.base = driver_->address_reserve(copy.rows * copy.window, page);
      copy.handle = driver_->create(page).value();
      for (std::uintptr_t r = 0; r < copy.rows; ++r) {
        driver_->map(copy.base + r * copy.window, page, copy.handle);
        driver_->set_access(copy.base + r * copy.window, page);
      }
      cuda::copy_bytes(cuda0, reinterpret_cast<void*>(copy.base), copy.host->data(), copy.host->size());
      copies_.push_back(copy);
    }
  }

  const std::unique_ptr<CudaDriver> driver_ = emulation::device(0).driver();
  std::vector<Copy> copies_;
};

void expect_the_same_far_apart(ForwardProblem& p, bool in_parts) {
  const std::int64_t rows = gpu_tile_rows(compute_dtype(p.q->dtype()));
  const auto program = ProgramCache::global().get(p.schedule, rows, false);
  ASSERT_EQ(GpuForwardPlan::make(program->program(), *p.q, *p.k, *p.v).parts > 1, in_parts);
  run_there(p);
  const auto out = p.out->bytes(), lse = p.lse->bytes();
  run_there<FarOperands>(p);
  EXPECT_EQ(p.out->bytes(), out) << to_string(p.q->dtype());
  EXPECT_EQ(p.lse->bytes(), lse) << to_string(p.q->dtype());
}

TEST(CudaAttentionFar, KeyPartsSupportOffsetsBeyond2To31) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const std::int64_t queries : {1, 5}) {
      ForwardProblem p(dtype, {1, queries, 520, 4, 2, 24, 20});
      p.causal(520 - queries).with_bias({1, 4, queries, 520}).with_alibi().with_sinks();
      expect_the_same_far_apart(p, true);
    }
}

TEST(CudaAttentionFar, TilesSupportOffsetsBeyond2To31) {
  for (const bool mma : {false, true}) {
    const MmaAllowed allowed(mma);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      ForwardProblem p(dtype, {2, 70, 90, 2, 1, 32, 48});
      p.causal(20).with_alibi().with_sinks();
      expect_the_same_far_apart(p, false);
    }
  }
}

TEST(CudaAttentionFar, GradientsSupportOffsetsBeyond2To31) {
  for (const bool mma : {false, true}) {
    const MmaAllowed allowed(mma);
    for (const DType dtype : {DType::f64, DType::bf16}) {
      BackwardExample e = banded(70, 90, unbounded, 0);
      e.batch = 2, e.q_heads = e.schedule.heads = 2, e.kv_heads = 1;
      e.depth = 32, e.v_depth = 48, e.gap = 8, e.alibi = true;
      const BackwardCheck check(e, dtype);
      const BackwardCheck::Result near(check.e, dtype), far(check.e, dtype);
      run_there(check, check.e.schedule, near);
      run_there<FarOperands>(check, check.e.schedule, far);
      expect_same_bits(near, far, mma ? "by tensor cores" : "portable");
    }
  }
}

TEST(SmallSharedMemory, SendsWideF32RowsToPortableKernels) {
  const auto run = [](bool mma, std::int64_t depth) {
    const MmaAllowed allowed(mma);
    ForwardProblem p(DType::f32, {1, 20, 30, 2, 2, depth, depth});
    run_there(p);
    return p.out->bytes();
  };
  const Limited small(emulation::shared_bytes_of_block, 99 * 1024);
  EXPECT_EQ(run(true, 80), run(false, 80));
  EXPECT_NE(run(true, 64), run(false, 64));
}

}  // namespace
}  // namespace poolgrad::kernels::testing
