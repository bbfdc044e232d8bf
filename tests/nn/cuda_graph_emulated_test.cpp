// Recorded steps with undefined behavior on a GPU, which the emulated device refuses.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "allocator/caching_allocator.h"
#include "allocator/memory/cuda_memory.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/graph.h"

namespace poolgrad::nn {
namespace {

TEST(GraphOnTheEmulatedDevice, MemoryOutlivesAReadingStreamWhenAnotherIsDestroyed) {
  const Device gpu{DeviceType::cuda, 0};
  const std::unique_ptr<CudaDriver> driver = make_cuda_driver(0);
  for (int repeat = 0; repeat < 10; ++repeat) {
    const Stream gone{gpu, driver->stream_create()}, reader{gpu, 78};
    Tensor y, result;
    std::optional<Graph> graph(std::in_place, gpu);
    graph->capture([&] { y = full({1000}, 3.0, {DType::f32, gpu}) * 2.0; });
    for (const Stream stream : {gone, reader}) {
      const StreamGuard guard(stream);
      graph->replay();
      if (stream == reader) result = y + 1.0;
    }
    allocator_for(gpu).stream_destroyed(gone);
    driver->stream_destroy(gone.id);
    y = Tensor();
    graph.reset();
    const StreamGuard guard(reader);
    EXPECT_TRUE(bit_equal(result, full({1000}, 7.0)));
  }
}

}  // namespace
}  // namespace poolgrad::nn
