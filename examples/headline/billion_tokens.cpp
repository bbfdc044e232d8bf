// 2^30 tokens, and a trillion: streamed, not one chunk multiplied.
#include "examples/headline/groups.h"
#include "examples/headline/stream.h"

namespace poolgrad::examples {

Group billion_tokens() {
  using attention::DilatedMode;
  Group group{
      "billion",
      "1,073,741,824 tokens in chunks of 4096 (report 001)",
      "The original timed one random chunk once, cold, and multiplied by 262,144; no keys ever crossed a chunk. "
      "With segments up to 2048 none has to. Here: chunk after chunk for the time given (--seconds), each made, "
      "attended and summed; the second configuration has segments of 8192 and 16,384, so that four chunks pass "
      "their keys around a ring.",
      {}};
  constexpr std::int64_t billion = std::int64_t{1} << 30;
  const auto add = [&](const char* id, const char* label, const StreamedWork& work, const Theirs& theirs) {
    group.rows.push_back({id, label, 1, billion, theirs, [work](Bench& bench) { return stream(work, bench); }});
  };
  StreamedWork work{.tokens = billion, .segment_lengths = {512, 1024, 2048}, .dilation_rates = {1, 2, 4}};
  add("billion-longnet", "segments 512 to 2048, longnet", work, {31.2, 0.03e9});
  work.mode = DilatedMode::grouped;
  add("billion-grouped", "segments 512 to 2048, grouped", work, {31.2, 0.03e9});
  work.mode = DilatedMode::longnet;
  work.ring = 4;
  work.segment_lengths = {4096, 8192, 16384};
  add("billion-ring", "segments 4096 to 16,384, ring of 4", work, {});
  return group;
}

}  // namespace poolgrad::examples
