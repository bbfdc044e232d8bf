#include "kernels/cpu/attention_wavefront.h"

#include <thread>

namespace poolgrad::kernels::attention {
namespace {

/// Asks the core to spend less on a loop that waits.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Wavefront::Turn::wait(std::int64_t row) const {
  // A pair of tiles takes about 100 us; whoever waits longer than some of them lets others have the core.
  for (int turn = 0; !ready(row); ++turn)
    if (turn < 4096)
      pause();
    else
      std::this_thread::yield();
}

}  // namespace poolgrad::kernels::attention
