// Messages by a stand-in for NCCL between emulated devices under a race detector: the contract of communicators, the
// exact calls, and the messages of errors. No GPU has run this yet.
#include "parallel/nccl.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>

#include "allocator/caching_allocator.h"
#include "kernels/elementwise.h"
#include "parallel/collectives.h"
#include "tests/attention/ring/communicator_contract.h"
#include "tests/attention/ring/ring_support.h"
#include "tests/parallel/fake_nccl.h"

namespace poolgrad::parallel::testing_support {
namespace {

using namespace attention::testing_support;
using attention::Communicator, attention::LocalGroup, attention::Message, attention::Transfer;
using poolgrad::testing_support::error_of;
using ::testing::ElementsAre, ::testing::HasSubstr, ::testing::StartsWith;

constexpr int most_devices = 8;

[[maybe_unused]] const bool many_devices = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "8", 1);
  setenv("POOLGRAD_EMULATED_MEMORY", "256MiB", 1);
  setenv("POOLGRAD_ALLOCATOR", "races:on", 1);
  return true;
}();

Device gpu(int rank) { return {DeviceType::cuda, static_cast<std::uint8_t>(rank)}; }

using Body = std::function<void(Communicator& nccl, Device own)>;

/// Runs `body` on every rank, each on a device of its own, as threads of a LocalGroup.
void on_ranks(int ranks, const Body& body, const NcclOptions& options = {}) {
  LocalGroup group(ranks);
  group.run(1, [&](Communicator& one, int) {
    const auto nccl = nccl_communicator(group.communicator(one.rank()), gpu(one.rank()), options, FakeNccl::library);
    body(*nccl, gpu(one.rank()));
  });
}

Message message_of(const Tensor& x) {
  return {x.view().data, x.numel() * static_cast<std::int64_t>(size_of(x.dtype()))};
}

/// Sends host messages through a device, so that the contract tests NCCL's exchanges.
class ByDevice final : public Communicator {
 public:
  ByDevice(std::shared_ptr<Communicator> nccl, Device device) : nccl_(std::move(nccl)), device_(device) {}
  int rank() const override { return nccl_->rank(); }
  int size() const override { return nccl_->size(); }
  std::unique_ptr<Transfer> start(Stream, int to, Message out, int from, Message in) override {
    const StreamGuard here({device_, 5});
    auto copied = std::make_unique<Copied>();
    const auto on_device = [&](std::int64_t bytes) {
      return Tensor::empty({bytes}, {.dtype = DType::u8, .device = device_});
    };
    copied->out = on_device(out.bytes), copied->in = on_device(in.bytes), copied->host = in;
    if (out.bytes > 0) kernels::copy({device_, 5}, copied->out.view(), view(out));
    copied->inner = nccl_->start({device_, 5}, to, message_of(copied->out), from, message_of(copied->in));
    return copied;
  }

 private:
  static View view(Message m) { return {m.data, DType::u8, 1, {m.bytes}, {1}}; }
  struct Copied : Transfer {
    void wait() override {
      inner->wait();
      if (host.bytes > 0) kernels::copy({in.device(), 5}, view(std::exchange(host, {})), in.view());
    }
    Tensor out, in;
    Message host;
    std::unique_ptr<Transfer> inner;
  };
  std::shared_ptr<Communicator> nccl_;
  Device device_;
};

struct OnNccl {
  static int most_ranks() { return most_devices; }
  static int here(int ranks) { return ranks; }
  static std::string told(int, const std::string& reason) { return reason; }
  static void run(int ranks, int steps, const std::function<void(Communicator&, int)>& body) {
    static FakeNccl nccl;  // transfers of a run may outlive it
    LocalGroup group(ranks);
    group.run(1, [&](Communicator& one, int) {
      const Device own = gpu(one.rank());
      ByDevice rank(nccl_communicator(group.communicator(one.rank()), own, {}, FakeNccl::library), own);
      for (int step = 0; step < steps; ++step) body(rank, step);
    });
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Nccl, CommunicatorContract, OnNccl);

class Nccl : public ::testing::Test {
 protected:
  FakeNccl nccl_;
};

TEST_F(Nccl, SendsAndReceivesInOneGroupOnItsOwnStream) {
  nccl_.moves = false;
  constexpr std::int64_t large = (std::int64_t{3} << 30) + 5;  // beyond 2^31
  on_ranks(3, [](Communicator& c, Device own) {
    char* const nowhere = nullptr;
    const int next = beyond(c, 1), before = beyond(c, -1);
    c.start({own}, next, {nowhere + 64, 100}, before, {nowhere + 4096, 100})->wait();
    c.start({own}, next, {nowhere + 64, c.rank() == 0 ? large : 0}, before, {nowhere, c.rank() == 1 ? large : 0})
        ->wait();
  });
  constexpr std::size_t count = std::size_t{3221225477u};
  const std::string first = "CommInitRank GroupStart Send Recv GroupEnd";
  EXPECT_EQ(nccl_.names_of(0), first + " GroupStart Send GroupEnd CommDestroy");
  EXPECT_EQ(nccl_.names_of(1), first + " GroupStart Recv GroupEnd CommDestroy");
  EXPECT_EQ(nccl_.names_of(2), first + " CommDestroy") << "empty messages need no call";
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<FakeNccl::Call> calls = nccl_.calls_of(rank);
    EXPECT_EQ(calls[0].count, 3u);
    EXPECT_EQ(calls[2].peer, (rank + 1) % 3);
    EXPECT_EQ(calls[3].peer, (rank + 2) % 3);
    for (const std::size_t i : {2u, 3u}) {
      EXPECT_EQ(calls[i].count, 100u);
      EXPECT_EQ(calls[i].type, 1) << "ncclUint8";
      EXPECT_EQ(calls[i].stream, calls[2].stream);
      EXPECT_NE(calls[i].stream, 0u) << "not that of the work";
    }
    if (rank < 2) {
      EXPECT_EQ(calls[6].count, count);
      EXPECT_EQ(calls[6].peer, 1 - rank);
      EXPECT_EQ(calls[6].stream, calls[2].stream);
    }
  }
}

TEST_F(Nccl, OrdersExchangesBetweenEarlierAndLaterWork) {
  for (int round = 0; round < 20; ++round)
    on_ranks(4, [&](Communicator& c, Device own) {
      Tensor out = zeros({1000}, {DType::f32, own}), in = zeros({1000}, {DType::f32, own});
      for (int turn = 0; turn < 4; ++turn) {
        out.fill(10 * c.rank() + turn);
        const Stream stream = current_stream(own);
        const auto transfer = c.start(stream, beyond(c, 1), message_of(out), beyond(c, -1), message_of(in));
        transfer->wait();
        out.fill(-1.0);
        const Tensor got = in + 0.5;
        in.fill(-2.0);
        ASSERT_EQ(got.to_vector<float>(),
                  std::vector<float>(1000, static_cast<float>(10 * beyond(c, -1) + turn) + 0.5f));
      }
    });
}

TEST_F(Nccl, ARingHasTheBitsOfALocalRing) {
  const RingInputs in = ring_inputs({1, 42, 42, 2, 2, 4, 4}, DType::f32);
  const auto attend = [&](const std::shared_ptr<Communicator>& c, Device own, attention::Exchange exchange) {
    const auto mine = [&](const Tensor& x) {
      return to(attention::take_shard(x, attention::Layout::striped, c->rank(), 3), own).set_requires_grad();
    };
    const Tensor q = mine(in.q), k = mine(in.k), v = mine(in.v);
    sum(attention::ring_attend(q, k, v, attention::Pattern::causal(), c,
                               {.layout = attention::Layout::striped, .exchange = exchange})
            .out)
        .backward();
    return std::vector<Tensor>{to(q.grad(), cpu), to(k.grad(), cpu), to(v.grad(), cpu)};
  };
  for (const auto exchange : {attention::Exchange::ring, attention::Exchange::all_gather}) {
    LocalGroup group(3);
    group.run(1, [&](Communicator& one, int) {
      const auto local = group.communicator(one.rank());
      const Device own = gpu(one.rank());
      const std::vector<Tensor> want = attend(local, own, exchange);
      const auto nccl = nccl_communicator(local, own, {}, FakeNccl::library);
      const std::vector<Tensor> got = attend(nccl, own, exchange);
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(bit_equal(got[i], want[i])) << i;
    });
  }
  EXPECT_THAT(nccl_.names_of(0), HasSubstr("Send Recv"));
}

TEST_F(Nccl, SumsOverRanks) {
  LocalGroup group(4);
  group.run(1, [&](Communicator& one, int) {
    const auto nccl = nccl_communicator(group.communicator(one.rank()), gpu(one.rank()), {}, FakeNccl::library);
    Tensor mine = full({1001}, 1.0 + one.rank(), {DType::f64, gpu(one.rank())});
    SumOverRanks sum(nccl, mine);
    sum.add();
    sum.finish();
    EXPECT_EQ(mine.to_vector<double>(), std::vector<double>(1001, 10.0));
  });
}

TEST_F(Nccl, LeavesHostMessagesToTheHostCommunicator) {
  on_ranks(2, [](Communicator& c, Device) {
    std::int64_t out = 7 + c.rank(), in = 0;
    c.start({}, 1 - c.rank(), {&out, 8}, 1 - c.rank(), {&in, 8})->wait();
    EXPECT_EQ(in, 8 - c.rank());
  });
  EXPECT_EQ(nccl_.names_of(0), "CommInitRank CommDestroy");
}

TEST_F(Nccl, RefusesSharedGpusAndOtherDevices) {
  LocalGroup two(2), alone(1);
  EXPECT_EQ(error_of<Error>([&] {
              two.run(1, [&](Communicator& one, int) {
                nccl_communicator(two.communicator(one.rank()), gpu(3), {}, FakeNccl::library);
              });
            }),
            "[nccl] ranks 0 and 1 have one GPU (emulated GPU 3): NCCL needs one for each rank");
  EXPECT_EQ(error_of<DeviceError>([&] { nccl_communicator(alone.communicator(0), cpu, {}, FakeNccl::library); }),
            "[nccl] is for GPUs, not for cpu");
  EXPECT_THAT(error_of<DeviceError>([&] { nccl_communicator(alone.communicator(0), gpu(200)); }),
              HasSubstr("cuda:200"));
  EXPECT_EQ(error_of<ValueError>(
                [&] { nccl_communicator(alone.communicator(0), gpu(0), {.timeout = -1}, FakeNccl::library); }),
            "[nccl] timeout must be 0 s or more, but is -1");
  on_ranks(2, [](Communicator& c, Device) {
    if (c.rank() == 1) return;
    char byte = 0;
    EXPECT_EQ(error_of<DeviceError>([&] {
                c.start({gpu(1)}, 1, {&byte, 1}, 1, {&byte, 1});
              }),
              "[nccl] rank 0 exchanges memory of cuda:0, not of cuda:1");
    EXPECT_EQ(error_of<ValueError>([&] {
                c.start({gpu(0)}, 0, {&byte, 1}, 1, {&byte, 1});
              }),
              "[nccl] rank 0 must receive a message to itself in the exchange that sends it");
  });
}

TEST_F(Nccl, RefusesDifferentVersions) {
  NcclLibrary older = FakeNccl::library;
  older.GetVersion = [](int* version) { return *version = 21000, 0; };
  LocalGroup group(2);
  EXPECT_EQ(error_of<Error>([&] {
              group.run(1, [&](Communicator& one, int) {
                nccl_communicator(group.communicator(one.rank()), gpu(one.rank()), {},
                                  one.rank() == 0 ? FakeNccl::library : older);
              });
            }),
            "[nccl] ranks have different versions of NCCL: 22809 on rank 0, and 21000 on rank 1");
}

/// Returns each rank's errors of an exchange with the next rank and of a second exchange.
std::vector<std::vector<std::string>> heard(int ranks, const NcclOptions& options = {}) {
  std::vector<std::vector<std::string>> heard(static_cast<std::size_t>(ranks));
  try {
    on_ranks(
        ranks,
        [&](Communicator& c, Device own) {
          const Tensor out = zeros({16}, {DType::f32, own}), in = zeros({16}, {DType::f32, own});
          const auto exchange = [&] {
            c.start({own}, beyond(c, 1), message_of(out), beyond(c, -1), message_of(in))->wait();
          };
          auto& mine = heard[static_cast<std::size_t>(c.rank())];
          try {
            exchange();
          } catch (const std::exception& error) {
            mine.push_back(error.what());
            mine.push_back(error_of<Error>(exchange));
            throw;
          }
        },
        options);
  } catch (const Error&) {
  }
  return heard;
}

TEST_F(Nccl, NamesTheFailedCallAndRank) {
  for (const std::string name : {"GroupStart", "Send", "Recv", "GroupEnd"}) {
    nccl_.failing = {{name, 2}};
    EXPECT_THAT(heard(1)[0], ElementsAre("[nccl] nccl" + name + " failed on rank 0: unhandled system error",
                                         "[nccl] nccl" + name + " failed on rank 0: unhandled system error"));
    EXPECT_THAT(nccl_.names_of(0), ::testing::EndsWith("CommAbort"));
  }
  nccl_.failing = {{"CommInitRank", 1}};
  EXPECT_EQ(error_of<Error>([] { on_ranks(1, [](Communicator&, Device) {}); }),
            "[nccl] ncclCommInitRank failed on rank 0: unhandled cuda error");
}

TEST_F(Nccl, AnAsynchronousErrorEndsTheExchangeOnAllRanks) {
  nccl_.asynchronous = {{1, 6}};
  nccl_.silent = {{1, true}};
  const auto all = heard(3, {.timeout = 5});
  const std::string reason = "[nccl] an exchange of NCCL failed on rank 1: remote process exited";
  EXPECT_THAT(all[1], ElementsAre(reason, reason));
  for (const std::size_t other : {0u, 2u})
    EXPECT_THAT(all[other], ::testing::Each("[exchange] rank 1 failed: " + reason));
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(nccl_.names_of(rank), ::testing::EndsWith("CommAbort"));
}

TEST_F(Nccl, NamesTheSilentPeerAfterTheTimeout) {
  nccl_.silent = {{1, true}};
  const auto began = std::chrono::steady_clock::now();
  const auto all = heard(2, {.timeout = 0.2});
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  const auto first = [](int rank, int other) {
    return "[exchange] rank " + std::to_string(rank) + " has waited 0.2 s for bytes to rank " + std::to_string(other) +
           " and from rank " + std::to_string(other);
  };
  for (const int rank : {0, 1})
    EXPECT_THAT(all[static_cast<std::size_t>(rank)][0],
                ::testing::AnyOf(first(rank, 1 - rank),
                                 "[exchange] rank " + std::to_string(1 - rank) + " failed: " + first(1 - rank, rank)));
}

TEST_F(Nccl, DetectsAPeerThatEndsBeforeTheExchange) {
  EXPECT_EQ(error_of<Error>([] {
              on_ranks(2, [](Communicator& c, Device own) {
                const Tensor x = zeros({16}, {DType::f32, own});
                if (c.rank() == 0) c.start({own}, 1, message_of(x), 1, {})->wait();
              });
            }),
            "[exchange] every rank waits: rank 0 for rank 1, which has ended");
}

TEST_F(Nccl, DoesNotWriteMemoryOfAnAbandonedExchange) {
  std::string told;
  const auto body = [&](Communicator& c, Device own) {
    const Tensor out = full({16}, 3.0, {DType::f32, own}), in = full({16}, 1.0, {DType::f32, own});
    const auto start = [&] { return c.start({own}, 1 - c.rank(), message_of(out), 1 - c.rank(), message_of(in)); };
    if (c.rank() == 1) {
      told = error_of<Error>([&] { start()->wait(); });
      return;
    }
    start();
    EXPECT_EQ(in.to_vector<float>(), std::vector<float>(16, 1.0f));
    start();
  };
  const std::string given_up = "[exchange] rank 0 gave up an exchange";
  EXPECT_EQ(error_of<Error>([&] { on_ranks(2, body); }), given_up);
  EXPECT_THAT(told, ::testing::AnyOf(given_up, "[exchange] rank 0 failed: " + given_up));
}

TEST(NcclLibrary, NamesTheMissingLibrary) {
  EXPECT_THAT(error_of<DeviceError>([] { open_nccl("libnccl_of_nobody.so.2"); }),
              StartsWith("[nccl] NCCL is needed between GPUs (apt-get install libnccl2): libnccl_of_nobody.so.2: "));
  EXPECT_EQ(error_of<DeviceError>([] { open_nccl("libm.so.6"); }),
            "[nccl] libm.so.6 is older than NCCL 2.7: it has no ncclGetVersion");
}

TEST(NcclLibrary, ReportsItsVersionOnThisMachine) {
  NcclLibrary nccl{};
  try {
    nccl = open_nccl("libnccl.so.2");
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  int version = 0;
  EXPECT_EQ(nccl.GetVersion(&version), NcclLibrary::success);
  EXPECT_GE(version, 2700);
  EXPECT_THAT(nccl.GetErrorString(2), HasSubstr("system error"));
}

}  // namespace
}  // namespace poolgrad::parallel::testing_support
