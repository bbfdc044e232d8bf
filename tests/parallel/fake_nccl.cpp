#include "tests/parallel/fake_nccl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/emulation/device.h"

namespace poolgrad::parallel::testing_support {

namespace {
FakeNccl* the_one = nullptr;
constexpr const char* texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error"};

std::uint64_t name_of(void* stream) { return reinterpret_cast<std::uint64_t>(stream); }
}  // namespace

const NcclLibrary FakeNccl::library{
    .GetVersion =
        [](int* version) {
          *version = one().version;
          return one().result_of("GetVersion");
        },
    .GetUniqueId =
        [](NcclLibrary::UniqueId* id) {
          const std::lock_guard lock(one().mutex_);
          std::fill(std::begin(id->bytes), std::end(id->bytes), static_cast<char>(++one().ids_));
          return one().result_of("GetUniqueId");
        },
    .CommInitRank =
        [](NcclLibrary::Handle* made, int ranks, NcclLibrary::UniqueId id, int rank) {
          const std::lock_guard lock(one().mutex_);
          EXPECT_GE(emulation::current, 0) << "the device must be current";
          EXPECT_EQ(id.bytes[0], id.bytes[127]);
          one().handles_.push_back(std::make_unique<NcclHandle>(id.bytes[127], ranks, rank, emulation::current));
          *made = one().handles_.back().get();
          one().note(*made, {"CommInitRank", static_cast<std::size_t>(ranks)});
          return one().result_of("CommInitRank");
        },
    .CommDestroy =
        [](NcclLibrary::Handle handle) {
          const std::lock_guard lock(one().mutex_);
          one().note(handle, {"CommDestroy"});
          return one().result_of("CommDestroy");
        },
    .CommAbort =
        [](NcclLibrary::Handle handle) {
          const std::lock_guard lock(one().mutex_);
          one().note(handle, {"CommAbort"});
          one().forget(handle);
          return one().result_of("CommAbort");
        },
    .CommGetAsyncError =
        [](NcclLibrary::Handle handle, NcclLibrary::Result* error) {
          const std::lock_guard lock(one().mutex_);
          const auto known = one().asynchronous.find(handle->rank);
          *error = known == one().asynchronous.end() ? 0 : known->second;
          return 0;
        },
    .GroupStart =
        [] {
          own_group() = {};
          own_group().calls.push_back({"GroupStart"});
          return one().result_of("GroupStart");
        },
    .GroupEnd =
        [] {
          const std::lock_guard lock(one().mutex_);
          Group group = std::exchange(own_group(), {});
          group.calls.push_back({"GroupEnd"});
          EXPECT_FALSE(group.sides.empty()) << "an empty group";
          if (group.sides.empty()) return 4;
          for (const Call& call : group.calls) one().note(group.sides[0].handle, call);
          const int result = one().result_of("GroupEnd");
          if (result == 0 && one().moves) one().launch(group.sides);
          return result;
        },
    .Send =
        [](const void* data, std::size_t count, int type, int peer, NcclLibrary::Handle handle, void* stream) {
          own_group().calls.push_back({"Send", count, type, peer, name_of(stream)});
          own_group().sides.push_back({handle, true, peer, const_cast<void*>(data), count, name_of(stream)});
          return one().result_of("Send");
        },
    .Recv =
        [](void* data, std::size_t count, int type, int peer, NcclLibrary::Handle handle, void* stream) {
          own_group().calls.push_back({"Recv", count, type, peer, name_of(stream)});
          own_group().sides.push_back({handle, false, peer, data, count, name_of(stream)});
          return one().result_of("Recv");
        },
    .GetErrorString = [](NcclLibrary::Result result) { return result < 4 ? texts[result] : "remote process exited"; },
};

FakeNccl::FakeNccl() : before_(std::exchange(the_one, this)) {}
FakeNccl::~FakeNccl() {
  the_one = before_;
  for (auto* const posted : {&sends_, &receives_})
    for (const auto& [ends, sides] : *posted) EXPECT_TRUE(sides.empty()) << "an exchange that was never ended";
}
FakeNccl& FakeNccl::one() { return *the_one; }

FakeNccl::Group& FakeNccl::own_group() {
  thread_local Group group;
  return group;
}

int FakeNccl::result_of(const std::string& name) const {
  const auto known = failing.find(name);
  return known == failing.end() ? 0 : known->second;
}

void FakeNccl::note(NcclHandle* handle, Call call) {
  EXPECT_EQ(emulation::current, handle->device) << call.name << ": another device is current";
  calls_[handle->rank].push_back(std::move(call));
}

std::vector<FakeNccl::Call> FakeNccl::calls_of(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto known = calls_.find(rank);
  return known == calls_.end() ? std::vector<Call>() : known->second;
}

std::string FakeNccl::names_of(int rank) const {
  std::string names;
  for (const Call& call : calls_of(rank)) names += (names.empty() ? "" : " ") + call.name;
  return names;
}

/// Acts as one kernel: its stream continues when all of its exchanges are done.
void FakeNccl::launch(std::vector<Side>& sides) {
  const auto device = [](const Side& side) -> emulation::Device& { return emulation::device(side.handle->device); };
  for (Side& side : sides) {
    const auto driver = device(side).driver();
    driver->event_record(side.ready = driver->event_create(), side.stream);
  }
  for (Side& side : sides) side.held = device(side).hold(side.stream);
  for (Side& side : sides) {
    met_.push_back(side);
    if (silent[side.handle->rank]) continue;
    const int rank = side.handle->rank;
    const std::pair key(side.handle->group, side.sends ? Ends(rank, side.peer) : Ends(side.peer, rank));
    std::deque<Side>& others = side.sends ? receives_[key] : sends_[key];
    if (others.empty() || others.front().count != side.count) {  // sizes differ: both wait for ever
      (side.sends ? sends_[key] : receives_[key]).push_back(side);
      continue;
    }
    side.sends ? move(side, others.front()) : move(others.front(), side);
    others.pop_front();
  }
}

void FakeNccl::move(const Side& from, const Side& to) {
  emulation::Device &source = emulation::device(from.handle->device), &target = emulation::device(to.handle->device);
  const auto driver = target.driver();
  const std::uint64_t stream = driver->stream_create();
  for (const std::uint64_t ready : {from.ready, to.ready}) driver->stream_wait(stream, ready);
  target.enqueue(
      "ncclSend", stream,
      [from, to] {
        if (*from.aborted || *to.aborted) return;
        std::memcpy(to.data, from.data, to.count);
        *from.held = *to.held = true;
      },
      &source);
}

void FakeNccl::forget(NcclHandle* handle) {
  for (auto* const posted : {&sends_, &receives_})
    for (auto& [ends, sides] : *posted) std::erase_if(sides, [&](const Side& side) { return side.handle == handle; });
  for (const Side& side : met_) {
    if (side.handle != handle) continue;
    for (const auto& ended : {side.aborted, side.held}) emulation::device(handle->device).let_go(*ended);
  }
}

}  // namespace poolgrad::parallel::testing_support
