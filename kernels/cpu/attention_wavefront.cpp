#include "kernels/cpu/attention_wavefront.h"

#include <algorithm>
#include <thread>

namespace poolgrad::kernels::attention {
namespace {

/// Asks the core to spend less on a loop that waits.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// How much later than the tile before it a tile of all heads of a group has to begin, so that it need not wait.
double delay(const AttentionReach& reach, std::int64_t first_head, std::int64_t group, std::int64_t tile) {
  double longest = 0, ahead = 0, own = 0;
  for (std::int64_t h = first_head; h < first_head + group; ++h) {
    longest = std::max(longest, ahead + reach.at(h, tile).delay - own);
    ahead += reach.at(h, tile - 1).pairs;
    own += reach.at(h, tile).pairs;
  }
  return longest;
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

double wavefront_length(const AttentionReach& reach, std::int64_t batches, std::int64_t heads, std::int64_t group,
                        int threads) {
  std::vector<double> free(static_cast<std::size_t>(threads));  // when each thread has done its last item
  double end = 0;
  for (std::int64_t n = 0; n < batches * heads; ++n) {
    const std::int64_t first_head = n % heads * group;
    double begin_before = 0, end_before = 0;
    for (std::int64_t tile = 0; tile < reach.tiles(); ++tile) {
      double pairs = 0;
      for (std::int64_t h = first_head; h < first_head + group; ++h) pairs += reach.at(h, tile).pairs;
      const auto first = std::min_element(free.begin(), free.end());
      if (tile > 0) begin_before += delay(reach, first_head, group, tile);
      begin_before = std::max(begin_before, *first);
      *first = end_before = std::max(begin_before + pairs, end_before);
    }
    end = std::max(end, end_before);
  }
  return end;
}

}  // namespace poolgrad::kernels::attention
