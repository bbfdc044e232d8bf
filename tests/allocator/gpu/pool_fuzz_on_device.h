// The pool's fuzzer on a device with its own stream ids.
#pragma once

#include <gtest/gtest.h>

#include "allocator/thread_cache/thread_cache.h"
#include "tests/allocator/fuzz/episode.h"

namespace poolgrad::testing {

/// Maps the fuzzer's streams 0, 1, ... to these streams of the device.
class MappedStreams : public MemoryAdaptor {
 public:
  MappedStreams(std::unique_ptr<DeviceMemory> inner, std::vector<std::uint64_t> streams)
      : MemoryAdaptor(std::move(inner)), streams_(std::move(streams)) {}

  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override {
    inner().fill(address, bytes, value, mapped(stream));
  }
  EventId record_event(Stream stream) override { return inner().record_event(mapped(stream)); }
  void stream_wait(Stream stream, EventId event) override { inner().stream_wait(mapped(stream), event); }

 private:
  Stream mapped(Stream stream) const {
    return {stream.device, streams_[ThreadCacheTable::handle_of(stream) % streams_.size()]};
  }
  std::vector<std::uint64_t> streams_;
};

/// Random scripts on pools over the memory of `make`, compared with a shadow after each operation. They run in a child
/// process or in this one, because a GPU driver does not survive fork(). Only failures in a child are shrunk.
enum class Isolation { in_children, none };
inline void fuzz_pool_on(const std::function<std::unique_ptr<DeviceMemory>(std::size_t)>& make, std::size_t episodes,
                         std::size_t operations, Isolation isolation = Isolation::in_children) {
  for (std::size_t episode = 0; episode < episodes; ++episode) {
    Random random(test_seed() + 1000 * episode);
    PoolSetup setup;
    setup.device = "other";
    setup.make_other = make;
    setup.capacity = 64 * page;
    setup.config.budget = page * (3 + random.below(40));
    setup.config.deterministic = random.one_in(2);
    setup.config.magazines = !random.one_in(4);
    const Shape shape{.slots = 60, .octaves = 24, .streams = 4};
    const Script script = random_script(random, setup, shape, operations);
    if (isolation == Isolation::none) {
      const std::string wrong = PoolFuzzer<CachingAllocator>(setup).run(script);
      ASSERT_EQ(wrong, "") << "episode " << episode << " of seed " << test_seed() << " on " << to_string(setup);
      continue;
    }
    const auto failure = run_episode(setup, script);
    ASSERT_FALSE(failure) << "episode " << episode << " of seed " << test_seed() << ": " << failure->text();
  }
}

}  // namespace poolgrad::testing
