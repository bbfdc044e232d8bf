#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/trace/trace_file.h"
#include "examples/lab/command.h"
#include "examples/lab/recorded_work.h"

namespace poolgrad::examples {

namespace {

struct RecordOptions {
  std::string workload = "train";
  std::string size = "default";
  std::int64_t steps = 4;
  std::string device = "cpu";
  std::string budget;
  std::string output;
  std::uint64_t events = std::uint64_t{1} << 20;
};

Device parse_device(const std::string& text) {
  if (text == "cpu") return cpu;
  if (!text.starts_with("sim")) throw ValueError("[record] --device must be cpu, sim or sim:SIZE, but is " + text);
  configure_simulated_device(0, text == "sim" ? std::size_t{8} << 30 : parse_bytes(text.substr(4)));
  return {DeviceType::sim, 0};
}

/// The device's pool, empty at first and recording, as it was afterwards.
class Recording {
 public:
  Recording(Device device, const std::string& budget, std::size_t events)
      : pool_(allocator_for(device)), budget_(pool_.budget()) {
    pool_.trim();
    if (!budget.empty()) pool_.set_budget(parse_bytes(budget));
    pool_.start_trace(events);
  }
  ~Recording() {
    pool_.stop_trace();
    try {
      pool_.set_budget(budget_);
    } catch (const Error&) {  // live memory of the caller above its own budget: as before
    }
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  CachingAllocator& pool() const { return pool_; }

 private:
  CachingAllocator& pool_;
  std::size_t budget_;
};

/// Source files relative to the root of the sources, wherever they were compiled.
void make_relative(std::vector<TraceLocation>& locations) {
  const std::string root = POOLGRAD_SOURCE_ROOT "/";
  for (TraceLocation& location : locations)
    if (location.file.starts_with(root)) location.file.erase(0, root.size());
}

int record(const RecordOptions& options, Console& console) {
  if (options.steps < 1) throw ValueError(fmt::format("[record] --steps must be at least 1, but is {}", options.steps));
  const Device device = parse_device(options.device);
  const Recording recording(device, options.budget, options.events);
  const RecordedWork work{.size = options.size, .steps = options.steps, .device = device, .pool = recording.pool()};
  std::string failure;
  try {
    perform(options.workload, work, [&](std::int64_t step) {
      console.progress().status(fmt::format(
          "{} step {}/{}", bar(static_cast<double>(step) / static_cast<double>(options.steps)), step, options.steps));
    });
  } catch (const OutOfMemoryError& error) {  // what led to it is what one wants to see
    failure = error.what();
  }
  Trace trace = recording.pool().trace();
  make_relative(trace.locations);
  save_trace(options.output, trace, TraceFormat::pgt);
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(options.output));
  console.print(fmt::format("recorded  {} ({}), {} steps on {}: {} events{}", options.workload, options.size,
                            options.steps, options.device, format_integer(trace.events.size()),
                            trace.lost ? fmt::format(", {} older ones lost", format_integer(trace.lost)) : ""));
  if (!failure.empty()) console.print(failure);
  console.print(fmt::format("wrote     {}, {}", options.output, format_bytes(bytes)));
  console.answer({{"output", options.output},
                  {"bytes", bytes},
                  {"events", trace.events.size()},
                  {"lost", trace.lost},
                  {"out_of_memory", !failure.empty()}});
  return failure.empty() ? exit_good : exit_failed;
}

}  // namespace

Command add_record(CLI::App& lab) {
  CLI::App* app =
      lab.add_subcommand("record", "Runs real work and writes what the pool did; exit code 3 if memory ran out");
  const auto options = std::make_shared<RecordOptions>();
  app->add_option("--workload", options->workload, "train, attention or generate")
      ->capture_default_str()
      ->check(CLI::IsMember(recorded_workloads()));
  app->add_option("--size", options->size, "small, default (the model of examples/train) or large")
      ->capture_default_str()
      ->check(CLI::IsMember({"small", "default", "large"}));
  app->add_option("--steps", options->steps, "Training steps, passes, or tokens")->capture_default_str();
  app->add_option("--device", options->device, "cpu, sim, or sim:SIZE")->capture_default_str();
  app->add_option("--budget", options->budget, "Hard limit of the pool, such as 512MiB");
  app->add_option("--events", options->events, "The newest that are kept")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 27));
  app->add_option("-o,--output", options->output, "The trace to write (.pgt)")->required();
  return {app, [options](Console& console) { return record(*options, console); }};
}

}  // namespace poolgrad::examples
