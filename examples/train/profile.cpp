#include "examples/train/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "allocator/lab/formats/trace_window.h"
#include "autograd/operators/matmul.h"
#include "examples/support/console.h"
#include "kernels/profile.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

using kernels::KernelCall;

constexpr std::int64_t warm_up = 2;
constexpr std::size_t traced_requests = std::size_t{1} << 19, rows_shown = 14;

std::string name_of(const KernelCall& call) {
  std::string name(call.kernel);
  if (!call.kind.empty()) name += fmt::format(" {}", call.kind);
  return name;
}

/// "model.block12.mixer" -> "model.block*.mixer"
std::string part_of(const KernelCall& call) {
  std::string part;
  for (const char c : scope_name(call.scope)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit)
      part += c;
    else if (!part.ends_with('*'))
      part += '*';
  }
  return part.empty() ? "(no scope)" : part;
}

void add(ProfileRow& to, const ProfileRow& row) {
  to.calls += row.calls;
  to.nanoseconds += row.nanoseconds;
  to.bytes += row.bytes;
  to.operations += row.operations;
  to.least_nanoseconds += row.least_nanoseconds;
}

/// The time for `amount` at a rate per second.
double nanoseconds_at(double amount, double a_second) { return a_second > 0 ? 1e9 * amount / a_second : 0; }

std::vector<ProfileRow> rows_by(const std::vector<KernelCall>& calls, std::string (*name)(const KernelCall&),
                                const StepProfile& ceilings) {
  std::map<std::string, ProfileRow> rows;
  for (const KernelCall& call : calls)
    add(rows[name(call)], {.name = {},
                           .calls = 1,
                           .nanoseconds = static_cast<double>(call.nanoseconds),
                           .bytes = call.bytes,
                           .operations = call.operations,
                           .least_nanoseconds = std::max(nanoseconds_at(call.operations, ceilings.most_operations),
                                                         nanoseconds_at(call.bytes, ceilings.most_bytes))});
  std::vector<ProfileRow> result;
  for (auto& [text, row] : rows) {
    row.name = text;
    result.push_back(row);
  }
  std::ranges::stable_sort(result,
                           [](const ProfileRow& a, const ProfileRow& b) { return a.nanoseconds > b.nanoseconds; });
  return result;
}

/// The fastest of a few calls of `work`, per counted unit.
template <class Work>
double fastest(const Work& work, double KernelCall::*counted) {
  const kernels::KernelProfile profile;
  for (int i = 0; i < 4; ++i) work();
  double most = 0;
  for (const KernelCall& call : profile.calls())
    most = std::max(most, call.*counted / std::max(1.0, static_cast<double>(call.nanoseconds)) * 1e9);
  return most;
}

/// The machine's peak rates for matrix products in the run's dtype and for copies.
void measure_ceilings(const TrainOptions& options, Device device, StepProfile& profile) {
  constexpr std::int64_t side = 768, elements = std::int64_t{1} << 23;
  const NoGradGuard no_grad;
  try {
    const TensorOptions of_products{options.autocast_dtype().value_or(options.activations().dtype), device};
    const Tensor a = ones({side, side}, of_products);
    profile.most_operations = fastest([&] { matmul(a, a); }, &KernelCall::operations);
    const Tensor from = zeros({elements}, {DType::f32, device});
    Tensor to = zeros({elements}, {DType::f32, device});
    profile.most_bytes = fastest([&] { to.copy_from(from); }, &KernelCall::bytes);
  } catch (const OutOfMemoryError&) {  // the budget may leave no memory for it
  }
}

std::string chrome_trace_of(const Trace& memory, const std::vector<KernelCall>& calls) {
  Json json = Json::parse(encode_chrome_trace(cut_trace(memory)));
  Json& events = json["traceEvents"];
  events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", 1}, {"args", {{"name", "kernels"}}}});
  for (const KernelCall& call : calls)
    events.push_back(
        {{"name", name_of(call)},
         {"cat", "kernel"},
         {"ph", "X"},
         {"pid", 0},
         {"tid", 1},
         {"ts", 1e-3 * (static_cast<double>(call.begin) - 1e3 * static_cast<double>(memory.start_us))},
         {"dur", 1e-3 * static_cast<double>(call.span)},
         {"args", {{"scope", scope_name(call.scope)}, {"bytes", call.bytes}, {"operations", call.operations}}}});
  return json.dump();
}

}  // namespace

StepProfile profile_steps(const TrainOptions& options, std::int64_t steps) {
  PreparedRun run(options);
  if (run.device.is_sim())
    throw ValueError("[train] --profile measures times, which --device " + options.device + " does not have");
  CachingAllocator& pool = run.trainer->pool();
  for (std::int64_t i = 0; i < warm_up; ++i) run.trainer->step();
  StepProfile result;
  result.steps = steps;
  std::vector<KernelCall> calls;
  {
    const kernels::KernelProfile profile;
    pool.start_trace(traced_requests);
    const auto stop = [](CachingAllocator* traced) { traced->stop_trace(); };
    const std::unique_ptr<CachingAllocator, decltype(stop)> tracing(&pool, stop);
    const Stopwatch watch;
    for (std::int64_t i = 0; i < steps; ++i) run.trainer->step();
    result.nanoseconds = 1e9 * watch.seconds();
    calls = profile.calls();
    result.trace = chrome_trace_of(pool.trace(), calls);
  }
  measure_ceilings(run.options, run.device, result);
  result.kernels = rows_by(calls, name_of, result);
  result.scopes = rows_by(calls, part_of, result);
  return result;
}

std::string profile_text(const StepProfile& p) {
  const auto steps = static_cast<double>(std::max<std::int64_t>(p.steps, 1));
  double in_kernels = 0;
  for (const ProfileRow& row : p.kernels) in_kernels += row.nanoseconds;
  const auto share = [&](double nanoseconds) {
    return format_percent(p.nanoseconds > 0 ? nanoseconds / p.nanoseconds : 0);
  };
  const auto rate = [](double amount, double nanoseconds) {
    return amount > 0 && nanoseconds > 0 ? fmt::format("{:.1f}", amount / nanoseconds) : "";
  };
  const auto bytes_of = [&](double bytes) {
    return bytes > 0 ? format_bytes(static_cast<std::size_t>(bytes / steps)) : std::string();
  };
  const auto of_ceiling = [&](const ProfileRow& row) -> std::string {
    if (!(row.least_nanoseconds > 0 && row.nanoseconds > 0)) return "";
    const bool computes = nanoseconds_at(row.operations, p.most_operations) > nanoseconds_at(row.bytes, p.most_bytes);
    return fmt::format("{} of {}", format_percent(row.least_nanoseconds / row.nanoseconds),
                       computes ? "GFLOP/s" : "GB/s");
  };
  const auto table_of = [&](const char* what, const std::vector<ProfileRow>& rows) {
    Table table({what, "calls", "ms", "share", "bytes", "GFLOP/s", "GB/s", "of the ceiling"});
    const auto show = [&](const ProfileRow& row) {
      table.add({row.name, fmt::format("{:.4g}", static_cast<double>(row.calls) / steps),
                 fmt::format("{:.3f}", 1e-6 * row.nanoseconds / steps), share(row.nanoseconds), bytes_of(row.bytes),
                 rate(row.operations, row.nanoseconds), rate(row.bytes, row.nanoseconds), of_ceiling(row)});
    };
    ProfileRow others{.name = "others"};
    for (std::size_t i = 0; i < rows.size(); ++i) i < rows_shown ? show(rows[i]) : add(others, rows[i]);
    if (others.calls > 0) show(others);
    return table;
  };
  Table kernels = table_of("<kernel, of a step", p.kernels);
  kernels.rule();
  const double between = std::max(0.0, p.nanoseconds - in_kernels);
  ProfileRow all;
  for (const ProfileRow& row : p.kernels) add(all, row);
  kernels.add({"between kernels", "", fmt::format("{:.3f}", 1e-6 * between / steps), share(between)});
  kernels.add(
      {"a step", "", fmt::format("{:.3f}", 1e-6 * p.nanoseconds / steps), share(p.nanoseconds), bytes_of(all.bytes)});
  if (p.most_operations > 0 || p.most_bytes > 0)
    kernels.add({"this machine: a large product, a copy", "", "", "", "", rate(p.most_operations, 1e9),
                 rate(p.most_bytes, 1e9)});
  return kernels.text() + "\n" + table_of("<part of the program", p.scopes).text();
}

void profile(const TrainOptions& options, std::ostream& out) {
  nn::check_writable(options.profile_trace, "train");
  const StepProfile profile = profile_steps(options);
  if (!options.quiet) out << profile_text(profile) << std::flush;
  if (options.profile_trace.empty()) return;
  write_text(options.profile_trace, profile.trace, "train", out);
  if (!options.quiet) out << "wrote    trace " << options.profile_trace << std::endl;
}

}  // namespace poolgrad::examples
