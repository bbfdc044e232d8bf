#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "allocator/caching_allocator.h"
#include "allocator/trace/trace_file.h"
#include "examples/lab/command.h"
#include "examples/lab/source.h"

namespace poolgrad::examples {

namespace {

const std::map<std::string, TraceFormat> formats = {{"pgt", TraceFormat::pgt},
                                                    {"pytorch", TraceFormat::pytorch_pickle},
                                                    {"pytorch-json", TraceFormat::pytorch_json},
                                                    {"chrome", TraceFormat::chrome},
                                                    {"rmm-csv", TraceFormat::rmm_csv}};

struct ExportOptions {
  std::string source;
  std::string format = "pytorch";
  std::string output;
  std::uint64_t from = 0;
  std::uint64_t to = std::numeric_limits<std::uint64_t>::max();
  std::string least;
};

int export_trace(const ExportOptions& options, Console& console) {
  const TraceWindow window{
      .from = options.from, .to = options.to, .min_size = options.least.empty() ? 0 : parse_bytes(options.least)};
  const Trace trace = read_trace(options.source);
  const std::string warning = save_trace(options.output, trace, formats.at(options.format), window);
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(options.output));
  if (!warning.empty()) console.print("warning   " + warning);
  console.print(fmt::format("wrote     {}, {}", options.output, format_bytes(bytes)));
  console.answer({{"output", options.output}, {"format", options.format}, {"bytes", bytes}, {"warning", warning}});
  return exit_good;
}

}  // namespace

Command add_export(CLI::App& lab) {
  CLI::App* app = lab.add_subcommand("export", "A trace in another format; any readable format goes in");
  const auto options = std::make_shared<ExportOptions>();
  app->add_option("trace", options->source, "TRACE or zoo:NAME")->required();
  app->add_option("-o,--output", options->output, "The file to write")->required();
  app->add_option("--format", options->format,
                  "pytorch (memory snapshot for the public viewer), pytorch-json, chrome, rmm-csv or pgt")
      ->capture_default_str()
      ->check(CLI::IsMember(formats));
  app->add_option("--from", options->from, "First event");
  app->add_option("--to", options->to, "Event behind the last");
  app->add_option("--min-size", options->least, "Leave smaller requests out, such as 1MiB");
  return {app, [options](Console& console) { return export_trace(*options, console); }};
}

}  // namespace poolgrad::examples
