// Each call to the device fails once in a program that uses every function. The shadow still agrees with the pool, and
// at the end all memory is released.
#include "tests/allocator/fuzz/episode.h"

namespace poolgrad::testing {
namespace {

Script with_failure_of(std::uint64_t call, const Script& script) {
  Script failing = {{.kind = Operation::Kind::fail_call, .bytes = call}};
  failing.insert(failing.end(), script.begin(), script.end());
  return failing;
}

// Runs the script once for each call to the device and fails that call. Returns "" or the first error.
std::string fail_every_call(const PoolSetup& setup, const Script& script) {
  PoolFuzzer whole(setup);
  std::string wrong = whole.run(script);
  if (wrong.empty() && whole.calls() < 20) wrong = "the script hardly talks to the device";
  for (std::uint64_t call = 1; wrong.empty() && call <= whole.calls(); ++call) {
    wrong = PoolFuzzer(setup).run(with_failure_of(call, script));
    if (!wrong.empty()) wrong = "call " + std::to_string(call) + " fails: " + wrong;
  }
  return wrong;
}

void expect_survival(PoolSetup setup, std::uint64_t salt) {
  Random random(test_seed() + salt);
  setup.config.budget = 7 * setup.granularity;
  const Shape shape{.slots = 10,
                    .octaves = setup.granularity == page ? 23u : 18u,
                    .streams = 3,
                    .verify_every = 8,
                    .change_budget = true};
  const Script script = random_script(random, setup, shape, 200);
  const std::string wrong = in_child([&] { return fail_every_call(setup, script); });
  if (wrong.empty()) return;
  // Show the shortest script for the first call whose failure has an effect.
  for (std::uint64_t call = 1; call <= 1000; ++call) {
    const auto failure = run_episode(setup, with_failure_of(call, script));
    ASSERT_FALSE(failure) << "call " << call << " of seed " << test_seed() << ": " << failure->text();
  }
  FAIL() << wrong;
}

class DeviceFailures : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceFailures, ::testing::Values("host", "sim", "handles"), device_name);

TEST_P(DeviceFailures, AreSurvivedAtEachCall) { expect_survival({.device = GetParam(), .granularity = 64 * KiB}, 1); }

TEST_P(DeviceFailures, AreSurvivedWhileEventsAreDelayed) {
  expect_survival({.device = GetParam(), .delayed = true}, 2);
}

TEST_P(DeviceFailures, AreSurvivedWithoutMagazinesAndWithDecay) {
  expect_survival({.device = GetParam(), .granularity = 64 * KiB, .config = {.magazines = false, .decay = 20}}, 3);
}

TEST_P(DeviceFailures, AreSurvivedWithoutThePool) {
  expect_survival({.device = GetParam(), .granularity = 64 * KiB, .config = {.mode = AllocatorMode::none}}, 4);
}

TEST(Isolation, ReportsAnExceptionOfTheChild) {
  EXPECT_EQ(in_child([]() -> std::string { throw std::runtime_error("no driver"); }), "threw: no driver");
}

}  // namespace
}  // namespace poolgrad::testing
