#include "examples/train/run_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "allocator/base/atomic_file.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "examples/plan/plan.h"
#include "examples/support/chart.h"
#include "examples/support/html.h"
#include "tensor/creation.h"

namespace poolgrad::examples {

namespace {

constexpr std::size_t most_positions = 64, most_blocks = 4, most_heads = 8;
constexpr std::size_t samples_of_step = 900;
constexpr int seconds_between_reloads = 5;

constexpr std::string_view run_style = R"(
.tiles, .maps { display: grid; gap: .6rem 1.6rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); margin: 1.2rem 0; }
.tiles b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.maps { grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
.large { grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); margin-bottom: 1rem; }
.large svg { display: block; max-width: 56rem; } .token { font: 8px ui-monospace, monospace; fill: var(--quiet); }
.maps:not(.large) svg { border: 1px solid var(--line); } .shades { image-rendering: pixelated; }
@media (prefers-color-scheme: dark) { .shades { filter: invert(1); } }
.narrower { display: none; } @media (max-width: 40rem) { .narrower { display: block; } .wider { display: none; } }
.quiet { color: var(--quiet); }
pre { background: var(--soft); padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.4; }
pre i { font-style: normal; color: var(--quiet); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .3rem 1.6rem; font-size: .88rem; }
dl div { border-bottom: 1px solid var(--line); padding: .15rem 0; } dt { color: var(--quiet); } dd { margin: 0; }
)";

/// A token on one line, cut to `most` bytes.
std::string visible_token(const std::string& token, std::size_t most = std::string::npos) {
  return visible_text(token.substr(0, most), visible_byte);
}

std::string shown_token(const std::string& token) { return escaped(visible_token(token)); }

/// Text of bytes that may be invalid UTF-8.
std::string shown_text(const std::string& text) { return escaped(printable_lines(text)); }

Points points_of(const nn::TrainResult& result, double nn::StepRecord::*field) {
  Points points;
  for (const nn::StepRecord& step : result.steps) points.emplace_back(static_cast<double>(step.step), step.*field);
  return points;
}

std::string count_text(double value) { return nn::format_count(value); }
std::string step_text(double value) { return format_integer(static_cast<std::uint64_t>(std::llround(value))); }
std::string nats_text(double value) { return fmt::format("{:.4g}", value); }

std::string section(const std::string& title, const std::string& note, const std::string& content) {
  if (content.empty()) return "";
  return fmt::format("<section><h2>{}</h2>{}{}</section>\n", title,
                     note.empty() ? "" : "<p class=\"quiet\">" + note + "</p>\n", content);
}

std::vector<Level> levels_of(const nn::Baselines& b) {
  if (b.unigram == 0) return {};
  return {{"unigram", b.unigram}, {"bigram", b.bigram}, {"trigram", b.trigram}};
}

std::string loss_chart(const nn::TrainResult& r, double width, double height) {
  const Points losses = points_of(r, &nn::StepRecord::loss);
  Points validation;
  for (const auto& [step, loss] : r.validations) validation.emplace_back(static_cast<double>(step), loss);
  const std::size_t window = std::clamp<std::size_t>(losses.size() / 40, 2, 100);
  return chart_svg({.x_name = "step",
                    .series = {{"each step", losses, 0, Series::Kind::faint},
                               {fmt::format("mean of {}", window), running_mean(losses, window), 0},
                               {"held out", validation, 1, Series::Kind::dots}},
                    .levels = levels_of(r.baselines),
                    .whole_x = true,
                    .width = width,
                    .height = height,
                    .x_text = step_text,
                    .y_text = nats_text});
}

const char* unit(const RunPage& page) { return unit_of(page.config.value("tokenizer", "bytes")); }

std::string position_chart(const RunPage& page) {
  const nn::TrainResult& r = page.result;
  Points points;
  for (const nn::PositionLoss& p : r.by_position) points.emplace_back(static_cast<double>(p.last), p.loss);
  return chart_svg({.x_name = fmt::format("{} of context, at most", unit(page)),
                    .series = {{"held out", points, 1, Series::Kind::dots}},
                    .levels = levels_of(r.baselines),
                    .log_x = true,
                    .x_text = step_text,
                    .y_text = nats_text});
}

std::string step_chart(const nn::TrainResult& r, double nn::StepRecord::*field, const char* name, int colour,
                       bool log_y, bool from_zero, std::string (*text)(double)) {
  return chart_svg({.x_name = "step",
                    .series = {{name, points_of(r, field), colour}},
                    .log_y = log_y,
                    .from_zero = from_zero,
                    .whole_x = true,
                    .x_text = step_text,
                    .y_text = text});
}

std::string tile(const std::string& value, const std::string& name) {
  return fmt::format("<div><b>{}</b><span class=\"quiet\">{}</span></div>\n", value, name);
}

std::string tiles(const RunPage& page) {
  const nn::TrainResult& r = page.result;
  const bool judged = r.validation_bytes > 0 || r.validations.empty();
  const double validation = judged ? r.validation_loss : r.validations.back().second;
  std::string html = "<div class=\"tiles\">\n";
  html += tile(fmt::format("{:.4f}", validation), page.finished && !r.interrupted && r.error.empty()
                                                      ? "nats per byte, held out"
                                                      : "nats per byte, on part of the validation text");
  html += tile(count_text(r.tokens_per_second), fmt::format("{} a second", unit(page)));
  html += tile(nn::format_duration(r.seconds), "in all");
  html += tile(format_bytes(r.peak_live_bytes), "peak of live memory");
  html += tile(format_bytes(r.peak_reserved_bytes), "peak of reserved memory");
  html += tile(format_percent(r.hit_rate), "of requests from the pool");
  return html + "</div>\n";
}

std::string memory_section(const Json& config, const nn::TrainResult& r) {
  if (!r.step_trace) return "";
  const StepPicture picture = picture_of(*r.step_trace, samples_of_step, true),
                    coarse = picture_of(*r.step_trace, samples_of_step / 3, true);
  const std::string budget = config.value("budget", "");
  const std::size_t limit = budget.empty() ? no_limit : parse_bytes(budget);
  return section(
      "Memory over one step",
      fmt::format("Requested bytes by category over time, in {} requests; the line above them shows reserved bytes.",
                  format_integer(picture.events)),
      "<div class=\"wider\">" + step_svg(picture, limit) + "</div><div class=\"narrower\">" +
          step_svg(coarse, limit, 400, 260) + "</div>\n" + category_table(picture, r.bytes_by_category));
}

/// The positions with the largest weights in row `row`.
std::string row_title(const AttentionMap& map, const std::vector<std::string>& text, std::size_t row) {
  const std::size_t length = text.size();
  const auto weight = [&](std::size_t column) { return map.weights[row * length + column]; };
  std::vector<std::size_t> order(length);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return weight(a) > weight(b); });
  std::string title = fmt::format("{}: '{}' takes", row, shown_token(text[row]));
  for (std::size_t i = 0; i < std::min<std::size_t>(3, length) && weight(order[i]) > 0.005; ++i)
    title += fmt::format("{} {} of '{}' at {}", i > 0 ? "," : "", format_percent(weight(order[i])),
                         shown_token(text[order[i]]), order[i]);
  return title;
}

/// Large maps have their text at the left and above; `cell` is the side of a weight.
std::string map_svg(const AttentionMap& map, const std::vector<std::string>& text) {
  constexpr std::size_t cell = 10, most_characters = 8;
  const std::size_t length = text.size(), side = cell * length;
  std::vector<unsigned char> shades;
  for (const double weight : map.weights)
    shades.push_back(static_cast<unsigned char>(std::lround(255 * std::sqrt(std::clamp(weight, 0.0, 1.0)))));
  std::vector<std::string> names;
  std::size_t margin = 0;
  if (map.large) {
    for (const std::string& token : text) {
      names.push_back(visible_token(token, most_characters));
      margin = std::max(margin, 6 + 5 * names.back().size());
    }
  }
  std::string svg = fmt::format(
      "<div>block {0}, head {1}<svg viewBox=\"-{2} -{2} {3} {3}\" role=\"img\">"
      "<image class=\"shades\" width=\"{4}\" height=\"{4}\" href=\"{5}\"/>\n",
      map.block, map.head, margin, side + margin, side, image_url(shades, length));
  for (std::size_t at = 0; at < names.size(); ++at)
    svg += fmt::format(
        "<text class=\"token\" text-anchor=\"end\" x=\"-3\" y=\"{0}\">{1}</text>"
        "<text class=\"token\" transform=\"translate({0} -3) rotate(-90)\">{1}</text>\n",
        cell * at + 8, escaped(names[at]));
  for (std::size_t row = 0; row < length; ++row)
    svg += fmt::format("<rect class=\"place\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>\n",
                       cell * row, side, cell, row_title(map, text, row));
  return svg + "</svg></div>\n";
}

std::string map_section(const RunPage& page) {
  if (page.maps.empty()) return "";
  std::string large, small;
  for (const AttentionMap& map : page.maps) (map.large ? large : small) += map_svg(map, page.map_tokens);
  if (!large.empty()) large = "<div class=\"maps large\">\n" + large + "</div>\n";
  return section("Attention maps",
                 fmt::format("Attention weights on the {} {} below, read as a separate text: one row for each query "
                             "position, keys to the right; shades are square roots of weights.",
                             page.map_tokens.size(), unit(page)),
                 large + "<div class=\"maps\">\n" + small + "</div>\n<pre>" +
                     shown_text(fmt::format("{}", fmt::join(page.map_tokens, ""))) + "</pre>\n");
}

std::string option_text(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_array()) {
    std::string text;
    for (const Json& one : value) text += (text.empty() ? "" : ", ") + option_text(one);
    return text.empty() ? "none" : text;
  }
  const std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
  return text.empty() ? "none" : text;
}

std::string option_list(const Json& config) {
  std::string html = "<dl>\n";
  for (const auto& [name, value] : config.items()) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(name), escaped(option_text(value)));
  }
  return html + "</dl>\n";
}

std::string state_of(const RunPage& page) {
  const nn::TrainResult& r = page.result;
  const std::int64_t done = r.steps.empty() ? 0 : r.steps.back().step, all = page.config.value("steps", done);
  if (!page.finished)
    return fmt::format("step {} of {}; the page reloads itself", format_integer(static_cast<std::uint64_t>(done)),
                       format_integer(static_cast<std::uint64_t>(all)));
  return fmt::format("{} after {}",
                     !r.error.empty() ? "failed"
                     : r.interrupted  ? "stopped"
                                      : "finished",
                     counted(static_cast<std::uint64_t>(done), "step"));
}

}  // namespace

std::vector<std::int64_t> map_tokens(nn::Trainer& trainer, const std::string& text) {
  std::vector<std::int64_t> tokens = trainer.corpus().tokenizer->encode(text);
  const std::int64_t context = trainer.model().config().context;
  tokens.resize(std::min({tokens.size(), most_positions, static_cast<std::size_t>(context)}));
  return tokens;
}

std::vector<AttentionMap> attention_maps(nn::Trainer& trainer, const std::vector<std::int64_t>& tokens,
                                         const std::vector<HeadName>& chosen) {
  std::vector<AttentionMap> maps;
  if (trainer.device().is_sim() || tokens.empty()) return maps;
  nn::LanguageModel& model = trainer.model();
  const std::size_t length = tokens.size();
  try {
    const auto averages = trainer.averaged();
    model.eval();
    const std::vector<Tensor> weights =
        model.mixing_weights(from_data(tokens, {1, static_cast<std::int64_t>(length)}, trainer.device()));
    std::vector<std::vector<double>> blocks;
    for (const Tensor& one : weights) blocks.push_back(one.defined() ? one.to_vector<double>() : std::vector<double>());
    const std::size_t square = length * length;
    const auto add = [&](std::size_t block, std::size_t head, bool large) {
      const auto begin = blocks[block].begin() + static_cast<std::ptrdiff_t>(head * square);
      maps.push_back({.block = static_cast<std::int64_t>(block),
                      .head = static_cast<std::int64_t>(head),
                      .weights = {begin, begin + static_cast<std::ptrdiff_t>(square)},
                      .large = large});
    };
    const auto heads_of = [&](std::size_t block) { return block < blocks.size() ? blocks[block].size() / square : 0; };
    for (const auto& [block, head] : chosen)
      if (static_cast<std::size_t>(head) < heads_of(static_cast<std::size_t>(block)))
        add(static_cast<std::size_t>(block), static_cast<std::size_t>(head), true);
    for (std::size_t block = 0; block < std::min(blocks.size(), most_blocks); ++block)
      for (std::size_t head = 0; head < std::min(heads_of(block), most_heads); ++head) add(block, head, false);
  } catch (const OutOfMemoryError&) {  // continue without maps
    maps.clear();
  }
  return maps;
}

std::string run_page_html(const RunPage& page) {
  const Json& c = page.config;
  const nn::TrainResult& r = page.result;
  const auto norms = points_of(r, &nn::StepRecord::gradient_norm);
  const auto [least, most] = std::ranges::minmax_element(norms, {}, &Points::value_type::second);
  const bool wide = !norms.empty() && least->second > 0 && most->second > 30 * least->second;
  std::string html =
      fmt::format("<h1>Training run</h1>\n<p>{}, width {}, {}, context {}, {}, {}; {} parameters. {}, {}: {}.</p>\n",
                  plural(c.value("layer_count", 0), "layer"), c.value("width", 0), plural(c.value("heads", 0), "head"),
                  c.value("context", 0), escaped(c.value("pattern", "")), escaped(c.value("dtype", "")),
                  count_text(c.value("parameters", 0.0)), escaped(c.value("device", "")),
                  escaped(c.value("machine", "")), state_of(page));
  if (!r.error.empty()) html += section("Error", "", "<pre>" + shown_text(r.error) + "</pre>\n");
  html += tiles(page);
  html += section("Loss", "Nats per byte on training text and on validation text; dashed: n-gram models.",
                  "<div class=\"wider\">" + loss_chart(r, 1100, 360) + "</div><div class=\"narrower\">" +
                      loss_chart(r, 400, 300) + "</div>");
  html += "<div class=\"charts\">\n";
  html += section("Loss by position", "Does more context help?", position_chart(page));
  html += section("Speed", fmt::format("In {} a second.", unit(page)),
                  step_chart(r, &nn::StepRecord::tokens_per_second, "speed", 2, false, true, count_text));
  html += section("Gradient norm", "Before clipping.",
                  step_chart(r, &nn::StepRecord::gradient_norm, "norm", 3, wide, !wide, nats_text));
  html += section("Learning rate", "At its peak after the warm-up.",
                  step_chart(r, &nn::StepRecord::learning_rate, "rate", 5, false, true, nats_text));
  html += "</div>\n" + memory_section(c, r) + map_section(page);
  if (!r.sample.empty())
    html += section("Sample", "Gray text is validation text; the model wrote the rest.",
                    "<pre><i>" + shown_text(r.prompt) + "</i>" + shown_text(r.sample) + "</pre>\n");
  html += section("Options and machine", "", option_list(c));
  return html_page("poolgrad: " + state_of(page), run_style, html, page.finished ? 0 : page.reload);
}

void write_page_of_run(TrainOptions& options) {
  options.trace_step = true;
  options.reported = [path = options.html, live = options.live_page](nn::Trainer& trainer, nn::TrainResult& result,
                                                                     bool finished) {
    if (!finished && !live) return;
    const Json config = Json::parse(result.config);
    RunPage page{
        .config = config, .result = result, .finished = finished, .reload = live ? seconds_between_reloads : 0};
    if (finished) {
      const std::vector<std::int64_t> tokens = map_tokens(trainer, result.prompt);
      page.maps = attention_maps(trainer, tokens, parse_heads(config.value("html_head", std::vector<std::string>())));
      for (const std::int64_t token : tokens) page.map_tokens.emplace_back(trainer.corpus().tokenizer->bytes_of(token));
    }
    write_file_atomically(path, run_page_html(page));
    if (finished) result.written.emplace_back("page", path);
  };
}

}  // namespace poolgrad::examples
