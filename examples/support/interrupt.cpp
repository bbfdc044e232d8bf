#include "examples/support/interrupt.h"

#include <csignal>

namespace poolgrad::examples {

namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  stop_requested = 0;
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool InterruptGuard::interrupted() { return stop_requested != 0; }

}  // namespace poolgrad::examples
