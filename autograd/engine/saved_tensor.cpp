#include "autograd/engine/saved_tensor.h"

#include <fmt/format.h>

#include <utility>

#include "allocator/error.h"
#include "autograd/engine/tape_record.h"
#include "tensor/grad_mode.h"

namespace poolgrad {
namespace {

thread_local SavedTensorPolicy* current_policy = nullptr;
constexpr int not_an_output = -1;

}  // namespace

SavedTensorPolicy::SavedTensorPolicy() : previous_(std::exchange(current_policy, this)) {}
SavedTensorPolicy::~SavedTensorPolicy() { current_policy = previous_; }

struct SavedTensor::State {
  Tensor data;                           // undefined if packed
  std::unique_ptr<PackedTensor> packed;  // what a policy made of it
  std::shared_ptr<GradRecord> record;    // leads where the gradient goes; none for an output, nor where none is wanted
  std::uint64_t version = 0;
  int output_index = not_an_output;
};

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
  // Never the tensor itself: what it will have as .grad() may lead to this very node.
  if (output_index == not_an_output)
    if (Edge edge = gradient_edge(tensor); edge.node != nullptr)
      state->record = std::make_shared<TapeRecord>(std::move(edge));
  if (current_policy != nullptr) state->packed = current_policy->pack(tensor);
  if (state->packed == nullptr) {
    state->data = tensor.detach();
    state->data.set_grad_record(state->record);
    state->version = tensor.storage()->version();
  }
  return state;
}

Tensor SavedTensor::unpack() const {
  if (state_ == nullptr) return {};
  Tensor tensor = state_->data;
  if (state_->packed != nullptr) {
    tensor = state_->packed->unpack().detach();
    tensor.set_grad_record(state_->record);
  } else if (tensor.storage()->version() != state_->version) {
    throw Error(fmt::format("[{}] a saved tensor {} was written in place: saved at version {}, now at version {}",
                            Node::current() == nullptr ? "saved_tensor" : Node::current()->name(), describe(tensor),
                            state_->version, tensor.storage()->version()));
  }
  if (state_->output_index != not_an_output && grad_enabled() && Node::current() != nullptr) {
    tensor = tensor.detach();
    tensor.set_grad_record(
        std::make_shared<TapeRecord>(Edge{Node::current()->shared_from_this(), state_->output_index}));
  }
  return tensor;
}

}  // namespace poolgrad
