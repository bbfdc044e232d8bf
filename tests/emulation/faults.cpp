#include "tests/emulation/faults.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "tests/emulation/device.h"

namespace poolgrad::emulation {
namespace {

// Read by the signal handler, which must not lock.
struct Range {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<int> device{0};
};
std::array<Range, 256> ranges;
struct sigaction previous_action;

const Range* range_of(std::uintptr_t address) {
  for (const Range& range : ranges)
    if (range.begin.load() <= address && address < range.end.load()) return &range;
  return nullptr;
}

void report_fault(int, siginfo_t* fault, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(fault->si_addr);
  if (const Range* range = range_of(address)) {
    char text[300];
    const int length =
        activity.op ? std::snprintf(
                          text, sizeof(text),
                          "[%s] thread %lld of block %lld uses address 0x%llx of cuda:%d, where no memory is mapped\n",
                          activity.op, static_cast<long long>(activity.thread), static_cast<long long>(activity.block),
                          static_cast<unsigned long long>(address), range->device.load())
                    : std::snprintf(text, sizeof(text),
                                    "[emulation] the host uses address 0x%llx, which is memory of cuda:%d\n",
                                    static_cast<unsigned long long>(address), range->device.load());
    if (length > 0 && write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) std::abort();
  }
  sigaction(SIGSEGV, &previous_action, nullptr);  // the access repeats under the previous handler
}

}  // namespace

bool handle_faults() {
  static const bool handled = [] {
    struct sigaction action {};
    action.sa_sigaction = &report_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &previous_action) == 0;
  }();
  return handled;
}

void name_addresses(int device, std::uintptr_t begin, std::size_t bytes) {
  const auto unused = std::find_if(ranges.begin(), ranges.end(), [](const Range& range) { return range.end == 0; });
  if (unused == ranges.end()) return;
  unused->device = device;
  unused->begin = begin;
  unused->end = begin + bytes;
}

void forget_addresses(std::uintptr_t begin) {
  for (Range& range : ranges)
    if (range.begin == begin) range.end = 0;
}

}  // namespace poolgrad::emulation
