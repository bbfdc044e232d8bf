// Uses the shared library as a C program does: it loads the library by name and calls its symbols.
#include "allocator/c_api.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

void* library() {
  static void* handle = dlopen(POOLGRAD_C_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return handle;
}

// CALL(poolgrad_trim)(...) calls the function of the loaded library.
#define CALL(function) reinterpret_cast<decltype(&function)>(dlsym(library(), #function))

std::string last_error() { return CALL(poolgrad_last_error)(); }

nlohmann::json statistics(int kind, int index) {
  char* text = CALL(poolgrad_statistics_json)(kind, index);
  EXPECT_NE(text, nullptr) << last_error();
  const auto parsed = nlohmann::json::parse(text);
  CALL(poolgrad_free_string)(text);
  return parsed;
}

class CInterface : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(library(), nullptr) << dlerror(); }
};

TEST_F(CInterface, ExportsOnlyTheFunctionsOfItsHeader) {
  for (const char* name : {"poolgrad_malloc", "poolgrad_free", "poolgrad_torch_malloc", "poolgrad_host_malloc",
                           "poolgrad_host_free", "poolgrad_sim_malloc", "poolgrad_sim_free", "poolgrad_last_error"}) {
    EXPECT_NE(dlsym(library(), name), nullptr) << name;
  }
  // A second copy of the pools would have a second budget, so the library must not export their symbols.
  for (const char* name : {"poolgrad_isa_check", "_ZN8poolgrad13allocator_forENS_6DeviceE"})
    EXPECT_EQ(dlsym(library(), name), nullptr) << name;
}

TEST_F(CInterface, AllocatesAndFreesHostMemory) {
  const auto allocate = CALL(poolgrad_host_malloc);
  const auto release = CALL(poolgrad_host_free);
  auto* bytes = static_cast<unsigned char*>(allocate(1000, 0, nullptr));
  ASSERT_NE(bytes, nullptr) << last_error();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes) % 64, 0u);
  std::memset(bytes, 7, 1000);
  EXPECT_EQ(statistics(POOLGRAD_CPU, 0)["requested_bytes.all.current"], 1000);
  release(bytes, 1000, 0, nullptr);
  EXPECT_EQ(statistics(POOLGRAD_CPU, 0)["requested_bytes.all.current"], 0);
  EXPECT_EQ(allocate(1000, 0, nullptr), bytes);
  release(bytes, 1000, 0, nullptr);
}

TEST_F(CInterface, GivesEachEmptyBlockItsOwnAddress) {
  void* first = CALL(poolgrad_host_malloc)(0, 0, nullptr);
  void* second = CALL(poolgrad_host_malloc)(0, 0, nullptr);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
  CALL(poolgrad_host_free)(first, 0, 0, nullptr);
  CALL(poolgrad_host_free)(second, 0, 0, nullptr);
}

TEST_F(CInterface, AcceptsAFreeOfNull) {
  CALL(poolgrad_host_free)(nullptr, 0, 0, nullptr);
  CALL(poolgrad_host_free)(nullptr, -5, 77, nullptr);
  CALL(poolgrad_free)(nullptr, 100, -1, nullptr);
  CALL(poolgrad_sim_free)(nullptr, 100, 0, nullptr);
  CALL(poolgrad_free_string)(nullptr);
}

TEST_F(CInterface, RefusesNegativeSizes) {
  EXPECT_EQ(CALL(poolgrad_host_malloc)(-1, 0, nullptr), nullptr);
  EXPECT_THAT(last_error(), HasSubstr("negative size: -1"));
  void* block = CALL(poolgrad_host_malloc)(100, 0, nullptr);
  CALL(poolgrad_host_free)(block, -100, 0, nullptr);
  EXPECT_THAT(last_error(), HasSubstr("negative size: -100"));
  EXPECT_EQ(statistics(POOLGRAD_CPU, 0)["requested_bytes.all.current"], 100);  // the block is still there
  CALL(poolgrad_host_free)(block, 100, 0, nullptr);
}

TEST_F(CInterface, RefusesDevicesThatDoNotExist) {
  EXPECT_EQ(CALL(poolgrad_host_malloc)(100, 1, nullptr), nullptr);
  EXPECT_THAT(last_error(), HasSubstr("only one cpu"));
  EXPECT_EQ(CALL(poolgrad_malloc)(100, -1, nullptr), nullptr);
  EXPECT_THAT(last_error(), HasSubstr("index of a device is from 0 to 255, got -1"));
  EXPECT_EQ(CALL(poolgrad_sim_malloc)(100, 256, nullptr), nullptr);
  EXPECT_THAT(last_error(), HasSubstr("got 256"));
  EXPECT_EQ(CALL(poolgrad_trim)(3, 0, 1, nullptr), -1);
  EXPECT_THAT(last_error(), HasSubstr("kind of a device is 0 (cpu), 1 (cuda) or 2 (sim), got 3"));
  EXPECT_EQ(CALL(poolgrad_statistics_json)(-1, 0), nullptr);
  EXPECT_THAT(last_error(), HasSubstr("got -1"));
}

TEST_F(CInterface, ReturnsNullWithTheReportWhenMemoryIsOut) {
  ASSERT_EQ(CALL(poolgrad_configure_sim)(3, 4 << 20), 0) << last_error();
  void* block = CALL(poolgrad_sim_malloc)(3 << 20, 3, nullptr);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(CALL(poolgrad_sim_malloc)(3 << 20, 3, nullptr), nullptr);
  EXPECT_THAT(last_error(), StartsWith("[allocate] out of memory on sim:3: 3.00 MiB"));
  EXPECT_THAT(last_error(), ::testing::ContainsRegex("\n  asked for by [^ \n]*\\+0x[0-9a-f]+ in [^\n]*test\n"))
      << "the caller, not a line of the interface";
  EXPECT_THAT(last_error(), HasSubstr("budget 4.00 MiB"));
  EXPECT_EQ(CALL(poolgrad_configure_sim)(3, 8 << 20), -1);
  EXPECT_THAT(last_error(), HasSubstr("sim:3 has live memory"));
  CALL(poolgrad_sim_free)(block, 3 << 20, 3, nullptr);
  void* again = CALL(poolgrad_sim_malloc)(3 << 20, 3, nullptr);
  EXPECT_EQ(again, block);
  CALL(poolgrad_sim_free)(again, 3 << 20, 3, nullptr);
}

TEST_F(CInterface, ThrowsTheReportWhereCallersIgnoreNull) {
  EXPECT_THROW(CALL(poolgrad_torch_malloc)(-1, 0, nullptr), std::runtime_error);
  try {
    CALL(poolgrad_torch_malloc)(100, 300, nullptr);
    FAIL() << "there is no such device";
  } catch (const std::exception& error) {
    EXPECT_EQ(error.what(), last_error());
  }
}

TEST_F(CInterface, KeepsTheLastErrorOfEachThread) {
  EXPECT_EQ(CALL(poolgrad_trim)(9, 0, 1, nullptr), -1);
  std::thread([] {
    EXPECT_THAT(last_error(), IsEmpty());
    EXPECT_EQ(CALL(poolgrad_trim)(8, 0, 1, nullptr), -1);
    EXPECT_THAT(last_error(), HasSubstr("got 8"));
  }).join();
  EXPECT_THAT(last_error(), HasSubstr("got 9"));
}

TEST_F(CInterface, KeepsTheBudget) {
  const auto budget = [] {
    std::size_t bytes = 0;
    EXPECT_EQ(CALL(poolgrad_budget)(POOLGRAD_SIM, 4, &bytes), 0);
    return bytes;
  };
  ASSERT_EQ(CALL(poolgrad_configure_sim)(4, 64 << 20), 0);
  EXPECT_EQ(budget(), 64u << 20);
  ASSERT_EQ(CALL(poolgrad_set_budget)(POOLGRAD_SIM, 4, 8 << 20), 0);
  EXPECT_EQ(budget(), 8u << 20);
  void* block = CALL(poolgrad_sim_malloc)(6 << 20, 4, nullptr);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(CALL(poolgrad_set_budget)(POOLGRAD_SIM, 4, 2 << 20), -1);
  EXPECT_EQ(budget(), 8u << 20);
  EXPECT_EQ(CALL(poolgrad_sim_malloc)(4 << 20, 4, nullptr), nullptr);
  CALL(poolgrad_sim_free)(block, 6 << 20, 4, nullptr);
  std::size_t released = 0;
  EXPECT_EQ(CALL(poolgrad_trim)(POOLGRAD_SIM, 4, SIZE_MAX, &released), 0);
  EXPECT_EQ(released, 6u << 20);
  EXPECT_EQ(CALL(poolgrad_trim)(POOLGRAD_SIM, 4, SIZE_MAX, nullptr), 0);
  EXPECT_EQ(statistics(POOLGRAD_SIM, 4)["reserved_bytes.all.current"], 0);
  EXPECT_EQ(statistics(POOLGRAD_SIM, 4)["reserved_bytes.all.peak"], 6 << 20);
  EXPECT_EQ(CALL(poolgrad_reset_peaks)(POOLGRAD_SIM, 4), 0);
  EXPECT_EQ(statistics(POOLGRAD_SIM, 4)["reserved_bytes.all.peak"], 0);
  EXPECT_EQ(CALL(poolgrad_budget)(POOLGRAD_SIM, 4, nullptr), -1);
}

TEST_F(CInterface, OrdersStreams) {
  int handles[2] = {};  // a stream is a pointer that is never dereferenced
  void* first = &handles[0];
  void* second = &handles[1];
  ASSERT_EQ(CALL(poolgrad_configure_sim)(5, 2 << 20), 0);
  void* block = CALL(poolgrad_sim_malloc)(2 << 20, 5, first);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(CALL(poolgrad_use)(POOLGRAD_SIM, 5, block, second), 0) << last_error();
  CALL(poolgrad_sim_free)(block, 2 << 20, 5, first);
  EXPECT_EQ(CALL(poolgrad_order)(POOLGRAD_SIM, 5, second, first), 0) << last_error();
  EXPECT_EQ(CALL(poolgrad_sim_malloc)(2 << 20, 5, second), block);
  CALL(poolgrad_sim_free)(block, 2 << 20, 5, second);
  EXPECT_EQ(CALL(poolgrad_stream_destroyed)(POOLGRAD_SIM, 5, second), 0) << last_error();
  EXPECT_EQ(CALL(poolgrad_sim_malloc)(2 << 20, 5, first), block);
  CALL(poolgrad_sim_free)(block, 2 << 20, 5, first);
}

TEST_F(CInterface, ServesAlignedRequestsFromMagazines) {
  for (int i = 0; i < 10000; ++i)
    CALL(poolgrad_sim_free)(CALL(poolgrad_sim_malloc)(1000, 8, nullptr), 1000, 8, nullptr);
  const auto all = statistics(POOLGRAD_SIM, 8);
  EXPECT_GT(all["magazine_hits"], 9000);
}

TEST_F(CInterface, KeepsThePrivatePoolsOfGraphs) {
  const poolgrad_pool_id graph{0, 7};
  int handles[2] = {};
  void* captured = &handles[0];
  void* other = &handles[1];
  const auto is_captured = [](void* stream, void* context) { return static_cast<int>(stream == context); };
  ASSERT_EQ(CALL(poolgrad_begin_pool)(POOLGRAD_SIM, 9, graph, is_captured, captured), 0) << last_error();
  const auto allocate = CALL(poolgrad_sim_malloc);
  const auto release = CALL(poolgrad_sim_free);
  void* mine = allocate(5000, 9, captured);
  release(mine, 5000, 9, captured);
  void* outside = allocate(5000, 9, other);
  EXPECT_NE(outside, mine) << "the graph will write there again";
  EXPECT_EQ(allocate(5000, 9, captured), mine) << "within the graph it may be used again";
  EXPECT_NE(allocate(5000, 9, captured), mine);
  release(mine, 5000, 9, captured);
  ASSERT_EQ(CALL(poolgrad_end_pool)(POOLGRAD_SIM, 9, graph), 0);
  EXPECT_NE(allocate(5000, 9, captured), mine) << "what comes after the capture is not the graph's";
  ASSERT_EQ(CALL(poolgrad_release_pool)(POOLGRAD_SIM, 9, graph), 0);
  EXPECT_EQ(statistics(POOLGRAD_SIM, 9)["allocation.all.current"], 3);
}

TEST_F(CInterface, NeverBlocksRequestsOutsidePrivatePools) {
  const poolgrad_pool_id graph{0, 9};
  struct Filter {
    std::atomic<bool> inside = false, goes_on = false;
    static int accepts(void* stream, void* context) {
      if (stream == nullptr) return 0;
      auto& self = *static_cast<Filter*>(context);
      self.inside = true;
      while (!self.goes_on) std::this_thread::yield();
      return 1;
    }
  } filter;
  ASSERT_EQ(CALL(poolgrad_begin_pool)(POOLGRAD_SIM, 10, graph, Filter::accepts, &filter), 0) << last_error();
  std::thread taken([&] { CALL(poolgrad_sim_malloc)(5000, 10, &filter); });
  while (!filter.inside) std::this_thread::yield();
  std::atomic<bool> done = false;
  std::thread other([&] {
    CALL(poolgrad_sim_free)(CALL(poolgrad_sim_malloc)(5000, 10, nullptr), 5000, 10, nullptr);
    done = true;
  });
  for (int waited = 0; waited < 3000 && !done; ++waited) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(done) << "it waits for a call of another stream's";
  filter.goes_on = true;
  taken.join();
  other.join();
  EXPECT_EQ(CALL(poolgrad_end_pool)(POOLGRAD_SIM, 10, graph), 0);
  EXPECT_EQ(CALL(poolgrad_release_pool)(POOLGRAD_SIM, 10, graph), 0);
}

TEST_F(CInterface, LetsAForkedChildUseABusyPrivatePool) {
  const poolgrad_pool_id graph{0, 8};
  struct Filter {
    std::atomic<bool> inside = false, forked = false, gave_up = false;
    static int accepts(void*, void* context) {
      auto& self = *static_cast<Filter*>(context);
      self.inside = true;
      // Waits for a lock that the forking thread holds, as a Python thread waits for the interpreter's lock.
      for (int waited = 0; waited < 300 && !self.forked; ++waited)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (!self.forked) self.gave_up = true;
      return 1;
    }
  } filter;
  const auto allocate = CALL(poolgrad_host_malloc);
  const auto release = CALL(poolgrad_host_free);
  release(allocate(5000, 0, nullptr), 5000, 0, nullptr);
  ASSERT_EQ(CALL(poolgrad_begin_pool)(POOLGRAD_CPU, 0, graph, Filter::accepts, &filter), 0) << last_error();
  std::atomic<bool> over = false;
  std::thread thread([&] {
    void* block = allocate(5000, 0, nullptr);
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    release(block, 5000, 0, nullptr);
  });
  while (!filter.inside) std::this_thread::yield();
  const pid_t child = fork();
  filter.forked = true;
  if (child == 0) {
    void* block = allocate(5000, 0, nullptr);
    std::memset(block, 1, 5000);
    release(block, 5000, 0, nullptr);
    void* again = allocate(5000, 0, nullptr);
    const bool kept = again == block;
    release(again, 5000, 0, nullptr);
    const bool over = CALL(poolgrad_end_pool)(POOLGRAD_CPU, 0, graph) == 0 &&
                      CALL(poolgrad_release_pool)(POOLGRAD_CPU, 0, graph) == 0;
    _exit(kept && over ? 0 : 1);
  }
  int status = 0;
  pid_t ended = 0;
  for (int waited = 0; waited < 3000 && ended == 0; ++waited) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  over = true;
  thread.join();
  EXPECT_FALSE(filter.gave_up) << "fork() waits for a filter";
  EXPECT_EQ(ended, child) << "it waits for a thread that it does not have";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(CALL(poolgrad_end_pool)(POOLGRAD_CPU, 0, graph), 0);
  EXPECT_EQ(CALL(poolgrad_release_pool)(POOLGRAD_CPU, 0, graph), 0);
  EXPECT_EQ(statistics(POOLGRAD_CPU, 0)["requested_bytes.all.current"], 0) << "the child's doings are its own";
}

TEST_F(CInterface, IgnoresForeignPointersInRecordStream) {
  int local = 0;
  CALL(poolgrad_torch_record_stream)(&local, nullptr);
  CALL(poolgrad_torch_record_stream)(nullptr, nullptr);
  CALL(poolgrad_torch_empty_cache)();
  EXPECT_THROW(CALL(poolgrad_torch_memory_fraction)(1.5, 0), std::runtime_error);
}

TEST_F(CInterface, AlignsDeviceMemoryAsCudaDoes) {
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(CALL(poolgrad_sim_malloc)(i, 6, nullptr));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % 256, 0u);
  }
  EXPECT_EQ(std::set(blocks.begin(), blocks.end()).size(), blocks.size());
  for (int i = 0; i < 100; ++i) CALL(poolgrad_sim_free)(blocks[static_cast<std::size_t>(i)], i, 6, nullptr);
}

TEST_F(CInterface, WritesTheRecordedTrace) {
  const auto folder = std::filesystem::temp_directory_path() / ("poolgrad_c_api_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  ASSERT_EQ(CALL(poolgrad_start_trace)(POOLGRAD_SIM, 7, 1000), 0) << last_error();
  EXPECT_EQ(CALL(poolgrad_begin_step)(POOLGRAD_SIM, 7), 0);
  void* block = CALL(poolgrad_sim_malloc)(12345, 7, nullptr);
  CALL(poolgrad_sim_free)(block, 12345, 7, nullptr);
  for (const char* format : {"pgt", "pickle", "json", "csv", "chrome"}) {
    const auto path = folder / format;
    EXPECT_EQ(CALL(poolgrad_snapshot)(POOLGRAD_SIM, 7, path.c_str(), format), 0) << last_error();
    EXPECT_GT(std::filesystem::file_size(path), 0u);
  }
  std::ifstream json(folder / "json");
  const std::string text{std::istreambuf_iterator<char>(json), {}};
  EXPECT_THAT(text, HasSubstr("12345"));
  EXPECT_EQ(CALL(poolgrad_snapshot)(POOLGRAD_SIM, 7, (folder / "default").c_str(), nullptr), 0) << last_error();
  EXPECT_EQ(std::filesystem::file_size(folder / "default"), std::filesystem::file_size(folder / "pgt"));
  EXPECT_EQ(CALL(poolgrad_stop_trace)(POOLGRAD_SIM, 7), 0);
  EXPECT_EQ(CALL(poolgrad_snapshot)(POOLGRAD_SIM, 7, (folder / "x").c_str(), "docx"), -1);
  EXPECT_THAT(last_error(), HasSubstr("docx"));
  EXPECT_EQ(CALL(poolgrad_snapshot)(POOLGRAD_SIM, 7, "/nowhere/at/all", "pgt"), -1);
  EXPECT_THAT(last_error(), HasSubstr("/nowhere/at/all"));
  EXPECT_EQ(CALL(poolgrad_snapshot)(POOLGRAD_SIM, 7, nullptr, "pgt"), -1);
  std::filesystem::create_symlink(folder / "circle", folder / "circle");
  EXPECT_EQ(CALL(poolgrad_snapshot)(POOLGRAD_SIM, 7, (folder / "circle").c_str(), "pgt"), -1);
  EXPECT_THAT(last_error(), HasSubstr("Too many levels of symbolic links"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "circle"));
  std::filesystem::remove_all(folder);
}

TEST_F(CInterface, ServesManyThreads) {
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < 4; ++id) {
    threads.emplace_back([id] {
      const auto allocate = CALL(poolgrad_host_malloc);
      const auto release = CALL(poolgrad_host_free);
      for (int i = 0; i < 2000; ++i) {
        const ssize_t size = 1 + (i * 37 + static_cast<int>(id)) % 5000;
        auto* bytes = static_cast<unsigned char*>(allocate(size, 0, nullptr));
        std::memset(bytes, static_cast<int>(id), static_cast<std::size_t>(size));
        EXPECT_EQ(bytes[size - 1], id);
        release(bytes, size, 0, nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(statistics(POOLGRAD_CPU, 0)["requested_bytes.all.current"], 0);
}

TEST_F(CInterface, RefusesToEndOrReleaseAPoolThatDoesNotExist) {
  const poolgrad_pool_id graph{3, 14};
  const auto end = [&] { return CALL(poolgrad_end_pool)(POOLGRAD_SIM, 12, graph); };
  const auto release = [&] { return CALL(poolgrad_release_pool)(POOLGRAD_SIM, 12, graph); };
  EXPECT_EQ(end(), -1);
  EXPECT_EQ(last_error(), "[poolgrad_end_pool] the private pool (3, 14) of sim:12 was not begun");
  EXPECT_EQ(release(), -1);
  EXPECT_EQ(last_error(), "[poolgrad_release_pool] the private pool (3, 14) of sim:12 does not exist");
  ASSERT_EQ(CALL(poolgrad_begin_pool)(POOLGRAD_SIM, 12, graph, nullptr, nullptr), 0);
  ASSERT_EQ(CALL(poolgrad_begin_pool)(POOLGRAD_SIM, 12, graph, nullptr, nullptr), 0);
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(end(), -1) << "one call ends both";
  EXPECT_EQ(release(), 0);
  EXPECT_EQ(release(), 0) << "each is released";
  EXPECT_EQ(release(), -1);
}

TEST_F(CInterface, ReportsATraceBeyondTheMemoryOfTheMachine) {
  // Rings of 64 TiB exceed the memory of any machine.
  EXPECT_EQ(CALL(poolgrad_start_trace)(POOLGRAD_SIM, 13, std::size_t{1} << 40), -1);
  EXPECT_EQ(last_error(),
            "[start_trace] the machine has no memory for rings of 1099511627776 events, 64.00 TiB for each thread");
  EXPECT_EQ(CALL(poolgrad_start_trace)(POOLGRAD_SIM, 13, 16), 0) << last_error();
  EXPECT_EQ(CALL(poolgrad_stop_trace)(POOLGRAD_SIM, 13), 0);
}

TEST_F(CInterface, EndsTheProgramOnAWrongFree) {
  int local = 0;
  EXPECT_DEATH(CALL(poolgrad_host_free)(&local, 4, 0, nullptr), "foreign pointer");
}

TEST_F(CInterface, EndsTheProgramOnAWrongFreeOfAPrivateBlock) {
  const poolgrad_pool_id graph{0, 10};
  ASSERT_EQ(CALL(poolgrad_begin_pool)(POOLGRAD_SIM, 11, graph, nullptr, nullptr), 0) << last_error();
  const auto release = CALL(poolgrad_sim_free);
  void* block = CALL(poolgrad_sim_malloc)(5000, 11, nullptr);
  EXPECT_DEATH(release(block, 5001, 11, nullptr), "wrong size for .* on sim:11: it has 5000 bytes, not 5001");
  release(block, 5000, 11, nullptr);
  EXPECT_DEATH(release(block, 5000, 11, nullptr), "double free of .* on sim:11: the private pool");
  EXPECT_EQ(CALL(poolgrad_end_pool)(POOLGRAD_SIM, 11, graph), 0);
  EXPECT_EQ(CALL(poolgrad_release_pool)(POOLGRAD_SIM, 11, graph), 0);
}

}  // namespace
