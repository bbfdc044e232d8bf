// A stand-in for NCCL. It records the calls and moves the bytes between emulated devices late, as kernels on the given
// streams would that wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "parallel/nccl_library.h"

namespace poolgrad::parallel {

struct NcclHandle {
  int group, ranks, rank, device;
};

namespace testing_support {

class FakeNccl {
 public:
  /// The result of open_nccl(). Calls go to the newest FakeNccl.
  static const NcclLibrary library;
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  struct Call {
    std::string name;
    std::size_t count = 0;
    int type = -1, peer = -1;
    std::uint64_t stream = 0;
  };
  /// Returns the calls of a rank in order, without queries of errors. A group belongs to the rank that sends in it.
  std::vector<Call> calls_of(int rank) const;
  std::string names_of(int rank) const;  // "CommInitRank GroupStart Send"

  int version = 22809;
  bool moves = true;                   // else calls are only recorded
  std::map<std::string, int> failing;  // results of calls by name
  std::map<int, int> asynchronous;     // errors by rank
  std::map<int, bool> silent;          // ranks whose exchanges reach no other rank

 private:
  struct Side {
    NcclHandle* handle;
    bool sends;
    int peer;
    void* data;
    std::size_t count;
    std::uint64_t stream, ready = 0;
    std::shared_ptr<bool> held = {}, aborted = std::make_shared<bool>(false);
  };
  struct Group {
    std::vector<Call> calls;
    std::vector<Side> sides;
  };
  using Ends = std::pair<int, int>;  // from, to

  static FakeNccl& one();
  static Group& own_group();  // of this thread
  int result_of(const std::string& name) const;
  void note(NcclHandle* handle, Call call);
  void launch(std::vector<Side>& sides);
  void move(const Side& from, const Side& to);
  void forget(NcclHandle* handle);

  FakeNccl* const before_;
  mutable std::mutex mutex_;
  int ids_ = 0;
  std::map<int, std::vector<Call>> calls_;
  std::vector<std::unique_ptr<NcclHandle>> handles_;
  std::map<std::pair<int, Ends>, std::deque<Side>> sends_, receives_;  // by group, unmatched
  std::vector<Side> met_;
};

}  // namespace testing_support
}  // namespace poolgrad::parallel
