#include "autograd/engine/tape_record.h"

#include <fmt/format.h>

#include <utility>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/record.h"
#include "autograd/operators/views.h"
#include "tensor/grad_mode.h"

namespace poolgrad {

namespace {

/// The end of the tape: passes the complete gradient of a leaf to its record. Does not keep the record alive, because
/// with create_graph its gradient leads back here. Drops the gradient of a destroyed leaf.
class AccumulateGrad final : public Node {
 public:
  static std::shared_ptr<Node> make(std::weak_ptr<TapeRecord> record, std::shared_ptr<Hooks> hooks) {
    auto* node = new AccumulateGrad(std::move(record));
    node->hooks_ = std::move(hooks);
    return own(node);
  }

  Gradients run(BackwardCall& call) override {
    if (const std::shared_ptr<TapeRecord> record = record_.lock()) {
      record->accumulate(call.take_gradient(), *this);
      record->run_post_accumulate_hooks();
    }
    return {};
  }
  void release() override {}
  bool released() const override { return false; }

 private:
  explicit AccumulateGrad(std::weak_ptr<TapeRecord> record) : Node("leaf", leaf_priority), record_(std::move(record)) {}

  std::weak_ptr<TapeRecord> record_;
};

/// Returns whether `tensor` keeps no more bytes alive than its elements.
bool owns_whole_storage(const Tensor& tensor) { return tensor.storage()->bytes() <= bytes_of(tensor); }

Tensor differentiable_copy(const Tensor& tensor) {
  Tensor out = tensor.copy();
  if (wants_gradient({tensor}))
    record("clone", {tensor}, {out}, [](const BackwardCall& call) -> Gradients { return {call.gradient()}; });
  return out;
}

}  // namespace

void TapeRecord::set_requires_grad(bool value) {
  if (!is_leaf() && !value)
    throw Error(
        fmt::format("[set_requires_grad] only a leaf can stop requiring a gradient; this is an output of {}; "
                    "use detach()",
                    made_by()));
  if (is_leaf()) requires_grad_ = value;
}

Tensor TapeRecord::grad() const {
  std::lock_guard lock(mutex_);
  return grad_.value();
}

void TapeRecord::set_grad(const Tensor& grad) {
  GradientSum sum;  // the old value is destroyed after unlocking, since it may hold a graph
  sum.reset(grad);
  std::lock_guard lock(mutex_);
  std::swap(grad_, sum);
}

void TapeRecord::backward(const Tensor& self, const Tensor& gradient, bool retain_graph, bool create_graph) {
  poolgrad::backward({self}, {gradient}, {.retain_graph = retain_graph, .create_graph = create_graph});
}

Edge TapeRecord::edge() {
  if (!is_leaf()) return made_by_;
  if (!requires_grad_) return {};
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> node = accumulate_.lock();
  if (node == nullptr) {
    if (leaf_hooks_ == nullptr) leaf_hooks_ = std::make_shared<Hooks>();  // shared with the node
    node = AccumulateGrad::make(weak_from_this(), leaf_hooks_);
    accumulate_ = node;
  }
  return {std::move(node), 0};
}

void TapeRecord::leave_graphs() {
  std::lock_guard lock(mutex_);
  accumulate_.reset();
}

void TapeRecord::accumulate(Tensor gradient, const Node& node) {
  std::lock_guard lock(mutex_);
  if (accumulate_.lock().get() != &node)
    throw Error("[backward] a leaf was moved or cast after the forward pass, so its gradient no longer fits: " +
                describe(gradient));
  const Tensor& before = grad_.value();
  if (before.defined() && !TensorMeta(before).matches(gradient))
    throw ShapeError(
        fmt::format("[backward] the new gradient of a leaf does not match its accumulated one: old {}, new {}",
                    describe(before), describe(gradient)));
  if (!before.defined() && !(is_reusable(gradient) && owns_whole_storage(gradient)))
    gradient = differentiable_copy(gradient);
  grad_.add(std::move(gradient), false, true);
}

HookHandle TapeRecord::add_hook(std::function<Tensor(const Tensor&)> hook) {
  const auto index = static_cast<std::size_t>(made_by_.index);
  auto adapted = [index, hook = std::move(hook)](Gradients& gradients) {
    if (!gradients[index].defined()) return;
    const TensorMeta meta(gradients[index]);  // equal to the tensor's, as checked by its node
    Tensor replacement = hook(gradients[index]);
    if (!replacement.defined()) return;
    if (!meta.matches(replacement))
      throw ShapeError(
          fmt::format("[register_hook] the hook returned a gradient unlike its tensor: gradient {}, tensor {}",
                      poolgrad::describe(replacement), meta.describe()));
    gradients[index] = std::move(replacement);
  };
  if (!is_leaf()) return made_by_.node->add_hook(std::move(adapted));
  std::lock_guard lock(mutex_);
  if (leaf_hooks_ == nullptr) leaf_hooks_ = std::make_shared<Hooks>();
  const std::uint64_t id = leaf_hooks_->add(std::move(adapted));
  return {leaf_hooks_, id};
}

HookHandle TapeRecord::add_post_accumulate_hook(std::function<void(const Tensor&)> hook) {
  std::lock_guard lock(mutex_);
  if (post_accumulate_hooks_ == nullptr) post_accumulate_hooks_ = std::make_shared<Hooks>();
  const std::uint64_t id =
      post_accumulate_hooks_->add([hook = std::move(hook)](const Gradients& gradients) { hook(gradients[0]); });
  return {post_accumulate_hooks_, id};
}

void TapeRecord::run_post_accumulate_hooks() {
  std::shared_ptr<Hooks> hooks;
  {
    std::lock_guard lock(mutex_);
    hooks = post_accumulate_hooks_;
  }
  if (hooks == nullptr) return;
  Gradients accumulated{grad()};
  hooks->run(accumulated);
}

TapeRecord* tape_record(const Tensor& tensor) {
  return tensor.defined() ? static_cast<TapeRecord*>(tensor.grad_record().get()) : nullptr;
}

Edge gradient_edge(const Tensor& tensor) {
  TapeRecord* record = tape_record(tensor);
  return record == nullptr ? Edge{} : record->edge();
}

namespace {

template <class Inputs>
bool any_wants_gradient(const Inputs& inputs) {
  if (!grad_enabled()) return false;
  for (const Tensor& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}

}  // namespace

bool wants_gradient(std::initializer_list<std::reference_wrapper<const Tensor>> inputs) {
  return any_wants_gradient(inputs);
}
bool wants_gradient(std::span<const Tensor> inputs) { return any_wants_gradient(inputs); }

void record(std::string name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            BackwardFunction backward) {
  record(std::move(name), inputs, outputs, Recipe{}, std::move(backward));
}

void record(std::string name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            const Recipe& recipe, BackwardFunction backward) {
  if (anomaly_mode_enabled()) check_outputs(name, inputs, outputs);
  std::shared_ptr<NodeNote> note = SavedTensor::pack_all({name, inputs, outputs, recipe});
  const std::shared_ptr<Node> node =
      Node::make(std::move(name), inputs, static_cast<int>(outputs.size()), std::move(backward));
  node->set_note(std::move(note));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    Tensor output = outputs[i];  // a handle to the tensor that owns the record
    output.set_grad_record(std::make_shared<TapeRecord>(Edge{node, static_cast<int>(i)}));
  }
}

Gradients differentiable_gradients(const Definition& definition, const std::vector<Tensor>& inputs,
                                   const Gradients& gradients) {
  const bool create_graph = grad_enabled();
  std::vector<Tensor> seen = inputs, wanted;
  std::vector<std::size_t> positions;
  Gradients result(inputs.size());
  std::vector<Tensor> outputs, weights;
  {
    EnableGradGuard guard;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
      // Uses a view of each input. The derivative is by the operator's argument alone, even if one argument was
      // computed from another. On the tape the view leads back to the input.
      seen[i] = create_graph ? expand(inputs[i], inputs[i].shape()) : inputs[i].detach().set_requires_grad();
      wanted.push_back(seen[i]);
      positions.push_back(i);
    }
    if (wanted.empty()) return result;
    const std::vector<Tensor> values = definition(seen);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!gradients[i].defined()) continue;
      outputs.push_back(values[i]);
      weights.push_back(gradients[i]);
    }
  }
  const std::vector<Tensor> found =
      contributions(outputs, wanted, weights, {.retain_graph = create_graph, .create_graph = create_graph});
  for (std::size_t i = 0; i < positions.size(); ++i) result[positions[i]] = found[i];
  return result;
}

}  // namespace poolgrad

void poolgrad_make_leaf_record(std::shared_ptr<poolgrad::GradRecord>& record) {
  record = std::make_shared<poolgrad::TapeRecord>();
}
