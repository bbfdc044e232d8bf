#include "nn/chunked.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/record.h"
#include "autograd/engine/tape_record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "tensor/generator.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

using State = LanguageModel::State;

/// A state as the graph keeps it.
class SavedState {
 public:
  explicit SavedState(const State& state) : state_(state) {
    for (SequenceState& one : state_)
      for (Tensor& tensor : one.tensors) saved_.emplace_back(std::exchange(tensor, {}));
  }
  State unpack() const {
    State result = state_;
    auto next = saved_.begin();
    for (SequenceState& one : result)
      for (Tensor& tensor : one.tensors) tensor = (next++)->unpack();
    return result;
  }

 private:
  State state_;  // with undefined tensors
  std::vector<SavedTensor> saved_;
};

/// A sequence and its chunks.
struct ChunkedSequence {
  LanguageModel* model;
  ChunkedOptions options;
  Tensor tokens, targets;
  mutable RandomLog numbers = {};  // of the whole sequence: every chunk draws its part of the same ranges

  std::int64_t length() const { return tokens.size(1); }
  std::int64_t count() const { return std::max<std::int64_t>(1, (length() + options.chunk - 1) / options.chunk); }
  Tensor part(const Tensor& x, std::int64_t c) const {
    return slice(x, 1, c * options.chunk, std::min(length(), (c + 1) * options.chunk));
  }
  /// Of chunk c, which begins with `state` and leaves it as the next one finds it.
  Tensor loss(std::int64_t c, State& state, RandomLogGuard::Mode mode = RandomLogGuard::replays) const {
    const RandomLogGuard guard(numbers, mode);
    return model->loss(part(tokens, c), part(targets, c), true, &state);
  }
  /// What chunk c leaves, with grad mode off.
  State after(std::int64_t c, State state) const {
    const RandomLogGuard guard(numbers, RandomLogGuard::replays);
    model->hidden(part(tokens, c), &state);
    return state;
  }
};

/// The sums that the backward pass builds up.
class ChunkedGradients {
 public:
  ChunkedGradients(const ChunkedSequence& sequence, const BackwardCall& call, std::vector<Tensor> parameters)
      : sequence_(sequence), loss_gradient_(call.gradient()), sums_(parameters.size()) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (call.needs(static_cast<int>(i))) {
        wanted_.push_back(parameters[i]);
        place_.push_back(i);
      }
  }

  /// Runs chunk c from the state that it began with; chunks come in reverse order.
  void add(std::int64_t c, State state) {
    const std::vector<Tensor> before = leaves_of(state);
    std::vector<Tensor> inputs = wanted_, outputs, seeds;
    inputs.insert(inputs.end(), before.begin(), before.end());
    {
      const EnableGradGuard recording;
      outputs.push_back(sequence_.loss(c, state));
      seeds.push_back(loss_gradient_);
    }
    std::vector<Tensor> carried(before.size());
    std::size_t next = 0;
    for (SequenceState& one : state)
      for (const Tensor& tensor : one.tensors) {
        if (!is_floating(tensor.dtype()) || next == carried_.size()) continue;
        const Tensor gradient = std::exchange(carried_[next++], {});
        if (!gradient.defined() || !tensor.requires_grad()) continue;
        const auto same = [&](const Tensor& leaf) { return leaf.is_same(tensor); };
        const auto leaf = std::find_if(before.begin(), before.end(), same);
        if (leaf != before.end()) {  // handed on: nothing to run
          carried[static_cast<std::size_t>(leaf - before.begin())] = gradient;
        } else {
          outputs.push_back(tensor);
          seeds.push_back(to(gradient, tensor.dtype()));
        }
      }
    state.clear();
    std::vector<Tensor> found = grad(outputs, inputs, seeds, {}, true);
    for (std::size_t i = 0; i < place_.size(); ++i) accumulate(sums_[place_[i]], std::move(found[i]));
    for (std::size_t i = 0; i < before.size(); ++i)
      if (Tensor& gradient = found[place_.size() + i]; gradient.defined())
        accumulate(carried[i], to(std::exchange(gradient, {}), compute_dtype(before[i].dtype())));
    carried_ = std::move(carried);
  }

  Gradients take() { return std::move(sums_); }

 private:
  /// Makes the floating tensors of a state leaves, and returns them.
  static std::vector<Tensor> leaves_of(State& state) {
    std::vector<Tensor> leaves;
    for (SequenceState& one : state)
      for (Tensor& tensor : one.tensors)
        if (is_floating(tensor.dtype())) leaves.push_back(tensor = tensor.detach().set_requires_grad());
    return leaves;
  }
  static void accumulate(Tensor& sum, Tensor gradient) {
    if (gradient.defined()) sum = sum.defined() ? add_gradients(std::move(sum), std::move(gradient)) : gradient;
  }

  const ChunkedSequence& sequence_;
  Tensor loss_gradient_;
  std::vector<Tensor> wanted_;      // parameters
  std::vector<std::size_t> place_;  // among all of them
  Gradients sums_;
  std::vector<Tensor> carried_;  // for the state behind the next chunk, in the compute dtype
};

void check_chunked(const Tensor& tokens, const Tensor& targets, const ChunkedOptions& options) {
  constexpr const char* op = "chunked_loss";
  const Operands operands{{"tokens", tokens}, {"targets", targets}};
  if (tokens.rank() != 2 || tokens.shape() != targets.shape())
    fail<ShapeError>(op, "tokens and targets must be (B, T)", operands);
  if (options.chunk < 1 || options.store_every < 1)
    fail<ValueError>(op,
                     "chunk and store_every must be at least 1, but are " + std::to_string(options.chunk) + " and " +
                         std::to_string(options.store_every),
                     operands);
}

void check_continued(const State& state, std::int64_t seen) {
  for (std::size_t i = 0; i < state.size(); ++i)
    if (state[i].length != seen)
      throw ValueError("[chunked_loss] the mixer of block " + std::to_string(i) + " does not continue sequences: of " +
                       std::to_string(seen) + " positions it has seen " + std::to_string(state[i].length));
}

}  // namespace

Tensor chunked_loss(LanguageModel& model, const Tensor& tokens, const Tensor& targets, const ChunkedOptions& options,
                    CallSite) {
  check_chunked(tokens, targets, options);
  const MemoryScope scope("chunked", Category::activation);
  const std::vector<Tensor> parameters = model.parameters();
  const bool differentiable = wants_gradient(parameters);
  ChunkedSequence sequence{&model, options, tokens, targets};

  std::vector<State> stored;
  Tensor total, last;
  {
    const NoGradGuard no_grad;
    State state = model.new_state(sequence.length());
    for (std::int64_t c = 0; c < sequence.count(); ++c) {
      if (differentiable && c % options.store_every == 0) stored.push_back(state);
      last = sequence.loss(c, state, c == 0 ? RandomLogGuard::records : RandomLogGuard::replays);
      check_continued(state, std::min(sequence.length(), (c + 1) * options.chunk));
      const Tensor sum = to(last, DType::f64);
      total = total.defined() ? total + sum : sum;
    }
    total = to(total, last.dtype());
  }
  if (!differentiable) return total;

  const std::vector<SavedTensor> saved_parameters(parameters.begin(), parameters.end());
  const std::vector<SavedState> states(stored.begin(), stored.end());
  const SavedTensor saved_tokens(tokens), saved_targets(targets);
  stored.clear();
  sequence.tokens = sequence.targets = {};
  record("chunked_loss", parameters, {total},
         [=, whole = sequence](const BackwardCall& call) -> Gradients {
           if (grad_enabled()) throw Error("[chunked_loss] has no second derivative");
           ChunkedSequence again = whole;
           again.tokens = saved_tokens.unpack();
           again.targets = saved_targets.unpack();
           std::vector<Tensor> unwritten;
           for (const SavedTensor& parameter : saved_parameters) unwritten.push_back(parameter.unpack());
           ChunkedGradients gradients(again, call, again.model->parameters());
           const std::int64_t every = again.options.store_every;
           for (auto group = static_cast<std::int64_t>(states.size()); group-- > 0;) {
             const std::int64_t first = group * every, end = std::min(again.count(), first + every);
             std::vector<State> before{states[static_cast<std::size_t>(group)].unpack()};
             for (std::int64_t c = first; c + 1 < end; ++c) before.push_back(again.after(c, before.back()));
             for (std::int64_t c = end; c-- > first; before.pop_back()) gradients.add(c, std::move(before.back()));
           }
           return gradients.take();
         });
  return total;
}

}  // namespace poolgrad::nn
