// Demonstrates the reclaim policy stage by stage.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/reclaim_stage.h"
#include "allocator/report/oom_report.h"
#include "examples/lab/lab.h"
#include "examples/support/options.h"

namespace poolgrad::examples {

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

struct Block {
  void* pointer = nullptr;
  std::size_t bytes = 0;
};

/// A pool on a simulated device that records its reclaim stages.
class DemoPool {
 public:
  /// The device has twice the budget, so that only the budget can run out.
  explicit DemoPool(std::size_t budget)
      : pool_(std::make_unique<SimulatedMemory>(0, 2 * budget), AllocatorConfig{.budget = budget}) {
    pool_.start_trace(std::size_t{1} << 16);
  }
  ~DemoPool() { pool_.stop_trace(); }
  DemoPool(const DemoPool&) = delete;
  DemoPool& operator=(const DemoPool&) = delete;

  Block allocate(std::size_t bytes, Category category, std::uint64_t stream = 0) {
    const MemoryScope scope(category);
    return {pool_.allocate(bytes, 64, stream_of(stream)), bytes};
  }
  void free(Block& block, std::uint64_t stream = 0) {
    if (block.pointer != nullptr) pool_.deallocate(block.pointer, block.bytes, 64, stream_of(stream));
    block.pointer = nullptr;
  }
  void use(const Block& block, std::uint64_t stream) { pool_.use(block.pointer, stream_of(stream)); }

  CachingAllocator& pool() { return pool_; }
  SimulatedMemory& memory() { return static_cast<SimulatedMemory&>(pool_.memory()); }

  /// Stages since the last call.
  std::vector<ReclaimResult> take_stages() {
    const Trace trace = pool_.trace();
    std::vector<ReclaimResult> stages;
    for (; seen_ < trace.events.size(); ++seen_)
      if (const TraceEvent& event = trace.events[seen_]; event.kind == TraceKind::stage)
        stages.push_back({.stage = std::string(to_string(static_cast<ReclaimStageId>(event.stage))),
                          .bytes = event.size,
                          .runs = 1,
                          .nanoseconds = event.address});
    return stages;
  }

 private:
  Stream stream_of(std::uint64_t id) const { return {pool_.device(), id}; }

  CachingAllocator pool_;
  std::size_t seen_ = 0;  // events
};

/// A client that holds blocks of the pool and frees them on request.
class DemoClient : public ReclaimClient {
 public:
  DemoClient(DemoPool& pool, std::string name, ReclaimStageId kind, double price_per_byte)
      : pool_(pool), name_(std::move(name)), kind_(kind), price_(price_per_byte) {}
  ~DemoClient() override { reclaim(SIZE_MAX); }

  void hold(std::size_t bytes, Category category) { blocks_.push_back(pool_.allocate(bytes, category)); }
  std::string name() const override { return name_; }
  ReclaimStageId kind() const override { return kind_; }
  double price_per_byte() const override { return price_; }
  std::size_t estimate() override {
    std::size_t bytes = 0;
    for (const Block& block : blocks_) bytes += block.bytes;
    return bytes;
  }
  std::size_t reclaim(std::size_t bytes) override {
    std::size_t freed = 0;
    for (; freed < bytes && !blocks_.empty(); blocks_.pop_back()) {
      freed += blocks_.back().bytes;
      pool_.free(blocks_.back());
    }
    return freed;
  }

 private:
  DemoPool& pool_;
  std::string name_;
  ReclaimStageId kind_;
  double price_;
  std::vector<Block> blocks_;
};

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

/// Successful stages in order, with equal neighbors in one line; then failed ones.
std::string stages_text(const std::vector<ReclaimResult>& reclaimed) {
  if (reclaimed.empty()) return "   no stage: a cached block fitted";
  Table table({"<stage", "runs", "yield", "time"});
  std::string vain;
  for (std::size_t i = 0, next = 0; i < reclaimed.size(); i = next) {
    ReclaimResult sum{.stage = reclaimed[i].stage};
    for (next = i; next < reclaimed.size() && reclaimed[next].stage == sum.stage; ++next) {
      sum.bytes += reclaimed[next].bytes;
      sum.nanoseconds += reclaimed[next].nanoseconds;
    }
    if (sum.bytes > 0)
      table.add({sum.stage, std::to_string(next - i), format_bytes(sum.bytes),
                 format_time(static_cast<double>(sum.nanoseconds))});
    else if (vain.find(sum.stage) == std::string::npos)
      vain += (vain.empty() ? "" : ", ") + sum.stage;
  }
  return trimmed(table.text(3)) + (vain.empty() ? "" : "\n   in vain: " + vain);
}

/// One act of the demo: runs and explains it.
class Story {
 public:
  Story(std::size_t budget, Console& console) : budget_(budget), pool_(budget), console_(console) {
    answer_ = {{"budget", budget}, {"acts", Json::array()}};
  }

  /// Sixteenths of the budget.
  std::size_t share(std::size_t sixteenths) const { return budget_ / 16 * sixteenths; }
  DemoPool& pool() { return pool_; }

  void act(const std::string& title, const std::function<void()>& play) {
    console_.print(fmt::format("\n{}. {}", ++acts_, title));
    play();
    const Statistics now = pool_.pool().statistics();
    const std::vector<ReclaimResult> reclaimed = pool_.take_stages();
    console_.print(stages_text(reclaimed));
    console_.print(fmt::format("   now {} live, {} reserved", format_bytes(now.allocated_bytes.current),
                               format_bytes(now.reserved_bytes.current)));
    Json stages = Json::array();
    for (const ReclaimResult& stage : reclaimed)
      stages.push_back({{"stage", stage.stage}, {"bytes", stage.bytes}, {"nanoseconds", stage.nanoseconds}});
    answer_["acts"].push_back({{"title", title},
                               {"stages", stages},
                               {"live", now.allocated_bytes.current},
                               {"reserved", now.reserved_bytes.current}});
  }

  Json& answer() { return answer_; }
  void tell(const std::string& text) { console_.print(text); }
  std::size_t budget() const { return budget_; }

 private:
  std::size_t budget_;
  DemoPool pool_;
  Console& console_;
  Json answer_;
  int acts_ = 0;
};

void free_all(DemoPool& pool, std::vector<Block>& blocks) {
  for (Block& block : blocks) pool.free(block);
  blocks.clear();
}

/// Stages inside the pool: commit, magazines, other streams, pending frees, stitching, release.
void play_the_pool(Story& story) {
  DemoPool& pool = story.pool();
  std::vector<Block> blocks;
  story.act(fmt::format("An empty pool gets a request for {}", format_bytes(story.share(4))),
            [&] { blocks.push_back(pool.allocate(story.share(4), Category::activation)); });
  story.act("The block is freed and requested again", [&] {
    free_all(pool, blocks);
    blocks.push_back(pool.allocate(story.share(4), Category::activation));
  });
  story.act(
      "Another thread fills the rest with small blocks and frees them, some into its magazines; a request needs all of "
      "it",
      [&] {
        std::latch freed(1), done(1);
        std::thread other([&] {
          std::vector<Block> small;
          for (std::size_t bytes = 0; bytes < story.share(12); bytes += 64 << 10)
            small.push_back(pool.allocate(64 << 10, Category::temp));
          free_all(pool, small);
          freed.count_down();
          done.wait();
        });
        freed.wait();
        try {
          blocks.push_back(pool.allocate(story.share(12), Category::activation));
        } catch (...) {
          done.count_down();
          other.join();
          throw;
        }
        done.count_down();
        other.join();
      });
  story.act("A second stream requests memory that the first has just freed, while its work still runs", [&] {
    pool.memory().set_event_delay(50000);
    free_all(pool, blocks);
    blocks.push_back(pool.allocate(story.share(12), Category::activation, 2));
  });
  story.act("A block that two streams use is freed, and its memory is requested at once", [&] {
    pool.use(blocks.back(), 0);
    pool.free(blocks.back(), 2);
    blocks.back() = pool.allocate(story.share(14), Category::activation);
    pool.memory().set_event_delay(0);
  });
  free_all(pool, blocks);
  story.act("Every other sixteenth of the budget is freed, and nearly half of the budget is requested in one piece",
            [&] {
              for (std::size_t i = 0; i < 16; ++i)
                blocks.push_back(pool.allocate(story.share(1), Category::activation));
              for (std::size_t i = 0; i < 16; i += 2) pool.free(blocks[i]);
              blocks.push_back(pool.allocate(story.share(7), Category::activation));
            });
  free_all(pool, blocks);
}

/// Stages outside the pool: derived caches, offload and recompute, the user's callback.
void play_the_clients(Story& story) {
  DemoPool& pool = story.pool();
  const auto tables = std::make_shared<DemoClient>(pool, "rotary tables", ReclaimStageId::derived_cache, 0.0);
  const auto host = std::make_shared<DemoClient>(pool, "offload to the host", ReclaimStageId::offload, 0.1);
  const auto again = std::make_shared<DemoClient>(pool, "recompute block 3", ReclaimStageId::rematerialise, 0.02);
  Block wanted, emergency;
  story.act("Tables, saved tensors and a reserve fill the budget; then three sixteenths are requested", [&] {
    tables->hold(story.share(4), Category::cache);
    host->hold(story.share(4), Category::activation);
    again->hold(story.share(4), Category::activation);
    emergency = pool.allocate(story.share(4), Category::workspace);
    for (const auto& client : {tables, host, again}) pool.pool().add_client(client);
    wanted = pool.allocate(story.share(3), Category::activation);
  });
  Block more, last;
  story.act("Six sixteenths more: recomputing is cheaper than offloading to the host",
            [&] { more = pool.allocate(story.share(6), Category::activation); });
  story.act("Everything is in use; the program has registered a callback that frees its reserve", [&] {
    pool.pool().set_out_of_memory_callback([&](std::size_t, int attempt) {
      pool.free(emergency);
      return attempt == 0;
    });
    last = pool.allocate(story.share(5), Category::activation);
  });
  for (Block* block : {&wanted, &more, &last}) pool.free(*block);
  pool.pool().set_out_of_memory_callback({});
}

/// The end of the reclaim policy, and the state afterwards.
void play_the_end(Story& story) {
  DemoPool& pool = story.pool();
  std::vector<Block> live;
  story.act("Ten sixteenths are in use; a request for eight more fails", [&] {
    live.push_back(pool.allocate(story.share(7), Category::parameter));
    live.push_back(pool.allocate(story.share(3), Category::activation));
    try {
      live.push_back(pool.allocate(story.share(8), Category::scores));
    } catch (const OutOfMemoryError& error) {
      story.answer()["report"] = error.what();
    }
  });
  if (!story.answer().contains("report")) throw Error("[demo-oom] the last request must fail, but was served");
  story.tell("\n" + trimmed(story.answer()["report"].get<std::string>()));
  story.act("The pool still works: it serves a request that fits, and at the end the whole budget in one piece", [&] {
    live.push_back(pool.allocate(story.share(6), Category::activation));
    free_all(pool, live);
    live.push_back(pool.allocate(story.budget(), Category::activation));
    free_all(pool, live);
  });
  const Statistics now = pool.pool().statistics();
  if (now.allocated_bytes.current != 0 || now.reserved_bytes.peak > story.budget())
    throw Error("[demo-oom] the pool must be empty and within its budget at the end");
  story.answer()["proof"] = {{"live", now.allocated_bytes.current},
                             {"largest_block", story.budget()},
                             {"peak_reserved", now.reserved_bytes.peak},
                             {"out_of_memory_errors", now.num_ooms}};
  story.tell(fmt::format("\nEnd: 0 B live, {} reserved at most, budget {}; {} OutOfMemoryError",
                         format_bytes(now.reserved_bytes.peak), format_bytes(story.budget()), now.num_ooms));
}

int demo(const std::string& text, Console& console) {
  // A simulated device has addresses for twice the budget, and live blocks separate the free ones.
  constexpr std::size_t least = 64 * mib, most = std::size_t{512} << 30, page = 2 * mib;
  const std::size_t budget = of_option("--budget", [&] { return parse_bytes(text); });
  if (budget < least || budget > most || budget % (16 * page) != 0)
    throw ValueError("[demo-oom] --budget must be a multiple of 32 MiB from 64 MiB to 512 GiB, but is " +
                     printable(text));
  Story story(budget, console);
  story.tell(fmt::format("A pool with a budget of {} on a simulated device; shares are sixteenths of it.",
                         format_bytes(budget)));
  play_the_pool(story);
  play_the_clients(story);
  play_the_end(story);
  console.answer(story.answer());
  return exit_good;
}

}  // namespace

Command add_demo_oom(CLI::App& lab) {
  CLI::App* app = lab.add_subcommand("demo-oom", "Shows the reclaim policy stage by stage, down to its report");
  const auto budget = std::make_shared<std::string>("128MiB");
  app->add_option("--budget", *budget, "Hard limit of the pool; a multiple of 32 MiB")->capture_default_str();
  return {app, [budget](Console& console) { return demo(*budget, console); }};
}

}  // namespace poolgrad::examples
