#include "nn/chunked.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/function.h"
#include "autograd/engine/tape_record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "tensor/generator.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

using State = LanguageModel::State;

/// A sequence in chunks. Each chunk updates the state that the chunk before it left.
struct Chunks {
  LanguageModel& model;
  ChunkedOptions options;
  RandomLog& numbers;  // of the whole sequence; every chunk draws its part of the same ranges
  Tensor tokens, targets;

  std::int64_t length() const { return tokens.size(1); }
  std::int64_t count() const { return std::max<std::int64_t>(1, (length() - 1) / options.chunk + 1); }
  std::int64_t end(std::int64_t c) const { return std::min(length(), (c + 1) * options.chunk); }
  Tensor part(const Tensor& x, std::int64_t c) const { return slice(x, 1, c * options.chunk, end(c)); }

  Tensor loss(std::int64_t c, State& state, RandomLogGuard::Mode mode = RandomLogGuard::replays) const {
    return drawing(mode, [&] { return model.loss(part(tokens, c), part(targets, c), true, &state); });
  }
  State after(std::int64_t c, State state) const {
    drawing(RandomLogGuard::replays, [&] { return model.hidden(part(tokens, c), &state); });
    return state;
  }

 private:
  /// Calls run(). Throws Error unless it draws every range of the sequence.
  template <class F>
  Tensor drawing(RandomLogGuard::Mode mode, const F& run) const {
    RandomLog drawn;
    const RandomLogGuard of_sequence(numbers, mode), of_chunk(drawn, RandomLogGuard::records);
    Tensor result = run();
    if (drawn.size() != numbers.size())
      throw Error("[chunked_loss] a chunk took random numbers " + std::to_string(drawn.size()) +
                  " times, and the first one " + std::to_string(numbers.size()) +
                  " times: a model must stay in train() or in eval() until its backward pass is over");
    return result;
  }
};

/// Accumulates the gradients of the backward pass.
class ChunkedGradients {
 public:
  ChunkedGradients(const Chunks& chunks, const FunctionContext& context, const Tensor& loss_gradient)
      : chunks_(chunks), loss_gradient_(loss_gradient) {
    const std::vector<Tensor> parameters = chunks.model.parameters();
    sums_.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (context.needs(static_cast<int>(i))) {
        wanted_.push_back(parameters[i]);
        place_.push_back(i);
      }
  }

  /// Runs chunk c again from its first state, and its backward pass. Chunks come in reverse order.
  void add(std::int64_t c, State state) {
    const std::vector<Tensor> before = leaves_of(state);
    std::vector<Tensor> inputs = wanted_, outputs, seeds{loss_gradient_};
    inputs.insert(inputs.end(), before.begin(), before.end());
    {
      const EnableGradGuard recording;
      outputs.push_back(chunks_.loss(c, state));
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
        if (leaf != before.end()) {  // the state passes the tensor on: nothing to run
          carried[static_cast<std::size_t>(leaf - before.begin())] = gradient;
        } else {
          outputs.push_back(tensor);
          seeds.push_back(to(gradient, tensor.dtype()));
        }
      }
    state.clear();
    std::vector<Tensor> found = grad(outputs, inputs, seeds, {}, true);
    for (std::size_t i = 0; i < place_.size(); ++i)
      if (found[i].defined()) sums_[place_[i]].add(std::exchange(found[i], {}));
    for (std::size_t i = 0; i < before.size(); ++i)
      if (Tensor& gradient = found[place_.size() + i]; gradient.defined())
        accumulate(carried[i], to(std::exchange(gradient, {}), compute_dtype(before[i].dtype())));
    carried_ = std::move(carried);
  }

  Gradients take() {
    Gradients result;
    for (const GradientSum& sum : sums_) result.push_back(sum.value());
    sums_.clear();
    return result;
  }

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

  const Chunks& chunks_;
  Tensor loss_gradient_;
  std::vector<Tensor> wanted_;      // parameters
  std::vector<std::size_t> place_;  // indices in the list of all parameters
  std::vector<GradientSum> sums_;
  std::vector<Tensor> carried_;  // gradients of the state after the next chunk, in the compute dtype
};

/// The parameters are its operands. Saves them, to detect writes, then tokens and targets, then the tensors of the
/// states.
class ChunkedLoss : public Function {
 public:
  ChunkedLoss(LanguageModel& model, const Tensor& tokens, const Tensor& targets, const ChunkedOptions& options)
      : model_(model), tokens_(tokens), targets_(targets), options_(options) {}

  Tensor forward(FunctionContext& context, const std::vector<Tensor>& parameters) override {
    const Chunks chunks{model_, options_, numbers_, std::exchange(tokens_, {}), std::exchange(targets_, {})};
    bool differentiable = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      context.save(parameters[i]);
      parameters_.push_back(parameters[i].storage());
      differentiable |= context.needs(static_cast<int>(i));
    }
    context.save(chunks.tokens);
    context.save(chunks.targets);
    Tensor total, last;
    State state = model_.new_state(chunks.length());
    for (std::int64_t c = 0; c < chunks.count(); ++c) {
      if (differentiable && c % options_.store_every == 0) save(context, state);
      last = chunks.loss(c, state, c == 0 ? RandomLogGuard::records : RandomLogGuard::replays);
      const Tensor sum = to(last, DType::f64);
      total = total.defined() ? total + sum : sum;
    }
    return to(total, last.dtype());
  }

  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    if (grad_enabled()) throw Error("[chunked_loss] has no second derivative");
    check_parameters();
    const AutocastScope as_then(autocast_);
    int next = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) context.saved(next++);
    const Tensor tokens = context.saved(next++), targets = context.saved(next++);
    RandomLog numbers = numbers_;
    const Chunks chunks{model_, options_, numbers, tokens, targets};
    ChunkedGradients gradients(chunks, context, gradient);
    for (auto group = static_cast<std::int64_t>(stored_.size()); group-- > 0;) {
      const std::int64_t first = group * options_.store_every;
      const std::int64_t end = std::min(chunks.count(), first + options_.store_every);
      std::vector<State> before{restored(context, stored_[static_cast<std::size_t>(group)], next)};
      for (std::int64_t c = first; c + 1 < end; ++c) before.push_back(chunks.after(c, before.back()));
      for (std::int64_t c = end; c-- > first; before.pop_back()) gradients.add(c, std::move(before.back()));
    }
    return gradients.take();
  }

 private:
  struct Stored {
    State state;  // with undefined tensors
    int first;    // index in the saved tensors, counted from the first tensor of a state
  };

  void save(FunctionContext& context, State state) {
    const int first = state_tensors_;
    for (SequenceState& one : state)
      for (Tensor& tensor : one.tensors) {
        context.save(std::exchange(tensor, {}));
        ++state_tensors_;
      }
    stored_.push_back({std::move(state), first});
  }
  static State restored(const FunctionContext& context, const Stored& stored, int first) {
    State state = stored.state;
    int next = first + stored.first;
    for (SequenceState& one : state)
      for (Tensor& tensor : one.tensors) tensor = context.saved(next++);
    return state;
  }
  /// The backward pass runs chunks again. It must use the parameters of the forward pass.
  void check_parameters() const {
    {
      const EnableGradGuard as_when_recorded;
      ForbidRecompute::check("chunked_loss");
    }
    const NamedTensors now = model_.named_parameters();
    if (now.size() != parameters_.size())
      throw Error("[chunked_loss] the model had " + std::to_string(parameters_.size()) +
                  " parameters in the forward pass, and now has " + std::to_string(now.size()));
    for (std::size_t i = 0; i < now.size(); ++i)
      if (parameters_[i].lock() != now[i].second.storage())
        throw Error("[chunked_loss] a parameter is another tensor than in the forward pass: " + now[i].first + " " +
                    describe(now[i].second));
  }

  LanguageModel& model_;
  Tensor tokens_, targets_;  // until forward() has run
  ChunkedOptions options_;
  std::optional<DType> autocast_ = AutocastScope::current();
  RandomLog numbers_;
  std::vector<std::weak_ptr<Storage>> parameters_;  // as of the forward pass
  std::vector<Stored> stored_;
  int state_tensors_ = 0;
};

}  // namespace

Tensor chunked_loss(LanguageModel& model, const Tensor& tokens, const Tensor& targets, const ChunkedOptions& options,
                    CallSite) {
  constexpr const char* op = "chunked_loss";
  const Operands operands{{"tokens", tokens}, {"targets", targets}};
  if (tokens.dim() != 2 || tokens.shape() != targets.shape())
    fail<ShapeError>(op, "tokens and targets must be (B, T)", operands);
  if (options.chunk < 1 || options.store_every < 1)
    fail<ValueError>(op,
                     "chunk and store_every must be at least 1, but are " + std::to_string(options.chunk) + " and " +
                         std::to_string(options.store_every),
                     operands);
  ForbidRecompute::check(op);
  const MemoryScope scope("chunked", Category::activation);
  return apply<ChunkedLoss>(op, model.parameters(), model, tokens, targets, options);
}

}  // namespace poolgrad::nn
