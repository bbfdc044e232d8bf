// Measures the rows of the tables.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "attention/attend.h"
#include "attention/modules/multihead.h"
#include "attention/ring/ring.h"
#include "autograd/engine/engine.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/views.h"
#include "examples/headline/headline.h"
#include "examples/support/options.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

/// The tensors of a row, reused by successive calls.
class Calls {
 public:
  Calls(const AttentionWork& work, DType dtype, Device device, std::uint64_t seed) : work_(work) {
    Generator generator(seed);
    const Shape shape{work.batch, work.tokens, work.heads, work.head_dim};
    const auto input = [&](Category category) {
      const MemoryScope scope("headline", category);
      return rand(shape, -1.0, 1.0, {.dtype = dtype, .device = device}, generator);
    };
    q_ = input(Category::query), k_ = input(Category::key), v_ = input(Category::value);
    if (work.work == Work::training) grad_ = input(Category::gradient);
  }

  /// Seconds of one call.
  double run() {
    return seconds_of(q_.device(), [&] {
      if (work_.work == Work::training) return train();
      const NoGradGuard guard;
      const Tensor out = forward({.out_over_q = work_.work == Work::forward_over_query});
      if (work_.work == Work::forward_over_query) q_ = out;
    });
  }

 private:
  Tensor forward(const attention::AttendOptions& options) {
    if (work_.ring > 1)
      return attention::ring_attend_all(q_, k_, v_, work_.pattern, work_.ring, {.attend = options}).out;
    return attention::attend(q_, k_, v_, work_.pattern, options).out;
  }
  /// Returns gradients instead of accumulating them in leaves, as between the layers of a model.
  void train() {
    for (Tensor* x : {&q_, &k_, &v_}) x->set_requires_grad();
    grad({forward({.dq_over_out = true})}, {q_, k_, v_}, {grad_});
  }

  AttentionWork work_;
  Tensor q_, k_, v_, grad_;
};

/// One call on fresh tensors; throws OutOfMemoryError.
void run_once(const AttentionWork& work, DType dtype, Device device) { Calls(work, dtype, device, 1).run(); }

/// Counts only bytes, on a large enough sim device.
void simulate(const AttentionWork& work, DType dtype, Outcome& outcome) {
  const Device device{DeviceType::sim, 0};
  allocator_for(device).trim();
  configure_simulated_device(0, static_cast<std::size_t>(1.1 * outcome.formula_bytes) + (std::size_t{1} << 30));
  CachingAllocator& pool = allocator_for(device);
  pool.reset_peaks();
  run_once(work, dtype, device);
  take_peaks(pool, outcome);
  outcome.simulated = true;
}

}  // namespace

void take_peaks(const CachingAllocator& pool, Outcome& outcome) {
  const Statistics statistics = pool.statistics();
  outcome.peak_bytes = static_cast<double>(statistics.allocated_bytes.peak);
  outcome.reserved_bytes = static_cast<double>(statistics.reserved_bytes.peak);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double operations_of(const AttentionWork& work) {
  const auto positions = kernels::PositionMap::contiguous(work.tokens);
  double pairs = 0;
  for (const kernels::AttentionSchedule& pass : work.pattern.compile(work.heads, positions, positions).passes)
    pairs += pass.count_pairs();
  const double forward = 4.0 * static_cast<double>(work.batch * work.head_dim) * pairs;
  return work.work == Work::training ? 3.5 * forward : forward;
}

double formula_bytes(const AttentionWork& work, DType dtype) {
  const auto rows = static_cast<double>(work.batch * work.tokens * work.heads);
  const double tensor = rows * static_cast<double>(work.head_dim) * static_cast<double>(size_of(dtype));
  const double statistic = 4.0 * rows;  // lse; delta
  switch (work.work) {
    case Work::forward: return 4 * tensor + statistic;
    case Work::forward_over_query: return 3 * tensor + statistic;
    case Work::training: return 7 * tensor + 2 * statistic;  // q, k, v, out = dq, dO, dk, dv
  }
  return 0;
}

namespace {

/// Repeats the work while time permits, at least once.
Outcome measure(const AttentionWork& work, Bench& bench) {
  const DType dtype = bench.dtype;
  Outcome outcome;
  outcome.operations = operations_of(work);
  outcome.formula_bytes = formula_bytes(work, dtype);
  if (bench.device.is_cpu() && 1.01 * outcome.formula_bytes > static_cast<double>(bench.memory)) {
    simulate(work, dtype, outcome);
    outcome.remark = fmt::format("needs more than the {} of this machine", format_bytes(bench.memory));
    return outcome;
  }
  const double expected = bench.rate > 0 ? outcome.operations / bench.rate : 0;
  if (expected > bench.row_seconds) {
    simulate(work, dtype, outcome);
    outcome.remark = fmt::format("would take about {} here, above --row-seconds", format_duration(expected));
    return outcome;
  }

  const PoolGuard pool(bench.device, work.budget);
  try {
    Calls calls(work, dtype, bench.device, bench.seed);
    std::vector<double> seconds{calls.run()};
    take_peaks(*pool, outcome);
    // The first call runs on cold memory; short rows are repeated and the median counts.
    double spent = 0;
    for (int more = seconds[0] < 1 ? 5 : seconds[0] < 15 ? 1 : 0; more > 0 && spent < bench.row_seconds; --more) {
      if (outcome.calls == 0) seconds.clear();
      seconds.push_back(calls.run());
      spent += seconds.back();
      ++outcome.calls;
    }
    outcome.calls = std::max(outcome.calls, 1);
    outcome.milliseconds = 1e3 * median(seconds);
    bench.rate = std::max(bench.rate, outcome.operations / (1e-3 * *outcome.milliseconds));
  } catch (const OutOfMemoryError&) {
    outcome.remark = "out of memory" + (work.budget.empty() ? std::string() : " within " + work.budget);
  }
  return outcome;
}

}  // namespace

Row attention_row(std::string id, std::string label, const AttentionWork& work, const Theirs& theirs) {
  return {std::move(id), std::move(label), work.batch,
          work.tokens,   theirs,           [work](Bench& bench) { return measure(work, bench); }};
}

namespace {

constexpr std::size_t capacity = std::size_t{8} << 30;
constexpr std::int64_t step = 512;

/// sim:index with 8 GiB; the first call sets these options.
Device simulated(int index, const char* options) {
  const char* given = std::getenv("POOLGRAD_ALLOCATOR");
  const std::string before = given ? given : "";
  setenv("POOLGRAD_ALLOCATOR", options, 1);
  configure_simulated_device(index, capacity);
  given ? setenv("POOLGRAD_ALLOCATOR", before.c_str(), 1) : unsetenv("POOLGRAD_ALLOCATOR");
  return {DeviceType::sim, static_cast<std::uint8_t>(index)};
}

bool fits(AttentionWork work, std::int64_t tokens, DType dtype, Device device) {
  work.tokens = tokens;
  CachingAllocator& pool = allocator_for(device);
  pool.trim();
  pool.reset_peaks();
  try {
    run_once(work, dtype, device);
    return true;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

constexpr std::pair<std::int64_t, std::int64_t> shapes[] = {{2, 512}, {4, 1024}, {1, 512}, {3, 1024}, {2, 1536}};

struct Cycles {
  double milliseconds = 0;  // of a call: median over rounds of the mean over shapes
  double hit_rate = 0;
  std::vector<Tensor> last;  // outputs of the last round
};

/// Rounds over all shapes; the first ones are warm-up.
Cycles run_cycles(Bench& bench, CachingAllocator& pool, bool keep) {
  constexpr int warm = 2, rounds = 9;
  const NoGradGuard guard;
  const auto pattern =
      attention::Pattern::dilated({128, 256, 512}, {1, 2, 4}, {.mode = attention::DilatedMode::grouped});
  const TensorOptions options{.dtype = bench.dtype, .device = bench.device};
  Generator generator(bench.seed);
  std::vector<Tensor> inputs;
  for (const auto& [batch, tokens] : shapes) inputs.push_back(rand({batch, tokens, 8, 64}, -1, 1, options, generator));

  Cycles result;
  std::vector<double> times;
  Statistics before{};
  for (int round = 0; round < warm + rounds; ++round) {
    if (round == warm) before = pool.statistics();
    result.last.clear();
    double spent = 0;
    for (const Tensor& x : inputs) {
      spent += 1e3 * seconds_of(bench.device, [&] {
                 const Tensor q = x.copy(), k = x.copy(), v = x.copy();
                 result.last.push_back(attention::attend(q, k, v, pattern).out);
                 if (!keep) pool.trim();
               });
    }
    if (round >= warm) times.push_back(spent / std::size(shapes));
  }
  const Statistics after = pool.statistics();
  result.milliseconds = median(times);
  result.hit_rate = static_cast<double>(after.pool_hits - before.pool_hits) /
                    static_cast<double>(std::max<std::uint64_t>(1, after.requests - before.requests));
  return result;
}

}  // namespace

Outcome longest_sequence(const AttentionWork& work, int index, const char* options, Bench& bench) {
  const Device device = simulated(index, options);
  std::int64_t good = step, bad = 16 * 1024 * step;
  while (bad - good > step) {
    const std::int64_t middle = (good + bad) / 2 / step * step;
    (fits(work, middle, bench.dtype, device) ? good : bad) = middle;
  }
  fits(work, good, bench.dtype, device);
  AttentionWork largest = work;
  largest.tokens = good;
  Outcome outcome;
  outcome.simulated = true;
  outcome.formula_bytes = formula_bytes(largest, bench.dtype);
  take_peaks(allocator_for(device), outcome);
  outcome.tokens = good;
  return outcome;
}

Outcome run_shapes(Bench& bench) {
  CachingAllocator& pool = allocator_for(bench.device);
  pool.trim();
  const Cycles cold = run_cycles(bench, pool, false);
  pool.trim();
  pool.reset_peaks();
  const Cycles warm = run_cycles(bench, pool, true);
  Outcome outcome;
  outcome.milliseconds = warm.milliseconds;
  outcome.calls = 9 * static_cast<int>(std::size(shapes));
  take_peaks(pool, outcome);
  outcome.remark = fmt::format("{:.2f} ms if each call releases its memory: {:.2f}x; hit rate {:.3f}; {}",
                               cold.milliseconds, cold.milliseconds / warm.milliseconds, warm.hit_rate,
                               std::ranges::equal(cold.last, warm.last, bit_equal) ? "same bits" : "RESULTS DIFFER");
  return outcome;
}

Outcome run_module(const attention::Pattern& pattern, std::int64_t tokens, bool multihead, Bench& bench) {
  constexpr std::int64_t heads = 8, head_dim = 64, width = heads * head_dim;
  const NoGradGuard guard;
  const TensorOptions options{.dtype = DType::f32, .device = bench.device};
  Generator generator(bench.seed);
  CachingAllocator& pool = allocator_for(bench.device);
  pool.trim();
  pool.reset_peaks();
  const auto input = [&](const Shape& shape) { return rand(shape, -1, 1, options, generator); };
  std::function<Tensor()> call;
  std::unique_ptr<attention::MultiheadAttention> shell;
  if (multihead) {
    shell = std::make_unique<attention::MultiheadAttention>(
        width, heads, attention::MultiheadOptions{},
        nn::ParameterOptions{.device = bench.device, .generator = &generator}, pattern);
    shell->eval();
    call = [&shell, x = input({1, tokens, width})] { return (*shell)(x); };
  } else {
    const Shape shape{1, tokens, heads, head_dim};
    const Tensor q = input(shape), k = input(shape), v = input(shape);
    call = [=] { return attention::attend(q, k, v, pattern).out; };
  }
  call();
  std::vector<double> milliseconds;
  for (int i = 0; i < 9; ++i) milliseconds.push_back(1e3 * seconds_of(bench.device, call));
  Outcome outcome;
  outcome.milliseconds = median(milliseconds);
  outcome.calls = static_cast<int>(milliseconds.size());
  take_peaks(pool, outcome);
  outcome.operations = operations_of({.tokens = tokens, .pattern = pattern});
  if (multihead) outcome.operations += 8.0 * static_cast<double>(tokens * width * width);
  return outcome;
}

// Attention over a sequence larger than memory. Generates each chunk from a counter, attends, adds to a checksum, and
// frees it. It really streams 2^30 tokens, not one chunk multiplied.

namespace {

struct Block {
  Tensor q, k, v;
};

/// Block `index` of the sequence: a function of the seed and the index.
Block make_block(const StreamedWork& work, const Bench& bench, std::int64_t index) {
  Generator generator(bench.seed, static_cast<std::uint64_t>(index) + 1);
  const Shape shape{1, work.ring * work.chunk, work.heads, work.head_dim};
  const auto next = [&] { return rand(shape, -1, 1, {.dtype = bench.dtype, .device = bench.device}, generator); };
  Block block;
  block.q = next(), block.k = next(), block.v = next();
  return block;
}

/// An output row kept for the check.
struct Sample {
  std::int64_t block, row, head;
  std::vector<double> out;
};

/// One row by definition, in f64; positions count from the start of the sequence.
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

}  // namespace

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
                             // Segments divide a block, so positions may count from its start.
                             out = work.ring > 1
                                       ? attention::ring_attend_all(block.q, block.k, block.v, pattern, work.ring).out
                                       : attention::attend(block.q, block.k, block.v, pattern).out;
                           }));
    checksum += sum(out).item();
    // Samples one row of about every tenth block, and of the first.
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
      "{} tokens computed in {}, {} tokens/s including their generation; {} random rows differ from the definition in "
      "f64 by at most {:.1e}; checksum {:.6g}; {}",
      done * length, format_duration(seconds), format_count(rate), samples.size(), *outcome.worst_error, checksum,
      whole ? "all of them"
            : fmt::format("all {} would take {} (extrapolated)", format_count(static_cast<double>(work.tokens)),
                          format_duration(static_cast<double>(work.tokens) / rate)));
  return outcome;
}

}  // namespace poolgrad::examples
