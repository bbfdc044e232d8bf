#include "nn/checkpoint_sequential.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "autograd/memory/checkpoint.h"

namespace poolgrad::nn {

namespace {

using Stages = std::shared_ptr<const std::vector<PassingStage>>;

constexpr std::pair<Checkpointing::Kind, const char*> checkpointing_names[] = {
    {Checkpointing::Kind::none, "none"},
    {Checkpointing::Kind::block, "block"},
    {Checkpointing::Kind::sqrt, "sqrt"},
    {Checkpointing::Kind::revolve, "revolve"}};

/// Returns the number of stages of the longest chain that can be reversed with `slots` kept inputs: (slots + repeats)
/// choose slots. No stage is recomputed more than `repeats` times.
std::int64_t longest_chain(std::int64_t slots, std::int64_t repeats) {
  if (repeats < 0 || slots < 0) return 0;
  std::int64_t chain = 1;
  for (std::int64_t i = 1; i <= slots; ++i) chain = chain * (repeats + i) / i;
  return chain;
}

/// Returns the smallest possible maximum of recomputations of a stage.
std::int64_t repeats_of(std::int64_t stages, std::int64_t slots) {
  std::int64_t repeats = 0;
  while (longest_chain(slots, repeats) < stages) ++repeats;
  return repeats;
}

/// Returns the end of the first piece of a chain of at least two stages. The first piece later has all slots, the rest
/// has one less. Neither is longer than its slots allow.
std::int64_t split_of(std::int64_t stages, std::int64_t slots) {
  const std::int64_t repeats = repeats_of(stages, slots);
  return std::max<std::int64_t>({1, longest_chain(slots, repeats - 2), stages - longest_chain(slots - 1, repeats)});
}

/// The tensors that stages pass on, in order.
using Passed = std::vector<Tensor>;

Tensor run_plainly(const Stages& stages, Tensor x, Passed& passed, std::size_t first, std::size_t last) {
  for (; first < last; ++first) x = (*stages)[first](x, passed);
  return x;
}

/// Calls part(x, passed) as a checkpoint: a function of x and of all that was passed on.
Tensor checkpoint_part_of(const PassingStage& part, const Tensor& x, Passed& passed) {
  Passed inputs{x};
  inputs.insert(inputs.end(), passed.begin(), passed.end());
  const auto function = [part](const std::vector<Tensor>& in) {
    Passed all(in.begin() + 1, in.end());
    std::vector<Tensor> outputs{part(in[0], all)};
    outputs.insert(outputs.end(), all.begin() + std::ssize(in) - 1, all.end());
    return outputs;
  };
  const std::vector<Tensor> outputs = checkpoint(function, inputs);
  passed.insert(passed.end(), outputs.begin() + 1, outputs.end());
  return outputs[0];
}

Tensor run_in_segments(const Stages& stages, Tensor x, std::size_t segments) {
  const std::size_t n = stages->size();
  Passed passed;
  for (std::size_t i = 0; i < segments; ++i)
    x = checkpoint_part_of(
        [=](const Tensor& in, Passed& all) {
          return run_plainly(stages, in, all, i * n / segments, (i + 1) * n / segments);
        },
        x, passed);
  return x;
}

/// The backward pass runs each piece again with the slots that are free then: the later pieces are already reversed.
/// The last stage is reversed at once, so it is no checkpoint.
Tensor run_revolving(const Stages& stages, Tensor x, Passed& passed, std::size_t first, std::size_t last,
                     std::int64_t slots) {
  for (; last - first > 1; --slots) {
    const std::size_t middle =
        first + static_cast<std::size_t>(split_of(static_cast<std::int64_t>(last - first), slots));
    x = checkpoint_part_of(
        [=](const Tensor& in, Passed& all) { return run_revolving(stages, in, all, first, middle, slots); }, x, passed);
    first = middle;
  }
  return run_plainly(stages, x, passed, first, last);
}

std::int64_t slots_for(const Checkpointing& policy, std::int64_t stages) {
  if (policy.slots > 0) return std::min(policy.slots, std::max<std::int64_t>(stages, 1));  // more slots save nothing
  std::int64_t slots = 1;
  for (std::int64_t reach = 1; reach < stages; reach *= 2) ++slots;
  return slots;
}

}  // namespace

Checkpointing Checkpointing::parse(const std::string& text) {
  const std::size_t colon = text.find(':');
  for (const auto& [kind, name] : checkpointing_names) {
    if (text.substr(0, colon) != name) continue;
    if (colon == std::string::npos) return {kind, 0};
    const auto slots = number_in<std::int64_t>(std::string_view(text).substr(colon + 1));
    if (kind == Kind::revolve && slots && *slots > 0) return {kind, *slots};
  }
  throw ValueError("[checkpoint] the policy must be none, block, sqrt, revolve or revolve:SLOTS, but is " +
                   printable(text));
}

std::string Checkpointing::to_string() const {
  for (const auto& [known, name] : checkpointing_names)
    if (kind == known) return name + (slots > 0 ? ":" + std::to_string(slots) : std::string());
  return "invalid";
}

std::int64_t Checkpointing::calls(std::int64_t stages) const {
  if (kind == Kind::none || stages == 0) return stages;
  if (kind != Kind::revolve) return 2 * stages;
  const std::int64_t c = slots_for(*this, stages), repeats = repeats_of(stages, c);
  return (repeats + 1) * stages - longest_chain(c + 1, repeats - 1);
}

Tensor checkpoint_sequential(const std::vector<PassingStage>& stages, const Tensor& x, Checkpointing policy, CallSite) {
  const auto kept = std::make_shared<const std::vector<PassingStage>>(stages);
  const std::size_t n = stages.size();
  for (std::size_t i = 0; i < n; ++i)
    if (!stages[i]) throw ValueError("[checkpoint_sequential] stage " + std::to_string(i) + " is empty");
  Passed passed;
  switch (policy.kind) {
    case Checkpointing::Kind::none: break;
    case Checkpointing::Kind::block: return run_in_segments(kept, x, n);
    case Checkpointing::Kind::sqrt:
      return run_in_segments(kept, x, static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(n)))));
    case Checkpointing::Kind::revolve:
      return n == 0 ? x : run_revolving(kept, x, passed, 0, n, slots_for(policy, static_cast<std::int64_t>(n)));
  }
  return run_plainly(kept, x, passed, 0, n);
}

Tensor checkpoint_sequential(const std::vector<Stage>& stages, const Tensor& x, Checkpointing policy, CallSite) {
  std::vector<PassingStage> passing;
  for (const Stage& stage : stages)
    passing.push_back(stage ? PassingStage([stage](const Tensor& in, Passed&) { return stage(in); }) : PassingStage());
  return checkpoint_sequential(passing, x, policy);
}

Tensor checkpoint_sequential(const std::vector<Layer*>& layers, const Tensor& x, Checkpointing policy, CallSite) {
  std::vector<Stage> stages;
  for (Layer* layer : layers)
    stages.push_back(layer ? Stage([layer](const Tensor& in) { return (*layer)(in); }) : Stage());
  return checkpoint_sequential(stages, x, policy);
}

}  // namespace poolgrad::nn
