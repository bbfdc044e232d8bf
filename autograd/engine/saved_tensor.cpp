#include "autograd/engine/saved_tensor.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/tape_record.h"
#include "tensor/grad_mode.h"

namespace poolgrad {
namespace {

thread_local SavedTensorPolicy* current_policy = nullptr;
thread_local double flops_under_policies = 0;
constexpr int not_an_output = -1;

}  // namespace

/// A policy's decision about a storage.
struct SavedTensorPolicy::Kept {
  std::unique_ptr<PackedTensor> packed;
  std::weak_ptr<Storage> storage;  // weak: a destroyed storage cannot be written
  std::uint64_t version;
};

struct SavedTensor::State {
  /// A view's part of a packed storage.
  struct Part {
    Geometry geometry;
    TensorMeta meta;
  };

  Tensor data;                                    // undefined if packed
  std::unique_ptr<Part> part;                     // nullptr unless packed
  std::shared_ptr<SavedTensorPolicy::Kept> kept;  // nullptr without a policy
  std::shared_ptr<GradRecord> record;             // the gradient's destination; null for an output or without gradient
  std::uint64_t version = 0;
  int output_index = not_an_output;
  bool is_leaf = false;

  /// Returns the tensors saved on this thread under a policy that no node owns yet.
  static std::vector<std::weak_ptr<State>>& waiting() {
    thread_local std::vector<std::weak_ptr<State>> states;
    return states;
  }
};

SavedTensorPolicy::SavedTensorPolicy() : previous_(std::exchange(current_policy, this)) {}
SavedTensorPolicy::~SavedTensorPolicy() {
  SavedTensorPolicy** link = &current_policy;  // may not be this policy: policies can end in any order
  while (*link != nullptr && *link != this) link = &(*link)->previous_;
  if (*link == this) *link = previous_;
}

SavedTensorPolicy* SavedTensorPolicy::in_force() { return current_policy; }

SavedTensor::SavedTensor(const Tensor& tensor) : state_(keep(tensor, not_an_output)) {}

SavedTensor SavedTensor::output(const Tensor& tensor, int index) {
  SavedTensor saved;
  saved.state_ = keep(tensor, index);
  return saved;
}

std::shared_ptr<SavedTensor::State> SavedTensor::keep(const Tensor& tensor, int output_index) {
  if (!tensor.defined()) return nullptr;
  auto state = std::make_shared<State>();
  state->output_index = output_index;
  // Does not keep the tensor itself: its later .grad() may lead to this node.
  if (output_index == not_an_output)
    if (Edge edge = gradient_edge(tensor); edge.node != nullptr)
      state->record = std::make_shared<TapeRecord>(std::move(edge));
  state->data = tensor.detach();
  state->data.set_grad_record(state->record);
  state->version = tensor.storage()->version();
  if (current_policy != nullptr) {
    state->is_leaf = tensor.requires_grad() && tensor.is_leaf();
    State::waiting().push_back(state);
  }
  return state;
}

std::shared_ptr<NodeNote> SavedTensor::pack_all(const RecordedCall& call) {
  const std::vector<std::weak_ptr<State>> waiting = std::exchange(State::waiting(), {});
  if (current_policy == nullptr) return nullptr;
  const double flops = call.recipe.flops ? call.recipe.flops() : 0.0;
  flops_under_policies += flops;
  std::shared_ptr<NodeNote> note =
      current_policy->recorded({call.operation, call.inputs, call.outputs, call.recipe, flops});
  for (const std::weak_ptr<State>& one : waiting) {
    const std::shared_ptr<State> state = one.lock();
    if (state == nullptr) continue;
    const std::shared_ptr<Storage>& storage = state->data.storage();
    state->kept = current_policy->kept_.find(storage, state->version);
    if (state->kept == nullptr) {
      state->kept = std::make_shared<SavedTensorPolicy::Kept>(
          current_policy->pack(whole_storage(state->data), {call.operation, state->output_index, state->is_leaf}),
          storage, state->version);
      current_policy->kept_.add(storage, state->kept);
    }
    if (state->kept->packed == nullptr) continue;
    state->part = std::make_unique<State::Part>(state->data.geometry(), TensorMeta(state->data));
    state->data = {};
  }
  return note;
}

double SavedTensor::flops_recorded() { return flops_under_policies; }

Tensor SavedTensor::unpack() const {
  if (state_ == nullptr) return {};
  Tensor tensor = state_->data;
  const std::shared_ptr<Storage> storage = tensor.defined() ? tensor.storage() : state_->kept->storage.lock();
  if (storage != nullptr && storage->version() != state_->version)
    throw Error(fmt::format("[{}] a saved tensor {} was written in place: saved at version {}, now at version {}",
                            Node::current() == nullptr ? "saved_tensor" : Node::current()->name(),
                            tensor.defined() ? describe(tensor) : state_->part->meta.describe(), state_->version,
                            storage->version()));
  if (!tensor.defined()) {
    tensor = state_->kept->packed->unpack().alias(state_->part->geometry);
    tensor.set_grad_record(state_->record);
  }
  if (state_->output_index != not_an_output && grad_enabled() && Node::current() != nullptr) {
    tensor = tensor.detach();
    tensor.set_grad_record(
        std::make_shared<TapeRecord>(Edge{Node::current()->shared_from_this(), state_->output_index}));
  }
  return tensor;
}

}  // namespace poolgrad
