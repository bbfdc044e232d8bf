// Compares a kernel on the CPU and on cuda:0, for operands of any layout, with the memory around them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels::testing {

/// A host array and a copy of its bytes on cuda:0.
class Twin {
 public:
  explicit Twin(TestArray& host) : host_(host), device_(host.bytes()) {}
  View on_device() const {
    View view = host_;
    view.data = device_.data() + offset();
    return view;
  }
  /// Copies the device array back to the host.
  void fetch() const {
    const std::vector<std::uint8_t> bytes = device_.read();
    std::copy(bytes.begin(), bytes.end(), host_.view().as<std::uint8_t>() - offset());
  }
  std::vector<std::uint8_t> bytes() const { return device_.read(); }

 private:
  std::ptrdiff_t offset() const { return host_.view().as<const std::uint8_t>() - host_.bytes().data(); }
  TestArray& host_;
  DeviceArray<std::uint8_t> device_;
};

inline constexpr double bits = 0;  // tolerance 0: equal bits
using Run = std::function<void(Stream, const std::vector<View>&)>;

/// Calls run(stream, operands) on the CPU and on cuda:0, outputs first, and compares the outputs, which may also be
/// inputs. The device runs `repeats` times, each time with another order of threads, and must give the same bits.
inline void expect_same(double slack, const std::vector<TestArray*>& outputs, const std::vector<TestArray*>& inputs,
                        const Run& run, int repeats = 1) {
  std::vector<std::unique_ptr<Twin>> twins;
  std::vector<std::vector<std::uint8_t>> found;
  std::vector<View> on_cpu;
  for (const auto& part : {outputs, inputs})
    for (TestArray* array : part) on_cpu.push_back(array->view());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<View> on_device;
    twins.clear();
    for (const auto& part : {outputs, inputs})
      for (TestArray* array : part) {
        twins.push_back(std::make_unique<Twin>(*array));
        on_device.push_back(twins.back()->on_device());
      }
    run(cuda0, on_device);
    for (std::size_t k = 0; repeats > 1 && k < outputs.size(); ++k) {
      if (repeat == 0)
        found.push_back(twins[k]->bytes());
      else
        EXPECT_EQ(twins[k]->bytes() == found[k], true) << "output " << k << ", another order; seed " << test_seed();
    }
  }
  run({}, on_cpu);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    TestArray& out = *outputs[k];
    const std::vector<std::uint8_t> expected = out.bytes();
    std::vector<double> values(static_cast<std::size_t>(out.count()));
    for (std::int64_t i = 0; i < out.count(); ++i) values[static_cast<std::size_t>(i)] = out[i];
    twins[k]->fetch();
    if (slack == bits)
      EXPECT_EQ(out.bytes() == expected, true)
          << "output " << k << ", " << out.count() << " " << to_string(out.dtype()) << "; seed " << test_seed();
    else
      expect_elements(
          out, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; }, slack, slack);
  }
}

inline const std::vector<Shape> twin_shapes = {{}, {0}, {1}, {7}, {33}, {1025}, {3, 0, 2}, {4, 1, 5, 7}, {19, 131}};

}  // namespace poolgrad::kernels::testing
