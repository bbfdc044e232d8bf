#include "examples/plan/scale.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "examples/plan/dry_run.h"
#include "parallel/training_ranks.h"

namespace poolgrad::examples {

namespace {

using attention::Exchange;
using attention::Layout;
using attention::Pattern;
using attention::RingCostModel;
using attention::RingShare;

DevicePeaks peaks_of(const std::string& name) {
  std::vector<std::string> names;
  for (const DevicePeaks& device : scale_devices()) {
    if (device.name == name) return device;
    names.push_back(device.name);
  }
  throw ValueError(fmt::format("[plan] --device must be one of {} with --ranks, but is {}", fmt::join(names, ", "),
                               printable(name)));
}

kernels::Roofline roofline_of(const DevicePeaks& device, DType dtype) {
  if (dtype == DType::f64) throw ValueError("[plan] --ranks knows the peaks of devices for f32, f16 and bf16, not f64");
  const bool half = dtype != DType::f32;
  return {.bytes = 1e3 * device.terabytes_per_second,
          .operations = 1e3 * (half ? device.half_teraflops : device.single_teraflops)};
}

/// For its lifetime, this thread's simulated devices have the given speed.
class RooflineGuard {
 public:
  explicit RooflineGuard(const kernels::Roofline& roofline) { kernels::simulated_roofline() = roofline; }
  ~RooflineGuard() { kernels::simulated_roofline() = before_; }
  RooflineGuard(const RooflineGuard&) = delete;
  RooflineGuard& operator=(const RooflineGuard&) = delete;

 private:
  kernels::Roofline before_ = kernels::simulated_roofline();
};

/// Adds messages and bytes of the rank that sends most; if ranks differ, it is at an end of the sequence.
void add_sends(ScaleRow& row, const RingCostModel& ring, const RingShare& share, Exchange exchange,
               std::int64_t layers) {
  std::int64_t messages = 0, bytes = 0;
  for (const int rank : {0, ring.plan().ranks() - 1}) {
    std::int64_t own_messages = 0, own_bytes = 0;
    std::vector<attention::RingSend> sends = ring.sends(rank, share, exchange, true);
    const std::size_t forward = ring.plan().visited().size() - 1;  // as many keys as in the backward
    if (exchange == Exchange::ring) {
      const auto keys = ring.sends(rank, share, exchange, false);
      sends.insert(sends.end(), keys.begin(), keys.end());
    } else {
      for (std::size_t n = 0; n < forward; ++n) sends.push_back(attention::RingSend(sends[n]));
    }
    for (const attention::RingSend& send : sends) own_messages += send.bytes > 0, own_bytes += send.bytes;
    if (own_bytes > bytes) messages = own_messages, bytes = own_bytes;
  }
  row.messages += layers * messages, row.bytes_sent += layers * bytes;
}

/// As parallel::SumOverRanks, bucket by bucket: all ranks send each rank its part, which it sums and sends to all. The
/// model does not hide communication behind the backward pass.
void add_reduction(ScaleRow& row, const Scale& scale) {
  if (scale.ranks == 1) return;
  constexpr std::int64_t width = size_of(DType::f32);
  const std::int64_t bucket = parallel::TrainingRanksOptions{}.bucket_bytes / width;
  const Link& link = scale.cluster.link;
  for (std::int64_t left = scale.parameters; left > 0; left -= bucket) {
    const std::int64_t count = std::min(left, bucket), others = scale.ranks - 1;
    const std::int64_t own = (count + others) / scale.ranks, bytes = (count - own + others * own) * width;
    const auto part = static_cast<double>(own * width);
    const double sum = scale.cluster.device.nanoseconds({3 * part, 0});
    const double copy = scale.cluster.device.nanoseconds({2 * part, 0});
    const double adding = 1e-9 * (static_cast<double>(others) * sum + 2 * copy);
    row.messages += std::min(others, count) + others, row.bytes_sent += bytes;
    row.reduction.computing += adding;
    row.reduction.total += adding + static_cast<double>(bytes) / link.bytes_per_second + 2 * link.latency;
  }
}

/// Equal layers on a ring.
struct LayerWork {
  RingShare share;
  RingCostModel ring;
  std::int64_t count;
};

ScaleRow row_of(const Scale& scale, const std::vector<LayerWork>& layers, Exchange exchange, std::string name) {
  ScaleRow row{.name = std::move(name)};
  for (const auto& [share, ring, count] : layers) {
    row.steps = std::max(row.steps, ring.plan().visited().size());
    const attention::RingMemory memory = ring.memory(share, exchange);
    if (memory.backward > row.memory.backward) row.memory = memory;
    row.forward += forward_time(ring, share, exchange, scale.cluster) * static_cast<double>(count);
    row.backward += backward_time(ring, share, exchange, scale.cluster) * static_cast<double>(count);
    add_sends(row, ring, share, exchange, count);
  }
  add_reduction(row, scale);
  row.step_seconds = scale.other_seconds + row.forward.total + row.backward.total + row.reduction.total;
  return row;
}

/// The work of one rank without communication.
void plan_rank(Scale& scale, const std::vector<LayerWork>& alone) {
  TrainOptions rank = scale.train;
  rank.context = scale.tokens();
  rank.device = scale.device.name == "cpu" ? "cpu" : "cuda";
  const RooflineGuard guard(scale.cluster.device);
  const DryRun run = dry_run(rank, no_limit, Through::steps);
  if (!run.fits) throw ValueError("[plan] the tokens of a rank need more memory than any device has: " + run.refusal);
  scale.parameters = run.parameters;
  scale.step_bytes = run.peak_live;
  const ScaleRow row = row_of(scale, alone, Exchange::ring, "");
  scale.other_seconds = std::max(0.0, run.step_seconds - row.forward.total - row.backward.total);
}

}  // namespace

Link parse_link(const std::string& text) {
  const auto refuse = [&] {
    return ValueError("[plan] --link must be bytes a second and a latency, such as 50GB/s,5us, but is " +
                      printable(text));
  };
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos || comma < 2 || text.compare(comma - 2, 2, "/s") != 0) throw refuse();
  Link link;
  try {
    link.bytes_per_second = static_cast<double>(parse_bytes(text.substr(0, comma - 2)));
  } catch (const ValueError&) {
    throw refuse();
  }
  link.latency = parse_seconds(text.substr(comma + 1)).value_or(-1);
  if (link.bytes_per_second <= 0 || link.latency < 0) throw refuse();
  return link;
}

const std::vector<DevicePeaks>& scale_devices() {
  // From NVIDIA's data sheets, without sparsity: H100 and H200 Tensor Core GPU (SXM), A100 80GB (SXM), Ada GPU
  // architecture (GeForce RTX 4090, sums in f32). Half precision uses tensor cores, f32 does not. cpu: the simulated
  // device of kernels/dispatch.h.
  static const std::vector<DevicePeaks> devices{{"cpu", 3.35, 50, 50, ""},
                                                {"a100", 2.039, 312, 19.5, "80GB"},
                                                {"h100", 3.35, 989.4, 66.9, "80GB"},
                                                {"h200", 4.8, 989.4, 66.9, "141GB"},
                                                {"rtx4090", 1.008, 165.2, 82.6, "24GB"}};
  return devices;
}

Scale make_scale(const ScaleOptions& options, Progress& progress) {
  const Stopwatch watch;
  Scale scale{.train = options.train, .ranks = options.ranks};
  TrainOptions& train = scale.train;
  if (train.attention.attention == "ring") train.attention.attention = "causal";
  if (std::ranges::count(kinds_of(train.layer_runs()), "ring"))
    throw ValueError("[plan] --ranks already divides the sequences of every layer: --layers must not list a ring");
  if (scale.ranks < 1 || scale.ranks > most_planned_ranks)
    throw ValueError(fmt::format("[plan] --ranks must be from 1 to {}, but is {}", most_planned_ranks, scale.ranks));
  if (train.context < scale.ranks || train.context % scale.ranks != 0)
    throw ValueError(
        fmt::format("[plan] a context of {} tokens does not divide among {} ranks", train.context, scale.ranks));
  if (train.accumulate > 1) throw ValueError("[plan] --ranks plans steps of one batch, and --accumulate asks for more");
  scale.device = peaks_of(train.device);
  const nn::LanguageModelConfig model = train.model();
  model.check();
  scale.dtype = train.autocast_dtype().value_or(model.dtype);
  scale.cluster = {roofline_of(scale.device, scale.dtype), parse_link(options.link), scale.device.name != "cpu"};

  const auto layers_on = [&](Layout layout, std::int64_t ranks, std::int64_t context) {
    std::vector<LayerWork> layers;
    for (const LayerRun& run : train.layer_runs()) {
      const std::int64_t heads = run.heads(model);
      const RingShare share{.batch = train.batch,
                            .tokens = scale.tokens(),
                            .heads = heads,
                            .kv_heads = run.kv_heads(model),
                            .width = model.width / heads,
                            .value_width = model.width / heads,
                            .dtype = scale.dtype};
      layers.push_back(
          {share,
           RingCostModel(run.attention.pattern(context, "plan"), layout, static_cast<int>(ranks), heads, context),
           run.count});
    }
    return layers;
  };
  const std::vector<LayerWork> alone = layers_on(Layout::contiguous, 1, scale.tokens());
  progress.status("planning a rank");
  plan_rank(scale, alone);
  std::vector<ScaleRow> gathered;
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    progress.status("planning a ring, " + to_string(layout));
    const std::vector<LayerWork> ring = layers_on(layout, scale.ranks, train.context);
    scale.rows.push_back(row_of(scale, ring, Exchange::ring, "ring, " + to_string(layout)));
    gathered.push_back(row_of(scale, ring, Exchange::all_gather, "all-gather, " + to_string(layout)));
  }
  scale.rows.insert(scale.rows.end(), gathered.begin(), gathered.end());
  scale.rows.push_back(row_of(scale, alone, Exchange::ring, "data parallel"));
  scale.seconds = watch.seconds();
  return scale;
}

}  // namespace poolgrad::examples
