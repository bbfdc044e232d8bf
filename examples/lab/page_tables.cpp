#include "examples/lab/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <tuple>

#include "allocator/caching_allocator.h"
#include "allocator/lab/formats/value_tree.h"
#include "allocator/memory_scope.h"
#include "allocator/reclaim_stage.h"
#include "examples/support/html.h"

namespace poolgrad::examples {

namespace {

Json row(const std::string& name, const std::string& value) { return Json::array({name, value}); }
double share(std::uint64_t part, std::uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

/// Totals over the whole trace for the tables.
struct Totals {
  std::array<std::uint64_t, trace_kind_count> events{};
  std::uint64_t peak_requested = 0, peak_active = 0, peak_reserved = 0, slack = 0, largest = 0;
  std::array<std::uint64_t, category_count> category_peaks{}, category_blocks{};
  Moment fullest = 0;
};

Totals totals_of(const Trace& trace, const History& history, const std::vector<Sample>& samples) {
  Totals totals;
  for (const TraceEvent& event : trace.events)
    if (static_cast<std::size_t>(event.kind) < trace_kind_count) ++totals.events[static_cast<std::size_t>(event.kind)];
  for (const Sample& sample : samples) {
    if (sample.requested_in_all() > totals.peak_requested) {
      totals.peak_requested = sample.requested_in_all();
      totals.slack = sample.live - std::min(sample.live, totals.peak_requested);
      totals.fullest = sample.moment;
    }
    totals.peak_active = std::max(totals.peak_active, sample.live + sample.pending);
    totals.peak_reserved = std::max(totals.peak_reserved, sample.reserved);
    for (std::size_t i = 0; i < category_count; ++i)
      totals.category_peaks[i] = std::max(totals.category_peaks[i], sample.requested[i]);
  }
  for (const BlockLife& block : history.blocks) {
    totals.largest = std::max(totals.largest, block.requested);
    ++totals.category_blocks[std::min(static_cast<std::size_t>(block.category), category_count - 1)];
  }
  return totals;
}

std::uint64_t count(const Totals& totals, TraceKind kind) { return totals.events[static_cast<std::size_t>(kind)]; }

/// "block12.mlp" -> "block*.mlp": one name for all layers.
std::string without_numbers(const std::string& scope) {
  std::string result;
  for (const char c : scope) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit)
      result += c;
    else if (!result.ends_with('*'))
      result += '*';
  }
  return result;
}

std::string section(const char* id, const char* title, const std::string& body) {
  return fmt::format("<section id=\"{}\"><h2>{}</h2>{}</section>\n", id, title, body);
}

/// A row of texts from the trace.
std::string text_row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = escaped(utf8_text(cell));
  return html_row(cells);
}

std::string holders_html(const Json& holders) {
  std::string rows;
  for (const Json& holder : holders)
    rows += text_row({format_bytes(holder["bytes"]), format_percent(holder["share"]), format_integer(holder["blocks"]),
                      holder["category"], holder["scope"], holder["location"]});
  if (rows.empty()) return "";
  return section("peak", "Holders of memory at the peak",
                 html_table({"bytes", "share", "blocks", "category", "scope", "call site"}, rows));
}

std::string statistics(const History& history, const Totals& totals) {
  std::string html;
  const auto add = [&](const char* name, const std::string& rows) { html += html_table({name, ""}, rows); };

  std::string memory;
  memory += text_row({"peak requested", format_bytes(totals.peak_requested)});
  memory += text_row({"peak active (live and pending)", format_bytes(totals.peak_active)});
  if (!history.pages.empty()) {
    memory += text_row({"peak reserved", format_bytes(totals.peak_reserved)});
    memory += text_row({"utilisation (peak requested in pages of 2 MiB / peak reserved)",
                        format_percent(utilisation(totals.peak_requested, totals.peak_reserved))});
  }
  memory += text_row({"rounding at the fullest moment", format_bytes(totals.slack)});
  memory += text_row({"largest request", format_bytes(totals.largest)});
  add("Memory", memory);

  std::string events;
  for (std::size_t i = 0; i < trace_kind_count; ++i)
    if (totals.events[i] > 0)
      events += text_row({std::string(to_string(static_cast<TraceKind>(i))), format_integer(totals.events[i])});
  add("Events", events);

  std::string categories;
  for (std::size_t i = 0; i < category_count; ++i)
    if (totals.category_blocks[i] > 0)
      categories += text_row({std::string(to_string(static_cast<Category>(i))),
                              fmt::format("peak {}, {} blocks", format_bytes(totals.category_peaks[i]),
                                          format_integer(totals.category_blocks[i]))});
  add("Categories", categories);

  std::map<std::uint64_t, std::uint64_t> sizes;  // by power of two
  for (const BlockLife& block : history.blocks)
    ++sizes[std::bit_width(std::max<std::uint64_t>(block.requested, 1) - 1)];
  std::string by_size;
  for (const auto& [power, blocks] : sizes)
    by_size += text_row(
        {"up to " + format_bytes(std::uint64_t{1} << std::min<std::uint64_t>(power, 63)), format_integer(blocks)});
  add("Blocks by size", by_size);
  return section("statistics", "Statistics", "<div>" + html + "</div>");
}

std::string policies_html(const Comparison& comparison) {
  PolicyTable results = policy_table(comparison, 0);
  for (std::string& header : results.headers) header.erase(0, header.starts_with('<') ? 1 : 0);
  results.headers.emplace_back("");
  std::string rows;
  for (std::size_t p = 0; p < comparison.policies.size(); ++p) {
    const PolicyEntry& policy = *comparison.policies[p];
    std::vector<std::string>& cells = results.rows[p];
    for (std::string& cell : cells) cell = escaped(cell);
    if (policy.name == "poolgrad" || !policy.online)
      cells[0] = fmt::format("<{0}>{1}</{0}>", policy.online ? 'b' : 'i', cells[0]);
    cells.push_back(escaped(std::string(policy.description)));
    rows += html_row(cells);
  }
  return section(
      "policies", "Other allocators on this trace",
      html_table(results.headers, rows) +
          fmt::format(
              "<p class=\"quiet\">The allocations of this trace, replayed. Peak and utilisation without a limit; "
              "bound: {}, the largest live requested bytes in whole pages of 2 MiB. The policies in italics know "
              "the future.</p>",
              format_bytes(comparison.rows.at(0).lower_bound)));
}

}  // namespace

Json holders_of(const Trace& trace, const History& history, Moment moment, std::uint64_t requested) {
  constexpr std::size_t most = 15;
  struct Holder {
    std::uint64_t bytes = 0, blocks = 0;
    std::string category, scope, location;
  };
  std::map<std::tuple<Category, std::string, std::uint64_t>, Holder> groups;
  for (const BlockLife& block : history.blocks) {
    if (block.begin > moment || block.given_back <= moment) continue;
    const std::string scope = block.scope < trace.scopes.size() ? trace.scopes[block.scope] : "";
    const std::string any_layer = without_numbers(scope);
    Holder& holder = groups[{block.category, any_layer, block.location}];
    holder.scope = holder.blocks == 0 || holder.scope == scope ? scope : any_layer;
    holder.category = to_string(block.category);
    if (block.location < trace.locations.size()) holder.location = to_text(trace.locations[block.location]);
    holder.bytes += block.requested;
    ++holder.blocks;
  }
  std::vector<Holder> all;
  for (auto& [key, holder] : groups) all.push_back(std::move(holder));
  std::ranges::stable_sort(all, std::greater(), &Holder::bytes);
  Holder others;
  others.category = fmt::format("{} others", all.size() - std::min(all.size(), most));
  for (; all.size() > most; all.pop_back()) {
    others.bytes += all.back().bytes;
    others.blocks += all.back().blocks;
  }
  if (others.blocks > 0) all.push_back(std::move(others));
  Json result = Json::array();
  for (const Holder& holder : all)
    result.push_back({{"bytes", holder.bytes},
                      {"share", share(holder.bytes, requested)},
                      {"blocks", holder.blocks},
                      {"category", holder.category},
                      {"scope", holder.scope},
                      {"location", holder.location}});
  return result;
}

PageTables page_tables(const PageInput& input, const History& history, const std::vector<Sample>& samples) {
  const Trace& trace = input.trace;
  const Totals totals = totals_of(trace, history, samples);
  const std::uint64_t duration = time_of(trace, static_cast<Moment>(trace.events.size() + 1));
  PageTables tables;
  tables.subtitle =
      fmt::format("{}: {}, {} in {}{}", input.source, to_string(trace.device), counted(trace.events.size(), "event"),
                  format_time(static_cast<double>(duration)), trace.settings.empty() ? "" : ", pool " + trace.settings);
  tables.tiles.push_back(row("peak requested", format_bytes(totals.peak_requested)));
  if (!history.pages.empty()) {
    tables.tiles.push_back(row("peak reserved", format_bytes(totals.peak_reserved)));
    tables.tiles.push_back(
        row("utilisation", format_percent(utilisation(totals.peak_requested, totals.peak_reserved))));
  }
  tables.tiles.push_back(row("allocations", format_integer(count(totals, TraceKind::allocate))));
  tables.tiles.push_back(row("commits and releases", format_integer(count(totals, TraceKind::segment_map) +
                                                                    count(totals, TraceKind::segment_unmap))));
  tables.tiles.push_back(row("steps", format_integer(count(totals, TraceKind::step))));
  tables.tiles.push_back(row("out of memory", format_integer(count(totals, TraceKind::out_of_memory))));
  if (input.comparison != nullptr) tables.html = policies_html(*input.comparison);
  tables.html +=
      holders_html(holders_of(trace, history, totals.fullest, totals.peak_requested)) + statistics(history, totals);
  return tables;
}

Json mark_of(const Trace& trace, const TraceEvent& event, std::size_t index) {
  Json rows = Json::array();
  rows.push_back(
      row("at", fmt::format("event {}, {}", format_integer(index + 1),
                            format_time(static_cast<double>(time_of(trace, static_cast<Moment>(index + 1)))))));
  if (event.kind == TraceKind::out_of_memory) {
    rows.push_back(row("requested", format_bytes(event.size)));
    rows.push_back(row("free on the device", format_bytes(event.address)));
    return {{"kind", "oom"}, {"title", "out of memory"}, {"rows", rows}};
  }
  rows.push_back(row("yield", format_bytes(event.size)));
  rows.push_back(row("took", format_time(static_cast<double>(event.address))));
  return {{"kind", "stage"},
          {"title", fmt::format("stage: {}", to_string(static_cast<ReclaimStageId>(event.stage)))},
          {"rows", rows}};
}

std::uint64_t time_of(const Trace& trace, Moment moment) {
  if (moment == 0 || trace.events.empty()) return 0;
  return trace.events[std::min<std::size_t>(moment, trace.events.size()) - 1].time;
}

std::string to_text(const TraceLocation& location) {
  if (location.file.empty() && location.function.empty()) return "";
  return fmt::format("{}:{} {}", location.file, location.line, function_name(location.function));
}

}  // namespace poolgrad::examples
