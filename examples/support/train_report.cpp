#include "examples/support/train_report.h"

#include <fmt/format.h>

#include <cctype>

#include "allocator/caching_allocator.h"
#include "examples/support/progress.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

std::string bytes(std::uint64_t count) { return format_bytes(static_cast<std::size_t>(count)); }

/// Text as a terminal can show it: line breaks and printable ASCII.
std::string printable(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\t' || (byte >= 0x20 && byte < 0x7f))
      result += c;
    else if (c != '\r')
      result += '?';
  }
  return result;
}

std::string indented(const std::string& text) {
  std::string result = "  | ";
  for (const char c : text) result += c == '\n' ? std::string("\n  | ") : std::string(1, c);
  return result;
}

}  // namespace

std::string describe_run(const TrainOptions& o, const TrainResult& r) {
  const auto model = o.model();
  std::string paths;
  for (const std::string& path : o.text) paths += " " + path;
  return fmt::format(
      "text     {} files, {} to train on, {} held out:{}\n"
      "model    {} parameters: {} layers, width {}, {} heads ({} for keys), context {}, {}\n"
      "device   {}, {}, {} threads, products by {}, attention by {}{}",
      r.files, bytes(static_cast<std::uint64_t>(r.train_bytes)), bytes(static_cast<std::uint64_t>(r.held_out_bytes)),
      paths, format_count(static_cast<double>(r.parameters)), o.layers, o.width, o.heads, model.kv_heads, o.context,
      o.attention.describe(o.context), o.device, o.dtype, kernels::num_threads(), kernels::gemm_backend(),
      kernels::instruction_set(), o.budget.empty() ? "" : ", budget " + o.budget);
}

std::string describe_step(const TrainOptions& o, const TrainResult& r, double eta) {
  const StepRecord& s = r.steps.back();
  return fmt::format(
      "step {:>{}}/{}  loss {:.4f}  val {:.4f}  |g| {:.3f}  lr {:.2e}  {:.0f} ms/step  {} tok/s  mem {} live, {} "
      "reserved, {} peak  hits {:.1f}%  ETA {}",
      s.step, fmt::formatted_size("{}", o.steps), o.steps, s.loss, r.validations.back().second, s.gradient_norm,
      s.learning_rate, s.milliseconds, format_count(s.tokens_per_second), bytes(s.live_bytes), bytes(s.reserved_bytes),
      bytes(r.peak_live_bytes), 100 * r.hit_rate, format_duration(eta));
}

std::string describe_status(const TrainOptions& o, const StepRecord& s, double eta) {
  return fmt::format("{} step {}/{}  loss {:.4f}  {:.0f} ms/step  ETA {}",
                     bar(static_cast<double>(s.step) / static_cast<double>(o.steps)), s.step, o.steps, s.loss,
                     s.milliseconds, format_duration(eta));
}

std::string describe_result(const TrainOptions& o, const TrainResult& r) {
  std::vector<double> losses;
  for (const StepRecord& step : r.steps) losses.push_back(step.loss);
  std::string text = r.interrupted ? fmt::format("\nstopped after step {}\n", r.steps.back().step) : "\n";
  if (!losses.empty())
    text += fmt::format("loss     {} {:.3f} to {:.3f}\n", sparkline(losses), losses.front(), losses.back());
  text +=
      fmt::format("held out {:.4f} nats per byte (unigram {:.4f}, bigram {:.4f}, trigram {:.4f}); {} bytes scored\n",
                  r.validation_loss, r.baselines.unigram, r.baselines.bigram, r.baselines.trigram, r.validation_bytes);
  text += fmt::format("speed    {} tok/s, {} in all\n", format_count(r.tokens_per_second), format_duration(r.seconds));
  if (!r.sample.empty())
    text += "sample   (the first " + std::to_string(r.prompt.size()) + " bytes are held-out text)\n" +
            indented(printable(r.prompt + r.sample)) + "\n";
  text += fmt::format("memory   peak {} live, {} reserved; peaks by category:\n", bytes(r.peak_live_bytes),
                      bytes(r.peak_reserved_bytes));
  for (std::size_t i = 0; i < category_count; ++i)
    if (r.bytes_by_category[i] > 0)
      text +=
          fmt::format("         {:<16} {:>12}\n", to_string(static_cast<Category>(i)), bytes(r.bytes_by_category[i]));
  text += fmt::format("requests hash {:016x}, {:.2f} % served from the pool", r.allocation_hash, 100 * r.hit_rate);
  for (const auto& [what, path] : r.written) text += fmt::format("\nwrote    {} {}", what, path);
  if (r.interrupted && !o.save.empty()) text += fmt::format("\ngo on    with --resume {}", o.save);
  return text;
}

}  // namespace poolgrad::examples
