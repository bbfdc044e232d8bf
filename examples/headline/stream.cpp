// Attention over a sequence that no memory holds: chunk by chunk, each made from a counter, attended, reduced to a
// checksum, and forgotten. 2^30 tokens are really streamed, not one chunk multiplied.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "attention/attend.h"
#include "attention/ring/ring.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/views.h"
#include "examples/headline/headline.h"
#include "examples/support/console.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

struct StreamedWork {
  std::int64_t tokens = 0;  // of the whole sequence
  std::int64_t chunk = 4096;
  int ring = 1;  // chunks that attend to each other: as many as the longest segment covers
  std::int64_t heads = 8, head_dim = 64;
  std::vector<std::int64_t> segment_lengths, dilation_rates;
  attention::DilatedMode mode = attention::DilatedMode::longnet;
};

struct Block {
  Tensor q, k, v;
};

/// Block `index` of the sequence: a function of the seed and the index alone.
Block make_block(const StreamedWork& work, const Bench& bench, std::int64_t index) {
  Generator generator(bench.seed, static_cast<std::uint64_t>(index) + 1);
  const Shape shape{1, work.ring * work.chunk, work.heads, work.head_dim};
  const auto next = [&] { return uniform(shape, -1, 1, {.dtype = bench.dtype, .device = bench.device}, generator); };
  Block block;
  block.q = next(), block.k = next(), block.v = next();
  return block;
}

/// A row of the output that was kept to be checked.
struct Sample {
  std::int64_t block, row, head;
  std::vector<double> out;
};

/// The definition in f64, one row; positions count from the start of the sequence.
std::vector<double> row_by_definition(const StreamedWork& work, const Block& block, const attention::Pattern& pattern,
                                      const Sample& sample) {
  const std::int64_t length = work.ring * work.chunk, first = sample.block * length;
  const auto head = [&](const Tensor& x) { return select(x, 2, sample.head).on_host().to_vector<double>(); };
  const std::vector<double> q = head(block.q), k = head(block.k), v = head(block.v);
  const auto at = [&](const std::vector<double>& x, std::int64_t row, std::int64_t d) {
    return x[static_cast<std::size_t>(row * work.head_dim + d)];
  };
  double z = 0;
  std::vector<double> out(static_cast<std::size_t>(work.head_dim));
  for (std::int64_t j = 0; j < length; ++j) {
    const std::int64_t m = pattern.multiplicity(sample.head, work.heads, first + sample.row, first + j);
    if (m == 0) continue;
    double score = 0;
    for (std::int64_t d = 0; d < work.head_dim; ++d) score += at(q, sample.row, d) * at(k, j, d);
    const double weight = static_cast<double>(m) * std::exp(score / std::sqrt(static_cast<double>(work.head_dim)));
    z += weight;
    for (std::int64_t d = 0; d < work.head_dim; ++d) out[static_cast<std::size_t>(d)] += weight * at(v, j, d);
  }
  for (double& x : out) x = z > 0 ? x / z : 0;
  return out;
}

double worst_error(const StreamedWork& work, const Bench& bench, const attention::Pattern& pattern,
                   const std::vector<Sample>& samples) {
  double worst = 0;
  for (const Sample& sample : samples) {
    const Block block = make_block(work, bench, sample.block);
    const std::vector<double> truth = row_by_definition(work, block, pattern, sample);
    for (std::size_t d = 0; d < truth.size(); ++d) worst = std::max(worst, std::abs(truth[d] - sample.out[d]));
  }
  return worst;
}

/// Computes blocks of ring * chunk tokens from the first one on, until all are done or bench.stream_seconds have
/// passed; then checks random rows against the definition in f64, with their keys made anew. The outcome's milliseconds
/// are those of one block; the remark has tokens, tokens per second, the worst error, and the time for all of them,
/// marked as an extrapolation.
Outcome stream(const StreamedWork& work, Bench& bench) {
  const NoGradGuard guard;
  const std::int64_t length = work.ring * work.chunk, blocks = (work.tokens + length - 1) / length;
  for (const std::int64_t segment : work.segment_lengths)
    if (length % segment != 0)
      throw ValueError(fmt::format("[headline] segments of {} do not divide blocks of {} tokens", segment, length));
  const auto pattern = attention::Pattern::dilated(work.segment_lengths, work.dilation_rates, {.mode = work.mode});
  CachingAllocator& pool = allocator_for(bench.device);
  pool.trim();
  pool.reset_peaks();
  std::mt19937_64 random(bench.seed);
  std::vector<Sample> samples;
  std::vector<double> milliseconds;
  double checksum = 0;
  const Stopwatch watch;
  std::int64_t done = 0;
  for (; done < blocks && (done == 0 || (watch.seconds() < bench.stream_seconds && !InterruptGuard::interrupted()));
       ++done) {
    const Block block = make_block(work, bench, done);
    Tensor out;
    milliseconds.push_back(1e3 * seconds_of(bench.device, [&] {
                             // Segments divide a block, so that positions may count from its start.
                             out = work.ring > 1
                                       ? attention::ring_attend_all(block.q, block.k, block.v, pattern, work.ring).out
                                       : attention::attend(block.q, block.k, block.v, pattern).out;
                           }));
    checksum += sum(out).item();
    // One row of about every tenth block, at least of the first.
    if (samples.size() < 32 && (done == 0 || random() % 10 == 0)) {
      Sample sample{done,
                    static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(length)),
                    static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(work.heads)),
                    {}};
      sample.out = select(select(select(out, 0, 0), 0, sample.row), 0, sample.head).to_vector<double>();
      samples.push_back(std::move(sample));
    }
    if (bench.progress)
      bench.progress->status(fmt::format("{} {} of {} tokens", bar(watch.seconds() / bench.stream_seconds),
                                         format_count(static_cast<double>((done + 1) * length)),
                                         format_count(static_cast<double>(work.tokens))));
  }
  const double seconds = watch.seconds(), rate = static_cast<double>(done * length) / seconds;

  Outcome outcome;
  outcome.milliseconds = median(milliseconds);
  outcome.calls = static_cast<int>(done);
  outcome.tokens = length;
  outcome.operations =
      operations_of({.tokens = length, .heads = work.heads, .head_dim = work.head_dim, .pattern = pattern});
  take_peaks(pool, outcome);
  outcome.formula_bytes =
      formula_bytes({.tokens = length, .heads = work.heads, .head_dim = work.head_dim}, bench.dtype);
  outcome.worst_error = worst_error(work, bench, pattern, samples);
  const bool whole = done == blocks;
  outcome.remark = fmt::format(
      "{} tokens really computed in {}, {} tokens/s with their making; {} random rows differ from the definition in "
      "f64 by "
      "at most {:.1e}; checksum {:.6g}; {}",
      done * length, format_duration(seconds), format_count(rate), samples.size(), *outcome.worst_error, checksum,
      whole ? "all of them"
            : fmt::format("all {} would take {} (extrapolated)", format_count(static_cast<double>(work.tokens)),
                          format_duration(static_cast<double>(work.tokens) / rate)));
  return outcome;
}

}  // namespace

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
