#include "examples/lab/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/trace/bytes.h"
#include "examples/support/html.h"

namespace poolgrad::examples {

// The files of examples/lab/page, embedded by embed.cmake. The template contains @STYLE@, @TABLES@, @DATA@ and
// @SCRIPT@ once each.
extern const char* const page_template;
extern const char* const page_style;
extern const char* const page_script;

namespace {

/// Moments that the page uses. Columns hold indices into this table of times.
class Moments {
 public:
  explicit Moments(const Trace& trace) : trace_(trace) {}

  void want(Moment moment) { moments_.push_back(moment); }

  void fix() {
    want(0);
    want(static_cast<Moment>(trace_.events.size() + 1));
    std::ranges::sort(moments_);
    moments_.erase(std::unique(moments_.begin(), moments_.end()), moments_.end());
  }

  std::uint64_t operator()(Moment moment) const {
    return static_cast<std::uint64_t>(std::ranges::lower_bound(moments_, moment) - moments_.begin());
  }

  Json columns() const {
    std::vector<std::uint64_t> events(moments_.begin(), moments_.end()), times;
    for (const Moment moment : moments_)
      times.push_back(std::max(time_of(trace_, moment), times.empty() ? 0 : times.back()));
    return {{"event", pack_column(events)}, {"time", pack_column(times)}};
  }

 private:
  const Trace& trace_;
  std::vector<Moment> moments_;
};

/// The blocks on the page: all, or those with the most bytes x events.
std::vector<BlockLife> largest_blocks(std::vector<BlockLife> blocks, std::size_t most) {
  if (blocks.size() <= most) return blocks;
  const auto weight = [](const BlockLife& block) {
    return static_cast<double>(block.size) * static_cast<double>(block.end - block.begin);
  };
  std::vector<std::size_t> order(blocks.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(most), [&](std::size_t a, std::size_t b) {
    return std::pair(-weight(blocks[a]), a) < std::pair(-weight(blocks[b]), b);
  });
  order.resize(most);
  std::ranges::sort(order);
  std::vector<BlockLife> result;
  for (const std::size_t i : order) result.push_back(blocks[i]);
  return result;
}

/// Maps addresses to offsets on the map, which joins used ranges end to end.
class AddressMap {
 public:
  explicit AddressMap(const History& history) : ranges_(used_addresses(history)) {
    std::uint64_t offset = 0;
    for (const AddressRange& range : ranges_) {
      offsets_.push_back(offset);
      offset += range.size;
    }
  }

  std::uint64_t operator()(std::uint64_t address) const {
    const auto after = std::ranges::upper_bound(ranges_, address, {}, &AddressRange::address);
    const auto range = static_cast<std::size_t>(after - ranges_.begin()) - 1;
    return offsets_[range] + (address - ranges_[range].address);
  }

  Json columns() const {
    std::vector<std::uint64_t> addresses, sizes;
    for (const AddressRange& range : ranges_) {
      addresses.push_back(range.address);
      sizes.push_back(range.size);
    }
    return {{"address", pack_column(addresses)}, {"size", pack_column(sizes)}, {"offset", pack_column(offsets_)}};
  }

 private:
  std::vector<AddressRange> ranges_;
  std::vector<std::uint64_t> offsets_;
};

/// Packs a column of f(thing).
template <class Things, class F>
std::string column(const Things& things, F f) {
  std::vector<std::uint64_t> values;
  values.reserve(things.size());
  for (const auto& thing : things) values.push_back(static_cast<std::uint64_t>(f(thing)));
  return pack_column(values);
}

/// Scripts use doubles.
constexpr std::uint64_t largest_number = (std::uint64_t{1} << 53) - 1;

Json block_columns(const std::vector<BlockLife>& blocks, const Moments& at, const AddressMap& map) {
  return {{"begin", column(blocks, [&](const BlockLife& b) { return at(b.begin); })},
          {"given_back", column(blocks, [&](const BlockLife& b) { return at(b.given_back); })},
          {"end", column(blocks, [&](const BlockLife& b) { return at(b.end); })},
          {"address", column(blocks, [&](const BlockLife& b) { return map(b.address); })},
          {"size", column(blocks, [](const BlockLife& b) { return b.size; })},
          {"requested", column(blocks, [](const BlockLife& b) { return b.requested; })},
          {"number", column(blocks, [](const BlockLife& b) { return b.number <= largest_number ? b.number : 0; })},
          {"location", column(blocks, [](const BlockLife& b) { return b.location; })},
          {"scope", column(blocks, [](const BlockLife& b) { return b.scope; })},
          {"stream", column(blocks, [](const BlockLife& b) { return b.stream; })},
          {"category", column(blocks, [](const BlockLife& b) { return static_cast<unsigned>(b.category); })}};
}

Json page_columns(const std::vector<PageLife>& pages, const Moments& at, const AddressMap& map) {
  return {{"begin", column(pages, [&](const PageLife& p) { return at(p.begin); })},
          {"end", column(pages, [&](const PageLife& p) { return at(p.end); })},
          {"address", column(pages, [&](const PageLife& p) { return map(p.address); })},
          {"size", column(pages, [](const PageLife& p) { return p.size; })}};
}

/// Adds "samples", and "sampled" and "requested" for the categories in use.
void add_samples(Json& page, const std::vector<Sample>& samples, const Moments& at) {
  page["samples"] = {{"moment", column(samples, [&](const Sample& s) { return at(s.moment); })},
                     {"live", column(samples, [](const Sample& s) { return s.live; })},
                     {"pending", column(samples, [](const Sample& s) { return s.pending; })},
                     {"reserved", column(samples, [](const Sample& s) { return s.reserved; })}};
  page["sampled"] = page["requested"] = Json::array();
  for (const Category category : stacking) {
    const auto of_category = [&](const Sample& sample) { return sample.requested[static_cast<std::size_t>(category)]; };
    if (std::ranges::all_of(samples, [&](const Sample& sample) { return of_category(sample) == 0; })) continue;
    page["sampled"].push_back(to_string(category));
    page["requested"].push_back(column(samples, of_category));
  }
}

struct Mark {
  Moment moment;
  Json json;
};

std::vector<Mark> marks_of(const Trace& trace, std::size_t most, std::size_t& omitted) {
  std::vector<Mark> marks;
  omitted = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    if (event.kind != TraceKind::stage && event.kind != TraceKind::out_of_memory) continue;
    if (marks.size() >= most) {
      ++omitted;
      continue;
    }
    marks.push_back({static_cast<Moment>(i + 1), mark_of(trace, event, i)});
  }
  return marks;
}

std::vector<Moment> steps_of(const Trace& trace) {
  std::vector<Moment> steps;
  for (std::size_t i = 0; i < trace.events.size(); ++i)
    if (trace.events[i].kind == TraceKind::step) steps.push_back(static_cast<Moment>(i + 1));
  return steps;
}

/// A name for each index, also for indices out of range.
template <class Names, class Write>
Json names(const Names& from, Write write) {
  Json result = Json::array();
  for (const auto& name : from) result.push_back(write(name));
  return result;
}

}  // namespace

std::string pack_column(const std::vector<std::uint64_t>& values) {
  ByteWriter bytes;
  std::uint64_t before = 0;
  for (const std::uint64_t value : values) bytes.varint(zigzag(value - std::exchange(before, value)));
  return base64(bytes.view());
}

std::string embeddable(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    switch (c) {
      case '<': text += "\\u003c"; break;
      case '>': text += "\\u003e"; break;
      case '&': text += "\\u0026"; break;
      case '/':
        if (text.ends_with('/')) text += '\\';  // "//" would look like an external reference
        text += '/';
        break;
      default: text += c;
    }
  }
  return text;
}

PageParts page_parts(const PageInput& input, const PageLimits& limits) {
  const Trace& trace = input.trace;
  History history = history_of(trace);
  const std::vector<Sample> samples = samples_of(history, trace.events.size(), limits.samples);
  const AddressMap map(history);
  const std::size_t all_blocks = history.blocks.size();
  PageTables tables = page_tables(input, history, samples);
  history.blocks = largest_blocks(std::move(history.blocks), limits.blocks);
  std::size_t omitted_marks = 0;
  const std::vector<Mark> marks = marks_of(trace, limits.marks, omitted_marks);
  const std::vector<Moment> steps = steps_of(trace);

  Moments at(trace);
  for (const BlockLife& block : history.blocks)
    for (const Moment moment : {block.begin, block.given_back, block.end}) at.want(moment);
  for (const PageLife& page : history.pages)
    for (const Moment moment : {page.begin, page.end}) at.want(moment);
  for (const Sample& sample : samples) at.want(sample.moment);
  for (const Mark& mark : marks) at.want(mark.moment);
  for (const Moment step : steps) at.want(step);
  at.fix();

  Json page{{"title", input.title},
            {"subtitle", tables.subtitle},
            {"tiles", tables.tiles},
            {"timed", input.timed && time_of(trace, static_cast<Moment>(trace.events.size() + 1)) > 0},
            {"events", trace.events.size()},
            {"moments", at.columns()},
            {"has_pages", !history.pages.empty()}};
  Json categories = Json::array();
  for (std::size_t i = 0; i < category_count; ++i) categories.push_back(to_string(static_cast<Category>(i)));
  page["categories"] = categories;
  page["scopes"] = trace.scopes;
  page["streams"] = names(trace.streams, [](std::uint64_t id) { return fmt::format("{}", id); });
  page["locations"] = names(trace.locations, [](const TraceLocation& location) { return to_text(location); });
  page["blocks"] = block_columns(history.blocks, at, map);
  page["omitted_blocks"] = all_blocks - history.blocks.size();
  page["pages"] = page_columns(history.pages, at, map);
  page["ranges"] = map.columns();
  add_samples(page, samples, at);
  page["steps"] = column(steps, [&](Moment moment) { return at(moment); });
  page["marks"] = Json::array();
  for (const Mark& mark : marks) {
    Json json = mark.json;
    json["at"] = at(mark.moment);
    page["marks"].push_back(std::move(json));
  }
  Json& notes = page["notes"] = Json::array();
  if (all_blocks > history.blocks.size())
    notes.push_back(
        fmt::format("The address map shows the {} blocks with the most bytes x events, of {}; the other plots and the "
                    "tables count all.",
                    format_integer(history.blocks.size()), format_integer(all_blocks)));
  if (samples.size() <= trace.events.size())
    notes.push_back(fmt::format("Memory and fragmentation show the fullest moment of every {:.1f} events.",
                                static_cast<double>(trace.events.size()) / static_cast<double>(samples.size() - 1)));
  if (omitted_marks > 0)
    notes.push_back(fmt::format("The last {} stages and failures have no mark.", format_integer(omitted_marks)));
  if (trace.lost == 1)  // stands for an unknown number in a trace from a snapshot
    notes.push_back("One or more older events were overwritten while recording.");
  if (trace.lost > 1)
    notes.push_back(fmt::format("{} were overwritten while recording.", counted(trace.lost, "older event")));
  if (history.pages.empty() && !trace.events.empty())
    notes.push_back("The trace does not record which pages had memory.");
  return {std::move(page), std::move(tables.html)};
}

std::string page_html(const PageInput& input, const PageLimits& limits) {
  const PageParts parts = page_parts(input, limits);
  std::string page;
  std::string_view rest = page_template;
  const auto put = [&](std::string_view mark, std::string_view text) {
    const std::size_t at = rest.find(mark);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + mark.size());
  };
  put("@STYLE@", page_style);  // in the template's order
  put("@TABLES@", parts.tables);
  put("@DATA@", embeddable(parts.data));
  put("@SCRIPT@", page_script);
  return page.append(rest);
}

}  // namespace poolgrad::examples
