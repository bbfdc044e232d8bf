// A trace attributes the memory that tensor functions allocate themselves to the line of this file that called them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"
#include "tensor/tensor.h"
#include "tests/call_sites.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing_support::expect_this_line;
using testing_support::TemporaryFolder;

TEST(TensorCallSites, AreTheLinesOfTheCalls) {
  Tensor x = arange(0, 12);
  const Tensor turned = x.alias({{4, 3}, {1, 4}, 0}), device = zeros({3}, {.device = {DeviceType::sim, 0}});
  expect_this_line([&] { turned.copy(); });
  expect_this_line([&] { turned.on_host(); });
  expect_this_line([&] { device.on_host(); });
  expect_this_line([&] { x.alias({{11}, {1}, 0}).copy_from(x.alias({{11}, {1}, 1})); });
  expect_this_line([&] { bit_equal(turned, turned); });
}

TEST(TensorCallSites, CoverReadingAndWritingFiles) {
  const TemporaryFolder folder;
  const std::string array = folder.file("x.npy"), file = folder.file("x.safetensors");
  const Tensor turned = arange(0, 12).alias({{4, 3}, {1, 4}, 0});
  expect_this_line([&] { save_npy(array, turned); });
  expect_this_line([&] { load_npy(array); });
  expect_this_line([&] { save_safetensors(file, {{{"x", turned}}, {}}); });
  expect_this_line([&] { load_safetensors(file); });
  expect_this_line([&] { SafetensorsReader reader(file); });
}

}  // namespace
}  // namespace poolgrad
