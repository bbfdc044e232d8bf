#include "autograd/engine/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <source_location>
#include <unordered_map>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/engine/tape_record.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad {

namespace {

/// One pass over the tape below `roots`. It keeps all state of a node in its own slots, so passes may nest and run on
/// several threads.
class BackwardPass {
 public:
  /// With `targets`, captures their gradients and does not touch leaves; without, leaves accumulate.
  BackwardPass(std::vector<Edge> roots, const std::vector<Edge>* targets, BackwardOptions options)
      : roots_(std::move(roots)), targets_(targets), options_(options) {
    if (targets_ != nullptr) {
      captured_.resize(targets_->size());
      next_target_.resize(targets_->size());
      oldest_ = UINT64_MAX;
      for (std::size_t t = 0; t < targets_->size(); ++t) {
        Node* const node = (*targets_)[t].node.get();
        next_target_[t] = std::exchange(slots_[find_or_add(node)].target, t);
        oldest_ = std::min(oldest_, node->made_at());
      }
    }
    discover();
  }

  std::vector<Tensor> run(Gradients seeds) {
    for (std::size_t i = 0; i < roots_.size(); ++i)
      deliver(find_or_add(roots_[i].node.get()), roots_[i].index, std::move(seeds[i]), false);
    seeds.clear();
    try {
      drain();
    } catch (...) {
      if (!options_.retain_graph)
        for (const Slot& slot : slots_)
          if (slot.runs) slot.node->release();
      throw;
    }
    return std::move(captured_);
  }

 private:
  static constexpr std::size_t none = SIZE_MAX;

  struct Slot {
    explicit Slot(Node* owner) : node(owner) {}

    Node* node;                  // kept alive by the roots
    std::size_t first_edge = 0;  // index of its edges in slot_of_edge_ and wanted_
    std::int64_t waiting = 0;    // consumers that have not run yet
    std::size_t target = none;   // the first of its targets; the others follow in next_target_
    bool visited = false;
    bool runs = false;    // leads to a wanted node
    bool wanted = false;  // is wanted, or leads to a wanted node
    Gradients gradients;  // complete once `waiting` is 0
  };

  std::size_t find_or_add(Node* node) {
    const auto [place, added] = slot_of_.try_emplace(node, slots_.size());
    if (added) slots_.emplace_back(node);
    return place->second;
  }

  /// Depth first with an explicit stack. Counts consumers and marks the nodes that must run. Throws for a freed node
  /// before any node runs.
  void discover() {
    struct Frame {
      std::size_t slot;
      std::size_t next_edge = 0;
    };
    std::vector<Frame> stack;
    const auto enter = [&](std::size_t s) {
      if (slots_[s].visited) return;
      slots_[s].visited = true;
      slots_[s].first_edge = slot_of_edge_.size();
      const std::size_t edges = slots_[s].node->edges().size();
      slot_of_edge_.resize(slot_of_edge_.size() + edges, none);
      wanted_.resize(wanted_.size() + edges);
      stack.push_back({s});
    };
    for (const Edge& root : roots_) {
      enter(find_or_add(root.node.get()));
      while (!stack.empty()) {
        Frame& frame = stack.back();
        const std::size_t s = frame.slot;
        const std::vector<Edge>& edges = slots_[s].node->edges();
        if (frame.next_edge == edges.size()) {
          stack.pop_back();
          leave(s);
          continue;
        }
        const std::size_t i = frame.next_edge++;
        if (edges[i].node == nullptr || edges[i].node->made_at() < oldest_) continue;
        const std::size_t child = find_or_add(edges[i].node.get());
        slot_of_edge_[slots_[s].first_edge + i] = child;
        enter(child);
      }
    }
  }

  /// Every slot below `s` is complete.
  void leave(std::size_t s) {
    Slot& slot = slots_[s];
    const std::vector<Edge>& edges = slot.node->edges();
    slot.runs = targets_ == nullptr;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const std::size_t child = slot_of_edge_[slot.first_edge + i];
      if (child == none || !slots_[child].wanted) continue;
      wanted_[slot.first_edge + i] = 1;
      slot.runs = true;
    }
    slot.wanted = slot.runs || slot.target != none;
    if (!slot.runs) return;
    if (slot.node->released())
      throw Error(fmt::format("[backward] the graph was freed by an earlier backward; pass retain_graph = true: {}",
                              slot.node->name()));
    for (std::size_t i = 0; i < edges.size(); ++i)
      if (wanted_[slot.first_edge + i]) ++slots_[slot_of_edge_[slot.first_edge + i]].waiting;
  }

  void deliver(std::size_t s, int index, Tensor gradient, bool is_last) {
    if (!gradient.defined()) return;
    Slot& slot = slots_[s];
    if (slot.gradients.empty()) slot.gradients.resize(static_cast<std::size_t>(slot.node->output_count()));
    Tensor& sum = slot.gradients[static_cast<std::size_t>(index)];
    if (sum.defined() && is_half(sum.dtype()))
      accumulate_gradient(sum, exact_[{s, index}], std::move(gradient), is_last);
    else
      sum = sum.defined() ? add_gradients(std::move(sum), std::move(gradient)) : std::move(gradient);
  }

  RunningSum sum_of(const Slot& slot, std::size_t input) {
    const std::size_t child = slot_of_edge_[slot.first_edge + input];
    if (!wanted_[slot.first_edge + input] || slots_[child].gradients.empty()) return {};
    const int index = slot.node->edges()[input].index;
    Tensor& value = slots_[child].gradients[static_cast<std::size_t>(index)];
    if (!value.defined()) return {};
    return {&value, is_half(value.dtype()) ? &exact_[{child, index}] : nullptr, slots_[child].waiting == 1};
  }

  void drain() {
    using Ready = std::pair<std::uint64_t, std::size_t>;  // sequence, slot: the largest runs first
    std::priority_queue<Ready> ready;
    for (std::size_t s = 0; s < slots_.size(); ++s)
      if (slots_[s].visited && slots_[s].wanted && slots_[s].waiting == 0) ready.emplace(slots_[s].node->sequence(), s);
    while (!ready.empty()) {
      const std::size_t s = ready.top().second;
      ready.pop();
      Gradients results = process(s);
      const Slot& slot = slots_[s];
      if (!slot.runs) continue;
      const std::vector<Edge>& edges = slot.node->edges();
      for (std::size_t i = 0; i < edges.size(); ++i) {
        if (!wanted_[slot.first_edge + i]) continue;
        const std::size_t child = slot_of_edge_[slot.first_edge + i];
        const bool is_last = --slots_[child].waiting == 0;
        if (!results.empty()) deliver(child, edges[i].index, std::move(results[i]), is_last);
        if (is_last) ready.emplace(slots_[child].node->sequence(), child);
      }
    }
  }

  /// Runs hooks, captures, runs the node and releases it. Returns nothing if no gradient arrived.
  Gradients process(std::size_t s) {
    Slot& slot = slots_[s];
    Gradients gradients = std::exchange(slot.gradients, {});
    Gradients results;
    if (!exact_.empty()) exact_.erase(exact_.lower_bound({s, 0}), exact_.lower_bound({s + 1, 0}));
    if (!gradients.empty()) {
      slot.node->run_hooks(gradients);
      capture(slot, gradients);
      if (slot.runs) {
        BackwardCall call(*slot.node, std::move(gradients), wanted_.data() + slot.first_edge,
                          [this, s](int input) { return sum_of(slots_[s], static_cast<std::size_t>(input)); });
        results = slot.node->run(call);
        if (anomaly_mode_enabled()) check_gradients(*slot.node, results);
      }
    }
    if (slot.runs && !options_.retain_graph) slot.node->release();
    return results;
  }

  void capture(const Slot& slot, const Gradients& gradients) {
    for (std::size_t t = slot.target; t != none; t = next_target_[t])
      captured_[t] = gradients[static_cast<std::size_t>((*targets_)[t].index)];
  }

  const std::vector<Edge> roots_;
  const std::vector<Edge>* targets_;
  const BackwardOptions options_;
  std::uint64_t oldest_ = 0;  // skips nodes older than every target: they cannot lead to one
  std::vector<Slot> slots_;
  std::unordered_map<const Node*, std::size_t> slot_of_;
  std::vector<std::size_t> slot_of_edge_;
  std::vector<std::uint8_t> wanted_;
  std::vector<std::size_t> next_target_;  // of the same node
  std::vector<Tensor> captured_;
  std::map<std::pair<std::size_t, int>, Tensor> exact_;  // f32 sums of half types, by slot and output
};

thread_local int running_passes = 0;
thread_local std::vector<std::function<void()>> at_end;

/// One object for each running pass on this thread.
class PassGuard {
 public:
  PassGuard() { ++running_passes; }
  ~PassGuard() {
    if (--running_passes > 0) return;
    for (const std::function<void()>& callback : std::exchange(at_end, {})) callback();
  }
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;
};

/// Returns the initial gradient: `given`, or 1 for a one-element output.
Tensor seed(const char* op, std::size_t position, const Tensor& output, const Tensor& given, std::source_location at) {
  if (!given.defined()) {
    if (output.numel() != 1)
      throw ShapeError(
          fmt::format("[{}] output {} has {} elements, not one: it needs a gradient of its shape, or sum() before: {}",
                      op, position, output.numel(), describe(output)));
    return Tensor::empty(output.shape(), output.options(), at).fill(1.0);
  }
  if (TensorMeta(output).matches(given)) return given;
  const std::string text = fmt::format("[{}] the gradient is unlike output {}: gradient {}, output {}", op, position,
                                       describe(given), describe(output));
  if (given.shape() != output.shape()) throw ShapeError(text);
  if (given.dtype() != output.dtype()) throw DTypeError(text);
  throw DeviceError(text);
}

std::vector<Tensor> run_pass(const char* op, const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients,
                             const std::vector<Edge>* targets, BackwardOptions options,
                             std::source_location at = std::source_location::current()) {
  if (!gradients.empty() && gradients.size() != outputs.size())
    throw ValueError(fmt::format("[{}] {} for {}", op, plural(std::ssize(gradients), "gradient"),
                                 plural(std::ssize(outputs), "output")));
  options.retain_graph |= options.create_graph;
  const PassGuard running;
  MemoryScope scope(Category::gradient);
  GradModeGuard mode(options.create_graph);
  const AutocastScope as_saved(autocast_off);
  std::vector<Edge> roots;
  Gradients seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Edge root = gradient_edge(outputs[i]);
    if (root.node == nullptr) continue;
    seeds.push_back(seed(op, i, outputs[i], gradients.empty() ? Tensor() : gradients[i], at));
    roots.push_back(std::move(root));
  }
  if (roots.empty())
    throw Error(
        fmt::format("[{}] no output requires a gradient; call set_requires_grad() on an input and compute outside of a "
                    "NoGradGuard",
                    op));
  BackwardPass pass(std::move(roots), targets, options);
  return pass.run(std::move(seeds));
}

}  // namespace

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients, BackwardOptions options,
              CallSite) {
  run_pass("backward", outputs, gradients, nullptr, options);
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients, BackwardOptions options, bool allow_unused, CallSite) {
  std::vector<Edge> targets;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    targets.push_back(gradient_edge(inputs[i]));
    if (targets.back().node == nullptr)
      throw Error(fmt::format("[grad] input {} does not require a gradient: {}", i, describe(inputs[i])));
  }
  std::vector<Tensor> result = run_pass("grad", outputs, gradients, &targets, options);
  for (std::size_t i = 0; i < result.size(); ++i)
    if (!result[i].defined() && !allow_unused)
      throw Error(fmt::format("[grad] input {} did not contribute to the outputs; pass allow_unused = true: {}", i,
                              describe(inputs[i])));
  return result;
}

std::vector<Tensor> contributions(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                  const std::vector<Tensor>& gradients, BackwardOptions options, CallSite) {
  if (std::ranges::none_of(outputs, &Tensor::requires_grad)) return std::vector<Tensor>(inputs.size());
  return grad(outputs, inputs, gradients, options, true);
}

std::vector<Tensor> gradients_or_zeros(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                       const std::vector<Tensor>& gradients, BackwardOptions options, CallSite) {
  std::vector<Tensor> found = contributions(outputs, inputs, gradients, options);
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!found[i].defined()) found[i] = zeros_like(inputs[i]);
  return found;
}

void at_end_of_backward(std::function<void()> callback) {
  if (running_passes == 0)
    callback();
  else
    at_end.push_back(std::move(callback));
}

HookHandle register_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook) {
  if (!tensor.defined() || !tensor.requires_grad())
    throw Error(fmt::format("[register_hook] the tensor does not require a gradient: {}",
                            tensor.defined() ? describe(tensor) : "undefined"));
  if (!hook) throw ValueError(fmt::format("[register_hook] the hook is empty: {}", describe(tensor)));
  return tape_record(tensor)->add_hook(std::move(hook));
}

HookHandle register_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor&)> hook) {
  if (!leaf.defined() || !leaf.requires_grad() || !leaf.is_leaf())
    throw Error(fmt::format("[register_post_accumulate_hook] only a leaf that requires a gradient accumulates one: {}",
                            describe(leaf)));
  if (!hook) throw ValueError(fmt::format("[register_post_accumulate_hook] the hook is empty: {}", describe(leaf)));
  return tape_record(leaf)->add_post_accumulate_hook(std::move(hook));
}

namespace {

thread_local bool enabled = false;

/// Returns "nan ... at (2, 5)" for the first bad element in row-major order; "" if there is none.
std::string find_bad(const Tensor& tensor, bool negative_infinity_is_bad, const std::string& where) {
  if (!tensor.defined() || !is_floating(tensor.dtype()) || tensor.device().is_sim()) return "";
  const std::vector<double> values = tensor.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    if (std::isfinite(x) || (std::isinf(x) && x < 0 && !negative_infinity_is_bad)) continue;
    return fmt::format("{} in {} {} at {}",
                       std::isnan(x) ? "nan"
                       : x > 0       ? "inf"
                                     : "-inf",
                       where, describe(tensor), to_string(unravel(static_cast<std::int64_t>(i), tensor.shape())));
  }
  return "";
}

}  // namespace

AnomalyMode::AnomalyMode() : previous_(std::exchange(enabled, true)) {}
AnomalyMode::~AnomalyMode() { enabled = previous_; }
bool anomaly_mode_enabled() { return enabled; }

void check_outputs(const std::string& name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string found = find_bad(outputs[i], false, fmt::format("output {}", i));
    if (found.empty()) continue;
    std::vector<std::string> shapes;
    for (const Tensor& input : inputs) shapes.push_back(TensorMeta(input).describe());
    throw Error(fmt::format("[{}] forward produced {}; inputs {}", name, found, fmt::join(shapes, ", ")));
  }
}

void check_gradients(const Node& node, const Gradients& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::string found = find_bad(gradients[i], true, fmt::format("the gradient of input {}", i));
    if (found.empty()) continue;
    std::vector<std::string> shapes;
    for (const TensorMeta& input : node.inputs()) shapes.push_back(input.describe());
    throw Error(
        fmt::format("[{}] backward produced {}; forward inputs {}", node.name(), found, fmt::join(shapes, ", ")));
  }
}

}  // namespace poolgrad
