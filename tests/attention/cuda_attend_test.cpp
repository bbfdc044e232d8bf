// attend() on cuda:0, the emulated device: every pattern with everything it differentiates against the definition.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention {
namespace {

using namespace testing_support;

constexpr Device gpu{DeviceType::cuda, 0};

/// attend() there, with operands and results on the CPU: moving is differentiable.
Attend on(Device device, const Pattern& pattern) {
  return [=](const Tensor& q, const Tensor& k, const Tensor& v, AttendOptions options) {
    for (Tensor* x : {&options.bias, &options.alibi, &options.sinks, &options.key_padding})
      if (x->defined()) *x = to(*x, device);
    const auto [out, lse] = attend(to(q, device), to(k, device), to(v, device), pattern, options);
    EXPECT_EQ(out.device(), device);
    return Attended{to(out, cpu), to(lse, cpu)};
  };
}

TEST(CudaAttend, FollowsTheDefinitionOfEveryPattern) {
  const Call call = make_call({1, 37, 45, 5, 5, 6, 5});
  for (const Case& one : cases_with(""))
    EXPECT_EQ(difference(outcome_of(call, on(gpu, one.pattern)), defined(call, one.m), 1e-12), "") << one.name;
}

TEST(CudaAttend, TakesEveryOption) {
  const Sizes s{2, 33, 41, 4, 2, 8, 6};
  Call call = make_call(s);
  call.options.softcap = 3.0;
  call.options.bias = normal({2, 4, 33, 41}, 3);
  call.options.sinks = normal({4}, 4);
  call.options.alibi = alibi_slopes(4, {.dtype = DType::f64});
  for (const char* name : {"window(5, 0)", "dilated nested", "documents & window"})
    for (const Case& one : cases_with(name))
      EXPECT_EQ(difference(outcome_of(call, on(gpu, one.pattern)), defined(call, one.m), 1e-12), "") << one.name;
}

TEST(CudaAttend, DropsWhatTheCpuDrops) {
  Call call = make_call({2, 33, 41, 4, 2, 8, 6});
  call.options.dropout = 0.3;
  const auto run = [&](Device device) {
    Generator generator(6);
    call.options.generator = &generator;
    return outcome_of(call, on(device, Pattern::causal()));
  };
  EXPECT_EQ(difference(run(gpu), run(cpu), 1e-12), "");
}

TEST(CudaAttend, AsksThePoolForWhatASimulatedDeviceAsksForInTheSameOrder) {
  const Sizes all[] = {{1, 33, 41, 4, 2, 8, 6}, {1, 1, 1100, 4, 2, 8, 6}, {2, 3, 700, 4, 2, 8, 150}};
  for (const Sizes& sizes : all) {
    const Call call = make_call(sizes, DType::bf16);
    for (const char* name : {"dense", "dilated nested", "dilated + window"})
      for (const Case& one : cases_with(name)) {
        const auto hash_on = [&](Device device) {
          const Tensor q = to(call.q, device).detach().set_requires_grad(), k = to(call.k, device),
                       v = to(call.v, device), ones = ones_like(q);
          CachingAllocator& pool = allocator_for(device);
          pool.reset_sequence_hash();
          const Tensor out = attend(q, k, v, one.pattern, {}).out;
          sum(out).backward();
          return pool.sequence_hash();
        };
        EXPECT_EQ(hash_on(gpu), hash_on(sim)) << one.name << " " << to_string(sizes);
      }
  }
}

}  // namespace
}  // namespace poolgrad::attention
