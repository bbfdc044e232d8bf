#include "nn/text/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "allocator/base/printable.h"
#include "allocator/base/random.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/views.h"
#include "tensor/creation.h"

namespace poolgrad::nn {

TextWindows windows_of(const std::vector<WindowPlace>& places, std::int64_t length, Device device, CallSite) {
  const MemoryScope scope("batch", Category::input);
  if (length < 1)
    throw IndexError(fmt::format("[windows_of] the length of a window must be at least 1, but is {}", length));
  for (const WindowPlace& place : places)
    if (place.text == nullptr) throw ValueError("[windows_of] a window has no text");
  const std::int64_t width = places.empty() ? 1 : places.front().text->width();
  const auto row_bytes = static_cast<std::size_t>((length + 1) * width);
  std::vector<std::uint8_t> rows;
  for (const auto& [text, start] : places) {
    if (start < 0 || start > text->size() - 1 - length)
      throw IndexError(fmt::format("[windows_of] a window of {} and the {} after it, from {}, exceed the text of {}",
                                   length, width == 1 ? "byte" : "token", start, text->size()));
    if (text->width() != width) throw ValueError("[windows_of] the texts have tokens of different widths");
    rows.resize(rows.size() + row_bytes);
    text->read_bytes(start, std::span(rows).last(row_bytes));
  }
  const Shape shape{static_cast<std::int64_t>(places.size()), length + 1};
  // Copies narrow numbers to the device and converts them to i64 there.
  Tensor narrow;
  if (width == 1) {
    narrow = from_data(rows, shape, device);
  } else {
    std::vector<std::uint16_t> tokens(rows.size() / 2);
    if (!tokens.empty()) std::memcpy(tokens.data(), rows.data(), rows.size());
    narrow = from_data(std::vector<std::int32_t>(tokens.begin(), tokens.end()), shape, device);
  }
  return {to(slice(narrow, 1, 0, length), DType::i64), to(slice(narrow, 1, 1, length + 1), DType::i64)};
}

TextWindows windows_of(const Text& text, const std::vector<std::int64_t>& starts, std::int64_t length, Device device,
                       CallSite) {
  std::vector<WindowPlace> places;
  for (const std::int64_t start : starts) places.push_back({&text, start});
  return windows_of(places, length, device);
}

WindowPlan::WindowPlan(const Corpus& corpus, std::int64_t context, std::int64_t batch, std::uint64_t seed)
    : corpus_(corpus), context_(context), batch_(batch), seed_(seed) {
  if (corpus.texts.empty()) throw ValueError("[train] there is no text");
  for (const CorpusText& text : corpus.texts) {
    const std::string name = corpus.weighted ? "the text " + printable_path(text.path) : "the text";
    if (text.train_tokens.size() <= context)
      throw ValueError(fmt::format("[train] {} is shorter than the context: {} {} to train on, a context of {}", name,
                                   text.train_tokens.size(), text.train_tokens.width() == 1 ? "bytes" : "tokens",
                                   context));
    if (text.validation_tokens.size() < 2 && !corpus.own_validation)
      throw ValueError(fmt::format("[train] {} is too short for a validation part", name));
  }
  if (batch < 1) throw ValueError(fmt::format("[train] the batch must be at least 1, but is {}", batch));
  if (validation_batches() == 0) throw ValueError("[train] the validation text has less than two tokens");
}

WindowPlace WindowPlan::drawn(std::int64_t number) const {
  const auto index = static_cast<std::uint64_t>(number);
  std::size_t chosen = 0;
  if (corpus_.texts.size() > 1) {
    double rest = random_unit(~seed_, index) * corpus_.total_weight();
    while (chosen + 1 < corpus_.texts.size() && (rest -= corpus_.texts[chosen].weight) >= 0) ++chosen;
  }
  const Text& text = corpus_.texts[chosen].train_tokens;
  const auto starts = static_cast<std::uint64_t>(text.size() - context_);
  return {&text, static_cast<std::int64_t>(random_below(seed_, index, starts))};
}

std::int64_t WindowPlan::validation_length(const CorpusText& text) const {
  return std::min(context_, text.validation_tokens.size() - 1);
}

std::int64_t WindowPlan::validation_batches(const CorpusText& text) const {
  const std::int64_t tokens = text.validation_tokens.size() - 1;
  if (tokens < 1) return 0;
  const std::int64_t of_batch = validation_length(text) * batch_;
  return std::max<std::int64_t>(1, (tokens + (corpus_.own_validation ? of_batch - 1 : 0)) / of_batch);
}

std::int64_t WindowPlan::validation_batches() const {
  std::int64_t batches = 0;
  for (const CorpusText& text : corpus_.texts) batches += validation_batches(text);
  return batches;
}

std::vector<WindowPlan::Batch> WindowPlan::validation(std::int64_t batches) const {
  std::vector<Batch> result;
  const double asked = static_cast<double>(std::min(batches, validation_batches())) /
                       static_cast<double>(validation_batches());  // of all batches
  for (std::size_t i = 0; i < corpus_.texts.size(); ++i) {
    const Text& text = corpus_.texts[i].validation_tokens;
    const std::int64_t there = validation_batches(corpus_.texts[i]), length = validation_length(corpus_.texts[i]);
    if (there == 0) continue;
    const std::int64_t share = std::clamp<std::int64_t>(std::llround(asked * static_cast<double>(there)), 1, there);
    const std::int64_t windows = share * batch_, last_start = text.size() - 1 - length;
    for (std::int64_t window = 0; window < windows;) {
      Batch batch{.text = i, .places = {}, .length = length};
      for (std::int64_t row = 0; row < batch_; ++row, ++window)
        batch.places.push_back({&text, windows > 1 ? last_start * window / (windows - 1) : 0});
      result.push_back(std::move(batch));
    }
  }
  return result;
}

std::vector<double> WindowPlan::target_bytes(const std::vector<WindowPlace>& places, std::int64_t length) const {
  std::vector<double> bytes(static_cast<std::size_t>(length));
  for (const auto& [text, start] : places) {
    if (text->width() == 1) {
      for (double& of_position : bytes) ++of_position;
      continue;
    }
    const std::vector<std::int32_t> targets = text->read(start + 1, length);
    for (std::size_t i = 0; i < targets.size(); ++i)
      bytes[i] += static_cast<double>(corpus_.tokenizer->bytes_of(targets[i]).size());
  }
  return bytes;
}

}  // namespace poolgrad::nn
