// Random setups and random scripts. One seed gives the same result on every machine: only the engine's bits are used.
#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "tests/allocator/fuzz/operation.h"
#include "tests/allocator/fuzz/setup.h"

namespace poolgrad::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  /// Log-uniform in [1, 2^octaves].
  std::size_t any_size(std::uint64_t octaves) { return 1 + below(std::uint64_t{1} << (1 + below(octaves))); }
  template <class T, std::size_t n>
  T pick(const std::array<T, n>& choices) {
    return choices[below(n)];
  }

 private:
  std::mt19937_64 engine_;
};

/// Properties of a script.
struct Shape {
  std::uint32_t slots = 60;
  std::uint64_t octaves = 22;  // of the largest size
  std::uint32_t streams = 2;
  unsigned threads = 1;
  std::uint64_t verify_every = 64;
  bool fail_calls = false;
  bool change_budget = false;
};

inline PoolSetup random_setup(Random& random) {
  PoolSetup setup;
  setup.device = random.pick(std::array{"host", "sim", "handles"});
  setup.granularity = random.pick(std::array{page, page, 64 * KiB});
  if (setup.device == std::string("handles")) setup.granularity = random.pick(std::array{page, 256 * KiB});
  setup.config.budget = setup.granularity * (1 + random.below(std::size_t{1} << random.below(8)));
  if (setup.device != std::string("host") && random.one_in(3)) {
    // Far below the budget handles are large, growth is larger than the request, and stitch_idle moves idle pages.
    if (setup.device == std::string("handles")) setup.granularity = 4 * KiB;
    setup.config.budget = setup.granularity * (512 + random.below(1 << 14));
    setup.capacity = std::max(setup.capacity, setup.config.budget);
  }
  if (random.one_in(8)) {
    setup.capacity = setup.config.budget;
    setup.config.budget = random.one_in(2) ? 0 : setup.capacity * 2;
  }
  setup.delayed = !random.one_in(3);
  setup.config.magazines = !random.one_in(3);
  setup.config.stitch = !random.one_in(4);
  setup.config.stitch_idle = random.one_in(2);
  setup.config.deterministic = random.one_in(3);
  if (random.one_in(4)) setup.config.decay = 1 + random.below(200);
  if (random.one_in(8)) setup.config.trace = 256;
  if (random.one_in(8)) setup.config.alignment = std::size_t{64} << random.below(5);
  if (random.one_in(6))
    setup.config.mode =
        random.pick(std::array{AllocatorMode::lightweight, AllocatorMode::none, AllocatorMode::planned});
  return setup;
}

inline Shape random_shape(Random& random, const PoolSetup& setup) {
  Shape shape;
  shape.slots = static_cast<std::uint32_t>(2 + random.below(std::size_t{1} << (2 + random.below(7))));
  const std::size_t budget = setup.config.budget == 0 ? setup.capacity : setup.config.budget;
  std::uint64_t octaves = 1;
  while ((std::size_t{1} << octaves) < budget) ++octaves;
  shape.octaves = std::max<std::uint64_t>(10, octaves - random.below(octaves > 12 ? octaves - 9 : 2));
  shape.streams = static_cast<std::uint32_t>(1 + random.below(4));
  shape.fail_calls = random.one_in(4);
  shape.change_budget = random.one_in(3);
  return shape;
}

inline Script random_script(Random& random, const PoolSetup& setup, const Shape& shape, std::size_t operations) {
  using Kind = Operation::Kind;
  std::array<std::size_t, 6> favourites{};  // sizes that repeat, as in training steps
  for (std::size_t& size : favourites) size = random.any_size(shape.octaves);
  const auto size = [&]() -> std::size_t {
    const std::size_t granularity = setup.granularity;
    switch (random.below(16)) {
      case 0: return random.below(300);
      case 1: return granularity * random.any_size(4) - random.below(3) + random.below(3);
      case 2: return std::size_t{512} << random.below(12);
      case 3: return random.one_in(50) ? SIZE_MAX - random.below(std::uint64_t{1} << random.below(63)) : 0;
      case 4:
      case 5:
      case 6: return random.any_size(shape.octaves);
      default: return random.pick(favourites);
    }
  };
  std::vector<std::uint32_t> empty;
  std::vector<std::uint32_t> taken;  // as the generator expects: it does not foresee refusals
  for (std::uint32_t slot = 0; slot < shape.slots; ++slot) empty.push_back(slot);
  const auto move_one = [&](std::vector<std::uint32_t>& from, std::vector<std::uint32_t>& to) {
    std::swap(from[random.below(from.size())], from.back());
    to.push_back(from.back());
    from.pop_back();
    return to.back();
  };
  Script script;
  script.reserve(operations);
  bool filling = true;
  while (script.size() < operations) {
    Operation operation;
    operation.stream = static_cast<std::uint32_t>(random.below(shape.streams));
    operation.thread = static_cast<std::uint8_t>(random.below(shape.threads));
    if (empty.empty() || random.one_in(shape.slots * 4)) filling = false;
    if (taken.empty()) filling = true;
    const std::uint64_t choice = random.below(1000);
    if (choice < 4) {
      operation.kind = Kind::trim;
      operation.bytes = random.one_in(4) ? SIZE_MAX : random.any_size(shape.octaves);
    } else if (choice < 12) {
      operation.kind = Kind::finish_events;
    } else if (choice < 20 && shape.streams > 1) {
      operation.kind = Kind::order;
      operation.slot = static_cast<std::uint32_t>(random.below(shape.streams));
    } else if (choice < 22 && shape.streams > 1) {
      operation.kind = Kind::stream_destroyed;
    } else if (choice < 25) {
      operation.kind = Kind::begin_step;
    } else if (choice < 28 && shape.change_budget) {
      operation.kind = Kind::set_budget;
      operation.bytes = setup.granularity * random.any_size(7);
    } else if (choice < 31 && shape.fail_calls) {
      operation.kind = Kind::fail_call;
      operation.bytes = 1 + random.below(8);
    } else if (choice < 34 && operation.thread != 0) {
      operation.kind = Kind::end_thread;
    } else if (choice < 50 && !taken.empty() && shape.streams > 1) {
      operation.kind = Kind::use;
      operation.slot = taken[random.below(taken.size())];
    } else if (choice < 80 && !taken.empty()) {
      operation.kind = Kind::expand;
      operation.slot = taken[random.below(taken.size())];
      operation.bytes = size();
    } else if (random.one_in(shape.verify_every)) {
      operation.kind = Kind::verify;
    } else if (!empty.empty() && (filling ? random.below(10) < 7 : random.below(10) < 3)) {
      operation.kind = Kind::allocate;
      operation.slot = move_one(empty, taken);
      operation.bytes = size();
      if (random.one_in(10)) operation.alignment = std::size_t{1} << random.below(random.one_in(10) ? 22 : 13);
      operation.category = random.pick(std::array{Category::activation, Category::activation, Category::gradient,
                                                  Category::workspace, Category::parameter});
    } else if (!taken.empty()) {
      operation.kind = Kind::free;
      operation.slot = move_one(taken, empty);
      if (!random.one_in(5)) operation.stream = Operation::own_stream;
    }
    script.push_back(operation);
  }
  return script;
}

}  // namespace poolgrad::testing
