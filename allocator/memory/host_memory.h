// The machine's own memory: address ranges from mmap, committed, decommitted and moved page by page.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "allocator/memory/device_memory.h"

namespace poolgrad {

/// What the control groups of this process (cgroups, version 1 or 2) leave it of the machine's memory, in bytes: the
/// least limit from its group up to the root. SIZE_MAX where there is none. `groups` is what /proc/self/cgroup says,
/// `mounted` the folder under which the groups are found.
std::size_t memory_limit_of_groups(const std::string& groups, const std::string& mounted = "/sys/fs/cgroup");

/// Where a process finds what its control groups are, and their limits.
struct ControlGroups {
  std::string of_process = "/proc/self/cgroup";
  std::string mounted = "/sys/fs/cgroup";
};

/// Committed in steps of 64 KiB, so that little is reserved that is not used, yet backed by huge pages where 2 MiB are
/// committed in one piece. Work on the CPU runs at once, so events are finished when recorded.
///
/// Touching addresses without memory is a fault: always where there never was any, and after decommit() and move() as
/// long as the process has mappings to spare for it. The kernel gives each 65,530, and every stretch that may be
/// touched is one; where it has thousands of them, what goes from between others may be touched still, and is zero.
/// Every piece that was moved is one, too: beyond many thousands nothing is moved any more.
class HostMemory : public DeviceMemory {
 public:
  static constexpr std::size_t default_granularity = std::size_t{64} << 10;

  /// `total` is what info() reports and commit() may use; 0 means the machine's physical memory, or what the control
  /// groups of the process leave of it where that is less (a container, a batch job). `granularity` is a
  /// power of two, at least a page of the operating system.
  ///
  /// Memory is anonymous rather than a file of memfd_create(): the kernel backs it with huge pages (files in memory
  /// have them only where the administrator allows it), and mremap() moves its page tables as mmap() would map a file
  /// anew.
  explicit HostMemory(std::size_t total = 0, std::size_t granularity = default_granularity,
                      const ControlGroups& groups = {});

  Device device() const override { return cpu; }
  std::size_t granularity() const override { return granularity_; }
  std::size_t large_page() const override { return std::size_t{2} << 20; }
  MemoryInfo info() const override;
  void* reserve(std::size_t bytes) override;
  void unreserve(void* address, std::size_t bytes) noexcept override;
  bool commit(void* address, std::size_t bytes) override;
  void decommit(void* address, std::size_t bytes) noexcept override;
  bool move(void* from, void* to, std::size_t bytes) override;
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override;
  bool queues_work() const override { return false; }
  EventId record_event(Stream stream) override;
  bool event_finished(EventId) override { return true; }
  void stream_wait(Stream, EventId) override {}
  void synchronize(EventId) override {}
  void discard_event(EventId) noexcept override {}

 private:
  static constexpr std::size_t most_stretches = 4096;
  static constexpr std::size_t most_moved = 16384;

  void add_seams(std::uintptr_t address, std::size_t bytes);
  using Stretches = std::map<std::uintptr_t, std::uintptr_t>;  // from their beginnings to their ends
  /// The range may be touched from now on.
  void note_open(Stretches::node_type range) noexcept;
  /// Forbids to touch a range that may be touched, unless that would make another stretch where there are many.
  void close(std::uintptr_t begin, std::uintptr_t end) noexcept;

  const std::size_t total_;
  const std::size_t granularity_;
  std::atomic<std::size_t> committed_{0};
  std::atomic<EventId> events_{0};
  // mremap() takes one mapping of the kernel at a time. Where ranges began and ended that were committed or moved, one
  // mapping may end and the next begin; nowhere else.
  std::mutex mutex_;
  std::set<std::uintptr_t> seams_;
  Stretches stretches_;             // that may be touched
  std::set<std::uintptr_t> moved_;  // where pieces begin that were moved there
};

}  // namespace poolgrad
