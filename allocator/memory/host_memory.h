// Host memory: address ranges from mmap, committed, decommitted and moved by pages.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "allocator/memory/device_memory.h"

namespace poolgrad {

/// The memory limit of this process's control groups (cgroups, version 1 or 2) in bytes: the least limit from its group
/// up to the root; SIZE_MAX if there is none. `groups` is the content of /proc/self/cgroup, `mounted` the folder of the
/// mounted groups.
std::size_t memory_limit_of_groups(const std::string& groups, const std::string& mounted = "/sys/fs/cgroup");

/// The files that name a process's control groups and their limits.
struct ControlGroups {
  std::string of_process = "/proc/self/cgroup";
  std::string mounted = "/sys/fs/cgroup";
};

/// Commits in steps of 64 KiB, so that little unused memory is reserved; a commit of 2 MiB gets huge pages. Work on the
/// CPU runs at once, so events are finished when recorded.
///
/// Access to uncommitted memory faults: always if it was never committed, and after decommit() and move() while the
/// process has mappings to spare. The kernel allows 65,530 mappings, and each accessible stretch takes one. At
/// thousands of stretches, decommitted memory between others stays accessible and reads as zero. Each moved piece takes
/// a mapping too, so move() fails beyond many thousands.
class HostMemory : public DeviceMemory {
 public:
  static constexpr std::size_t default_granularity = std::size_t{64} << 10;

  /// `total` is the limit that info() reports and commit() keeps. 0: the machine's physical memory, or the memory that
  /// the control groups leave (a container, a batch job), if less. `granularity` is a power of two, at least a page of
  /// the operating system.
  ///
  /// Memory is anonymous rather than a memfd_create() file: it gets huge pages without the administrator's consent, and
  /// mremap() moves its page tables as mmap() would map a file again.
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
  using Stretches = std::map<std::uintptr_t, std::uintptr_t>;  // begin -> end
  /// Marks the range accessible.
  void note_open(Stretches::node_type range) noexcept;
  /// Makes a range inaccessible, unless that would split a stretch when there are too many.
  void close(std::uintptr_t begin, std::uintptr_t end) noexcept;

  const std::size_t total_;
  const std::size_t granularity_;
  std::atomic<std::size_t> committed_{0};
  std::atomic<EventId> events_{0};
  // mremap() takes one kernel mapping at a time. Mappings may meet only at ends of committed or moved ranges.
  std::mutex mutex_;
  std::set<std::uintptr_t> seams_;
  Stretches stretches_;             // accessible
  std::set<std::uintptr_t> moved_;  // begins of moved pieces
};

}  // namespace poolgrad
