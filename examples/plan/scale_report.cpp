// Prints plan --ranks as text, as JSON and as a page.
#include <fmt/format.h>

#include "allocator/caching_allocator.h"
#include "examples/plan/plan.h"
#include "examples/plan/scale.h"
#include "examples/support/html.h"

namespace poolgrad::examples {

namespace {

std::string bytes_text(std::int64_t bytes) { return format_bytes(static_cast<std::size_t>(bytes)); }
std::string seconds_text(double seconds) { return seconds > 0 ? format_time(1e9 * seconds) : "0"; }
std::string integer_text(std::int64_t value) { return format_integer(static_cast<std::uint64_t>(value)); }

std::vector<std::string> scale_lines(const Scale& scale) {
  const TrainOptions& o = scale.train;
  const attention::RingMemory& ring = scale.rows.front().memory;
  const Link& link = scale.cluster.link;
  return {
      fmt::format("{} of {} tokens each, {} in all: {}, width {}, {} ({} for keys), {}, attention in {}",
                  integer_text(scale.ranks), integer_text(scale.tokens()), integer_text(o.context),
                  plural(o.layers.count(), "layer"), o.width, plural(o.heads, "head"), o.model().kv_heads,
                  o.describe_attention(), to_string(scale.dtype)),
      fmt::format(
          "{}: {:.2f} TB/s, {:.0f} Tflop/s{}; link {:.4g} GB/s, {}; a forecast by these peaks, nothing measured",
          scale.device.name, 1e-3 * scale.cluster.device.bytes, 1e-3 * scale.cluster.device.operations,
          scale.device.memory.empty() ? "" : ", " + scale.device.memory, 1e-9 * link.bytes_per_second,
          seconds_text(link.latency)),
      fmt::format("{} parameters; {} live in a step over its tokens without ring slots, and {} outside of attention",
                  integer_text(scale.parameters), format_bytes(scale.step_bytes), seconds_text(scale.other_seconds)),
      fmt::format("{} of attention forward in a ring, one layer, on all ranks together",
                  bytes_text(scale.ranks * ring.forward))};
}

const std::vector<std::string> scale_columns{"steps",   "messages", "sent",     "slots",   "attention", "forward",
                                             "waiting", "backward", "waiting ", "reduced", "a step"};

std::vector<std::string> cells_of(const ScaleRow& row) {
  return {integer_text(static_cast<std::int64_t>(row.steps)),
          integer_text(row.messages),
          bytes_text(row.bytes_sent),
          bytes_text(row.memory.backward_slots),
          bytes_text(row.memory.backward),
          seconds_text(row.forward.total),
          format_percent(row.forward.waiting() / row.forward.total),
          seconds_text(row.backward.total),
          format_percent(row.backward.waiting() / row.backward.total),
          seconds_text(row.reduction.total),
          seconds_text(row.step_seconds)};
}

constexpr const char* scale_notes =
    "ring steps in which any rank computes; messages and bytes that the busiest rank sends in a step of training; "
    "slots and all of attention's tensors in the backward of one layer; time of all layers' attention, and the share "
    "of it spent waiting for messages; sums of the gradients of parameters. data parallel: a rank's tokens are a "
    "sequence of its own.";

}  // namespace

std::string scale_text(const Scale& scale) {
  const std::vector<std::string> lines = scale_lines(scale);
  std::string text =
      fmt::format("ranks    {}\ndevice   {}\na rank   {}\nmemory   {}\n\n", lines[0], lines[1], lines[2], lines[3]);
  std::vector<std::string> head{"<"};
  head.insert(head.end(), scale_columns.begin(), scale_columns.end());
  Table table(head);
  for (const ScaleRow& row : scale.rows) {
    std::vector<std::string> cells = cells_of(row);
    cells.insert(cells.begin(), row.name);
    table.add(cells);
  }
  return text + table.text();
}

Json scale_json(const Scale& scale) {
  const auto time = [](const PassTime& pass) { return Json{{"seconds", pass.total}, {"waiting", pass.waiting()}}; };
  Json rows = Json::array();
  for (const ScaleRow& row : scale.rows)
    rows.push_back({{"name", row.name},
                    {"steps", row.steps},
                    {"messages", row.messages},
                    {"bytes_sent", row.bytes_sent},
                    {"forward_bytes", row.memory.forward},
                    {"backward_bytes", row.memory.backward},
                    {"forward_slots_bytes", row.memory.forward_slots},
                    {"backward_slots_bytes", row.memory.backward_slots},
                    {"forward", time(row.forward)},
                    {"backward", time(row.backward)},
                    {"reduction_seconds", row.reduction.total},
                    {"step_seconds", row.step_seconds}});
  return {{"forecast", true},
          {"ranks", scale.ranks},
          {"tokens_a_rank", scale.tokens()},
          {"context", scale.train.context},
          {"attention", scale.train.describe_attention()},
          {"dtype", to_string(scale.dtype)},
          {"device", scale.device.name},
          {"bytes_per_second", 1e9 * scale.cluster.device.bytes},
          {"operations_per_second", 1e9 * scale.cluster.device.operations},
          {"link_bytes_per_second", scale.cluster.link.bytes_per_second},
          {"link_latency_seconds", scale.cluster.link.latency},
          {"parameters", scale.parameters},
          {"step_bytes", scale.step_bytes},
          {"other_seconds", scale.other_seconds},
          {"rows", rows},
          {"seconds", scale.seconds}};
}

std::string scale_html(const Scale& scale) {
  const std::vector<std::string> lines = scale_lines(scale);
  std::string html = "<h1>Plan of a training step on many ranks</h1>\n";
  for (const std::string& line : lines) html += "<p>" + escaped(line) + "</p>\n";
  std::vector<std::string> head{""};
  head.insert(head.end(), scale_columns.begin(), scale_columns.end());
  std::string rows;
  for (const ScaleRow& row : scale.rows) {
    std::vector<std::string> cells = cells_of(row);
    cells.insert(cells.begin(), escaped(row.name));
    rows += html_row(cells);
  }
  html += html_table(head, rows) + "<p>" + escaped(scale_notes) + "</p>\n";
  return html_page("poolgrad: plan of many ranks", "", html);
}

}  // namespace poolgrad::examples
