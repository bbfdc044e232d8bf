// The JSON and CSV files of a training run.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "examples/support/train_report.h"
#include "examples/support/write_text.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

using Json = nlohmann::ordered_json;

Json configuration(const TrainOptions& o, const TrainResult& r) {
  return {{"text", o.text},
          {"files", r.files},
          {"train_bytes", r.train_bytes},
          {"held_out_bytes", r.held_out_bytes},
          {"context", o.context},
          {"layers", o.layers},
          {"width", o.width},
          {"heads", o.heads},
          {"kv_heads", o.model().kv_heads},
          {"attention", o.attention.attention},
          {"pattern", o.attention.describe(o.context)},
          {"window", o.attention.window},
          {"batch", o.batch},
          {"steps", o.steps},
          {"lr", o.lr},
          {"dropout", o.dropout},
          {"seed", o.seed},
          {"dtype", o.dtype},
          {"device", o.device},
          {"budget", o.budget},
          {"resume", o.resume},
          {"parameters", r.parameters},
          {"threads", kernels::num_threads()},
          {"gemm", kernels::gemm_backend()},
          {"instruction_set", kernels::instruction_set()}};
}

}  // namespace

void write_json(const std::string& path, const TrainOptions& options, const TrainResult& r) {
  Json steps = Json::array();
  for (const StepRecord& s : r.steps)
    steps.push_back({{"step", s.step},
                     {"loss", s.loss},
                     {"gradient_norm", s.gradient_norm},
                     {"learning_rate", s.learning_rate},
                     {"milliseconds", s.milliseconds},
                     {"tokens_per_second", s.tokens_per_second},
                     {"live_bytes", s.live_bytes},
                     {"reserved_bytes", s.reserved_bytes},
                     {"device_allocations", s.device_allocations}});
  Json validations = Json::array();
  for (const auto& [step, loss] : r.validations) validations.push_back({{"step", step}, {"loss", loss}});
  Json categories;
  for (std::size_t i = 0; i < category_count; ++i)
    categories[std::string(to_string(static_cast<Category>(i)))] = r.bytes_by_category[i];
  const Json report{
      {"config", configuration(options, r)},
      {"steps", steps},
      {"validations", validations},
      {"validation_loss", r.validation_loss},
      {"validation_bytes", r.validation_bytes},
      {"baselines",
       {{"unigram", r.baselines.unigram}, {"bigram", r.baselines.bigram}, {"trigram", r.baselines.trigram}}},
      {"interrupted", r.interrupted},
      {"seconds", r.seconds},
      {"tokens_per_second", r.tokens_per_second},
      {"peak_live_bytes", r.peak_live_bytes},
      {"peak_reserved_bytes", r.peak_reserved_bytes},
      {"pool_hit_rate", r.hit_rate},
      {"allocation_hash", fmt::format("{:016x}", r.allocation_hash)},
      {"bytes_by_category", categories},
      {"sample", r.prompt + r.sample}};
  write_text(path, report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", "train");
}

void write_csv(const std::string& path, const TrainResult& result) {
  std::string text =
      "step,loss,gradient_norm,learning_rate,milliseconds,tokens_per_second,live_bytes,reserved_bytes,"
      "device_allocations\n";
  for (const StepRecord& s : result.steps)
    text += fmt::format("{},{},{},{},{},{},{},{},{}\n", s.step, s.loss, s.gradient_norm, s.learning_rate,
                        s.milliseconds, s.tokens_per_second, s.live_bytes, s.reserved_bytes, s.device_allocations);
  write_text(path, text, "train");
}

}  // namespace poolgrad::examples
