#include "examples/headline/headline.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>
#include <random>

#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "attention/attend.h"
#include "attention/modules/multihead.h"
#include "attention/ring/ring.h"
#include "autograd/engine/engine.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/views.h"
#include "examples/support/options.h"
#include "kernels/parallel.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

constexpr const char* card_memory = "8GiB";  // of the GTX 1080 of the reports

Tensor attended(const Row& row, const Tensor& q, const Tensor& k, const Tensor& v,
                const attention::AttendOptions& options = {}) {
  if (row.ring > 1) return attention::ring_attend_all(q, k, v, row.pattern, row.ring, {.attend = options}).out;
  return attention::attend(q, k, v, row.pattern, options).out;
}

/// Returns a call of the row, whose tensors serve all calls.
std::function<void()> call_of(const Row& row, DType dtype, Device device, std::uint64_t seed) {
  Generator generator(seed);
  const auto input = [&](const Shape& shape, Category category) {
    const MemoryScope scope("headline", category);
    return rand(shape, -1.0, 1.0, {.dtype = dtype, .device = device}, generator);
  };
  if (row.work == Work::multihead) {
    const std::int64_t width = row.heads * row.head_dim;
    const auto module = std::make_shared<attention::MultiheadAttention>(
        width, row.heads, attention::MultiheadOptions{},
        nn::ParameterOptions{.device = device, .generator = &generator}, row.pattern);
    module->eval();
    return [module, x = input({row.batch, row.tokens, width}, Category::input)] {
      const NoGradGuard guard;
      (*module)(x);
    };
  }
  if (row.work == Work::shapes || row.work == Work::shapes_released) {
    std::vector<Tensor> inputs;
    for (const auto& [batch, tokens] : {std::pair{2, 512}, {4, 1024}, {1, 512}, {3, 1024}, {2, 1536}})
      inputs.push_back(input({batch, tokens, row.heads, row.head_dim}, Category::input));
    return [row, inputs, device] {
      const NoGradGuard guard;
      for (const Tensor& x : inputs) {
        attended(row, x.copy(), x.copy(), x.copy());
        if (row.work == Work::shapes_released) allocator_for(device).trim();
      }
    };
  }
  const Shape shape{row.batch, row.tokens, row.heads, row.head_dim};
  Tensor q = input(shape, Category::query), k = input(shape, Category::key), v = input(shape, Category::value);
  if (row.work != Work::training)
    return [row, q, k, v]() mutable {
      const NoGradGuard guard;
      const bool over_query = row.work == Work::forward_over_query;
      const Tensor out = attended(row, q, k, v, {.out_over_q = over_query});
      if (over_query) q = out;
    };
  for (Tensor* const x : {&q, &k, &v}) x->set_requires_grad();
  // Returns gradients instead of accumulating them in leaves, as between the layers of a model.
  return [row, q, k, v, gradient = input(shape, Category::gradient)] {
    grad({attended(row, q, k, v, {.dq_over_out = true})}, {q, k, v}, {gradient});
  };
}

/// The upper median; needs at least one value.
double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double peak_of(const CachingAllocator& pool) { return static_cast<double>(pool.statistics().allocated_bytes.peak); }

/// 4 D for each visited pair forward, 3.5 times that with the backward; the four projections of a multi-head module.
double operations_of(const Row& row) {
  const auto positions = kernels::PositionMap::contiguous(row.at_once());
  double pairs = 0;
  for (const kernels::AttentionSchedule& pass : row.pattern.compile(row.heads, positions, positions).passes)
    pairs += pass.count_pairs();
  const double forward = 4.0 * static_cast<double>(row.batch * row.head_dim) * pairs;
  const auto width = static_cast<double>(row.heads * row.head_dim);
  if (row.work == Work::multihead) return forward + 8.0 * static_cast<double>(row.batch * row.tokens) * width * width;
  return row.work == Work::training ? 3.5 * forward : forward;
}

/// Bytes of the tensors that must be live at once, docs/reference/attention.md; 0 for rows without a formula.
double formula_bytes(const Row& row, DType dtype) {
  const auto rows = static_cast<double>(row.batch * row.at_once() * row.heads);
  const double tensor = rows * static_cast<double>(row.head_dim) * static_cast<double>(size_of(dtype));
  const double statistic = 4.0 * rows;  // lse; delta
  switch (row.work) {
    case Work::multihead: return 0;
    case Work::forward_over_query: return 3 * tensor + statistic;
    case Work::training: return 7 * tensor + 2 * statistic;  // q, k, v, out = dq, dO, dk, dv
    default: return 4 * tensor + statistic;
  }
}

/// Repeats the call of a short row.
void time_calls(const Row& row, const Bench& bench, DType dtype, CachingAllocator& pool, Json& result) {
  const auto call = call_of(row, dtype, bench.device, bench.seed);
  const auto timed = [&] {
    const Stopwatch watch;
    call();
    synchronize(bench.device);
    return watch.milliseconds();
  };
  std::vector<double> times{timed()};
  result["peak_bytes"] = peak_of(pool);
  const int more = times[0] < 1e3 ? 5 : times[0] < 15e3 ? 1 : 0;
  if (more > 0) times.clear();  // the first call runs on cold memory
  for (int i = 0; i < more; ++i) times.push_back(timed());
  result["milliseconds"] = median(times);
  result["calls"] = times.size();
}

/// Returns the largest error of `out` in one row of a block, by the definition in f64. The block begins at position
/// `first` of the sequence.
double error_of(const Row& row, std::int64_t first, std::int64_t i, std::int64_t h, const Tensor& q, const Tensor& k,
                const Tensor& v, const Tensor& out) {
  const auto width = static_cast<std::size_t>(row.head_dim);
  const auto head = [&](const Tensor& x) { return select(x, 2, h).on_host().to_vector<double>(); };
  const std::vector<double> queries = head(q), keys = head(k), values = head(v), results = head(out);
  const auto at = [&](const std::vector<double>& x, std::int64_t position) {
    return &x[static_cast<std::size_t>(position) * width];
  };
  const double *query = at(queries, i), *result = at(results, i);
  double z = 0, worst = 0;
  std::vector<double> sums(width);
  for (std::int64_t j = 0; j < row.block; ++j) {
    const std::int64_t count = row.pattern.multiplicity(h, row.heads, first + i, first + j);
    if (count == 0) continue;
    const double score = std::inner_product(query, query + width, at(keys, j), 0.0) / std::sqrt(row.head_dim);
    const double weight = static_cast<double>(count) * std::exp(score);
    z += weight;
    for (std::size_t d = 0; d < width; ++d) sums[d] += weight * at(values, j)[d];
  }
  for (std::size_t d = 0; d < width; ++d) worst = std::max(worst, std::abs((z > 0 ? sums[d] / z : 0) - result[d]));
  return worst;
}

/// Computes blocks until all are done or --seconds have passed, and checks some rows.
void stream(const Row& row, const Bench& bench, DType dtype, CachingAllocator& pool, Json& result) {
  const NoGradGuard guard;
  const std::int64_t blocks = row.tokens / row.block;
  std::mt19937_64 random(bench.seed);
  std::vector<double> times;
  double seconds = 0, checksum = 0, worst = 0;
  std::int64_t done = 0, checked = 0;
  for (; done < blocks && (done == 0 || (seconds < bench.stream_seconds && !InterruptGuard::interrupted())); ++done) {
    const Stopwatch watch;
    Generator generator(bench.seed, static_cast<std::uint64_t>(done) + 1);
    const auto next = [&] {
      return rand({1, row.block, row.heads, row.head_dim}, -1, 1, {.dtype = dtype, .device = bench.device}, generator);
    };
    const Tensor q = next(), k = next(), v = next();
    synchronize(bench.device);
    const Stopwatch attending;
    const Tensor out = attended(row, q, k, v);  // segments divide a block: positions may count from its start
    synchronize(bench.device);
    times.push_back(attending.milliseconds());
    checksum += sum(out).item();
    seconds += watch.seconds();
    if (done == 0) result["peak_bytes"] = peak_of(pool);
    if (checked == 32 || (done > 0 && random() % 10 != 0)) continue;
    const auto below = [&](std::int64_t end) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
    };
    const std::int64_t i = below(row.block), h = below(row.heads);
    worst = std::max(worst, error_of(row, done * row.block, i, h, q, k, v, out));
    ++checked;
  }
  const double rate = static_cast<double>(done * row.block) / seconds;
  result["milliseconds"] = median(times);
  result["calls"] = times.size();
  result["worst_error"] = worst;
  result["remark"] = fmt::format(
      "{} tokens computed in {}, {} tokens/s including their generation; {} random rows differ from the definition in "
      "f64 by at most {:.1e}; checksum {:.6g}; {}",
      done * row.block, format_duration(seconds), format_count(rate), checked, worst, checksum,
      done == blocks ? "all of them"
                     : fmt::format("all {} would take {} (extrapolated)", format_count(static_cast<double>(row.tokens)),
                                   format_duration(static_cast<double>(row.tokens) / rate)));
}

}  // namespace

Json measure(const Row& row, Bench& bench) {
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  const DType dtype = row.work == Work::module || row.work == Work::multihead ? DType::f32 : bench.dtype;
  const double operations = operations_of(row), bytes = formula_bytes(row, dtype);
  Json result{{"id", row.id},
              {"what", row.label},
              {"batch", row.batch},
              {"tokens", row.tokens},
              {"original",
               {{"milliseconds", number(row.theirs.milliseconds)},
                {"peak_bytes", number(row.theirs.bytes)},
                {"out_of_memory", row.theirs.out_of_memory}}},
              {"milliseconds", nullptr},
              {"calls", 0},
              {"operations", operations},
              {"tokens_at_once", row.at_once()},
              {"peak_bytes", nullptr},
              {"formula_bytes", bytes},
              {"worst_error", nullptr},
              {"remark", ""}};
  const double expected = bench.rate > 0 && row.work != Work::stream ? operations / bench.rate : 0;
  if (1.01 * bytes > static_cast<double>(bench.memory)) {
    result["remark"] = fmt::format("needs more than {}", format_bytes(bench.memory));
  } else if (expected > bench.row_seconds) {
    result["remark"] = fmt::format("would take about {} here, above --row-seconds", format_duration(expected));
  } else {
    const PoolGuard pool(bench.device, card_memory);
    try {
      (row.work == Work::stream ? stream : time_calls)(row, bench, dtype, *pool, result);
      const double rate = 1e3 * operations / result["milliseconds"].get<double>();
      if (row.work != Work::multihead) bench.rate = std::max(bench.rate, rate);  // its projections are faster
    } catch (const OutOfMemoryError&) {
      result["remark"] = fmt::format("out of memory within {}", card_memory);
    }
  }
  return result;
}

namespace {

/// "<processor>, <engines>"; a GPU's engines name it.
std::string machine_name(Device device) {
  const std::string engines = engines_of(device).to_string();
  std::ifstream processor("/proc/cpuinfo");
  for (std::string line; device.is_cpu() && std::getline(processor, line);)
    if (line.starts_with("model name"))
      return printable(line.substr(std::min(line.find(": ") + 2, line.size()))) + ", " + engines;
  return engines;
}

/// The groups with only the selected rows.
std::vector<Group> selected(const std::vector<std::string>& names) {
  std::vector<Group> result;
  for (Group& group : headline_groups()) {
    std::erase_if(group.rows, [&](const Row& row) {
      return !names.empty() && std::ranges::none_of(names, [&](const std::string& name) {
        return group.id.starts_with(name) || row.id.starts_with(name);
      });
    });
    if (!group.rows.empty()) result.push_back(std::move(group));
  }
  if (result.empty())
    throw ValueError("[headline] --rows matches no row: " + printable(fmt::format("{}", fmt::join(names, ", "))));
  return result;
}

Bench make_bench(const HeadlineOptions& options) {
  Bench bench{.row_seconds = options.row_seconds, .stream_seconds = options.seconds, .seed = options.seed};
  for (const auto& [name, value] : {std::pair{"--row-seconds", options.row_seconds}, {"--seconds", options.seconds}})
    if (!(value > 0)) throw ValueError(fmt::format("[headline] {} must be positive, but is {}", name, value));
  bench.device = parse_device(options.device, "headline", "no time passes");
  bench.dtype = of_option("--dtype", [&] { return parse_dtype(printable(options.dtype)); });
  if (!is_floating(bench.dtype))
    throw ValueError("[headline] --dtype must be floating, but is " + printable(options.dtype));
  bench.memory = allocator_for(bench.device).memory().info().free / 10 * 9;
  return bench;
}

std::vector<std::string> cells_of(const Row& row, const Json& result) {
  constexpr double eight_gib = 8.0 * (1 << 30);
  const auto &theirs = row.theirs.milliseconds, &their_bytes = row.theirs.bytes;
  const Json &ours = result["milliseconds"], &peak = result["peak_bytes"];
  const double operations = result["operations"], formula = result["formula_bytes"];
  const auto tokens = static_cast<double>(row.batch * row.at_once());
  const auto bytes = [](double value) { return format_bytes(static_cast<std::size_t>(value)); };
  const auto integer = [](double value) { return format_integer(static_cast<std::uint64_t>(value)); };
  const auto cell = [](bool known, const auto& text) { return known ? text() : std::string("-"); };
  const bool runs = !ours.is_null();
  return {row.id,
          row.label,
          cell(tokens > 0, [&] { return integer(static_cast<double>(row.tokens)); }),
          cell(tokens > 0, [&] { return std::to_string(row.batch); }),
          row.theirs.out_of_memory ? "out of memory" : cell(!!theirs, [&] { return nn::format_milliseconds(*theirs); }),
          cell(runs, [&] { return nn::format_milliseconds(ours); }),
          cell(runs && theirs, [&] { return fmt::format("{:.3g}x", *theirs / ours.get<double>()); }),
          cell(runs && operations > 0, [&] { return fmt::format("{:.3f}", 1e-9 * operations / ours.get<double>()); }),
          cell(runs && tokens > 0, [&] { return integer(peak.get<double>() / tokens); }),
          cell(!!their_bytes, [&] { return bytes(*their_bytes); }),
          cell(runs, [&] { return bytes(peak); }),
          cell(formula > 0, [&] { return integer(eight_gib / formula * tokens); })};
}

}  // namespace

int parse_headline_options(int argc, const char* const* argv, HeadlineOptions& o) {
  CLI::App app("Runs the tables of the original reports with exact attention, and prints both figures side by side.",
               "./run headline");
  app.option_defaults()->always_capture_default();
  app.add_option("--rows", o.rows, "Rows or groups to run, by prefixes of their names (default: all)")->delimiter(',');
  app.add_flag("--list", o.list, "List the rows and exit");
  app.add_option("--device", o.device, computing_device_help);
  app.add_option("--dtype", o.dtype, "Storage of the tensors: f16, bf16 or f32");
  app.add_option("--row-seconds", o.row_seconds, "Skip rows that would take longer than this");
  app.add_option("--seconds", o.seconds, "Time for each row that streams a billion tokens");
  app.add_option("--seed", o.seed, "Seed of the inputs");
  app.add_option("--json", o.json, "File to write as JSON; - for standard output");
  return parse_command_line(app, argc, argv);
}

void run_headline(const HeadlineOptions& options, std::ostream& out, bool live) {
  const std::vector<Group> groups = selected(options.rows);
  if (options.list) {
    for (const Group& group : groups) {
      out << group.id << ": " << group.title << "\n";
      for (const Row& row : group.rows) out << "  " << row.id << ": " << row.label << "\n";
    }
    return;
  }
  const bool prints = options.json != "-";
  if (prints) nn::check_replaceable(options.json, "headline");
  const InterruptGuard interrupt;
  Progress progress(out, live && prints);
  const auto print = [&](const std::string& text) {
    if (prints) progress.line(text);
  };
  Bench bench = make_bench(options);
  const std::string machine = machine_name(bench.device);
  print(fmt::format("{}; rows may use {}. Theirs ran on a GTX 1080; ratio is theirs over ours.\n", machine,
                    format_bytes(bench.memory)));
  Json json{{"machine", machine},
            {"device", to_string(bench.device)},
            {"dtype", std::string(to_string(bench.dtype))},
            {"threads", kernels::num_threads()},
            {"seed", bench.seed},
            {"groups", Json::array()}};
  for (const Group& group : groups) {
    Table table({"<row", "<what", "tokens", "batch", "theirs ms", "ours ms", "ratio", "TFLOP/s", "B/token",
                 "theirs peak", "our peak", "8 GiB hold"});
    Json rows = Json::array();
    std::string remarks;
    for (const Row& row : group.rows) {
      if (InterruptGuard::interrupted()) break;
      progress.status("row " + row.id);
      const Json& result = rows.emplace_back(measure(row, bench));
      table.add(cells_of(row, result));
      const std::string remark = result["remark"];
      if (!remark.empty()) remarks += fmt::format("  {}: {}\n", row.id, remark);
    }
    print(group.title + "\n  " + group.behind + "\n\n" + table.text() + (remarks.empty() ? "" : "\n" + remarks));
    json["groups"].push_back({{"id", group.id}, {"title", group.title}, {"behind", group.behind}, {"rows", rows}});
    if (InterruptGuard::interrupted()) break;
  }
  if (!options.json.empty()) write_text(options.json, json_text(json), "headline", out);
}

}  // namespace poolgrad::examples
