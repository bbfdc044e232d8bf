#include "autograd/memory/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/node.h"
#include "autograd/memory/checkpoint_log.h"
#include "tensor/generator.h"
#include "tensor/grad_mode.h"

namespace poolgrad {
namespace {

/// Thrown to end a second run that has supplied all needed tensors. Not a std::exception, so that error handlers of the
/// function let it pass.
struct StopRecompute {};

/// The tensor that a second run supplies for a slot of the first: packed by the surrounding policy, or plain.
struct Supplied {
  std::shared_ptr<PackedTensor> packed = {};
  Tensor tensor = {};
  std::weak_ptr<Storage> storage = {};
  std::uint64_t version = 0;

  bool is_there() const { return packed != nullptr || tensor.defined(); }
  Tensor unpack() const { return packed != nullptr ? packed->unpack() : tensor; }
};

/// The same in the graph of a second run, which no backward pass walks: only recipes may unpack it.
struct PackedSupply : PackedTensor {
  explicit PackedSupply(Supplied what) : supplied(std::move(what)) {}
  Tensor unpack() override {
    if (supplied.is_there()) return supplied.unpack();
    throw Error("[checkpoint] the second run of the function differs from the first: it takes gradients");
  }
  const Supplied supplied;
};

/// One call of a checkpointed function: the inputs of the second run, and the tensors that it supplies. Holds no lock
/// during a run, so that the function may wait for other threads. Two backward passes at once may both run it.
///
/// If the surrounding policy has a keeper, the keeper records second runs and packs the tensors that they supply, so
/// that these can be dropped like all others. It also sees the whole function as one operator. Neither applies if the
/// function itself takes gradients: then saved tensors must have the same storage each time they are unpacked.
class CheckpointedCall : public std::enable_shared_from_this<CheckpointedCall> {
 public:
  /// Saves the inputs, under the policy in force.
  CheckpointedCall(Definition function, const std::vector<Tensor>& inputs);

  std::vector<Tensor> run(const std::vector<Tensor>& inputs);
  /// Records `outputs` with the surrounding policy as those of one operator.
  void record_as_one(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs, double flops);
  /// Returns the tensor that slot `index` held in the first run.
  Tensor value(std::size_t index);
  /// Called when no node needs the slot any more.
  void let_go(std::size_t index);

 private:
  class Run;
  class FirstRun;
  class SecondRun;
  class PackedSlot;

  struct KeptInput {
    SavedTensor saved = {};               // undefined if it shares the storage of an earlier input
    std::size_t owner = 0;                // index of that earlier input
    std::weak_ptr<Storage> storage = {};  // in the first run
    Geometry geometry = {};
    bool requires_grad = false;
  };
  /// A storage that the nodes of the first run saved.
  struct Slot {
    std::size_t operation;  // the first operation that saved it
    TensorMeta meta;
    int users = 0;           // PackedSlots of the first run
    Supplied supplied = {};  // by the second run, until let_go()
  };

  void check_unwritten() const;
  std::vector<Tensor> unpack_inputs() const;
  /// Runs the function as the first time, on inputs that are leaves.
  std::vector<Tensor> run_again(const std::vector<Tensor>& inputs);
  std::vector<Slot> slots_again();
  std::vector<Tensor> outputs_again(std::vector<Tensor> inputs);
  void forget_values();

  const Definition function_;
  const Tag tag_ = current_tag();
  const std::optional<DType> autocast_ = AutocastScope::current();
  const std::shared_ptr<SavedTensorKeeper> keeper_ =
      SavedTensorPolicy::in_force() == nullptr ? nullptr : SavedTensorPolicy::in_force()->keeper();
  std::vector<KeptInput> inputs_;
  std::vector<OutsideTensor> outside_;
  std::vector<CapturedLeaf> leaves_;
  std::vector<LoggedOperation> operations_;
  RandomLog random_;
  std::atomic<bool> has_run_ = false, takes_gradients_ = false;  // takes_gradients_: the function does so itself
  std::mutex mutex_;                                             // guards the members below
  std::vector<Slot> slots_;
  bool has_values_ = false;  // a slot may have a value
};

/// Stands in for a tensor in a node of the first run.
class CheckpointedCall::PackedSlot : public PackedTensor {
 public:
  PackedSlot(std::shared_ptr<CheckpointedCall> call, std::size_t index) : call_(std::move(call)), index_(index) {}
  ~PackedSlot() override { call_->let_go(index_); }
  Tensor unpack() override { return call_->value(index_); }

 private:
  const std::shared_ptr<CheckpointedCall> call_;
  const std::size_t index_;
};

/// Both runs number the storages that nodes save, except those of captured leaves, which live on anyway. An input
/// always has a number, since it is a leaf in the second run in any case. A storage keeps its number for the whole run,
/// because the set of live nodes may differ between the runs, as with a nested checkpoint.
class CheckpointedCall::Run : public SavedTensorPolicy {
 public:
  std::shared_ptr<SavedTensorKeeper> keeper() override { return call_.keeper_; }
  /// Returns the number of nested runs on this thread.
  static int& depth() {
    thread_local int runs = 0;
    return runs;
  }

 protected:
  Run(CheckpointedCall& call, const std::vector<Tensor>& inputs) : call_(call) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) inputs_.emplace(inputs[i].storage().get(), call_.inputs_[i].owner);
    ++depth();
  }
  ~Run() override { --depth(); }
  bool has_no_number(const Tensor& tensor, const SavedUse& use) const { return use.is_leaf && !is_input(tensor); }
  std::optional<std::size_t> number_of(const Tensor& tensor) const {
    const auto place = numbers_.find(identity(tensor));
    if (place == numbers_.end()) return {};
    const auto& [storage, version, number] = place->second;
    const bool is_it =
        is_input(tensor) || (storage.lock() == tensor.storage() && version == tensor.storage()->version());
    return is_it ? std::optional(number) : std::nullopt;
  }
  void set_number(const Tensor& tensor, std::size_t number) {
    numbers_[identity(tensor)] = {tensor.storage(), tensor.storage()->version(), number};
  }

  CheckpointedCall& call_;
  std::unordered_map<const Storage*, std::size_t> inputs_;  // by storage

 private:
  struct Number {
    std::weak_ptr<Storage> storage;  // detects a reused address
    std::uint64_t version;
    std::size_t number;
  };
  bool is_input(const Tensor& tensor) const { return inputs_.contains(tensor.storage().get()); }
  const void* identity(const Tensor& tensor) const {
    const auto place = inputs_.find(tensor.storage().get());
    if (place == inputs_.end()) return tensor.storage().get();
    return &call_.inputs_[place->second];
  }

  std::unordered_map<const void*, Number> numbers_;
};

class CheckpointedCall::FirstRun : public Run {
 public:
  FirstRun(CheckpointedCall& call, const std::vector<Tensor>& inputs) : Run(call, inputs) {
    for (const auto& [storage, input] : inputs_) known_.insert(storage);
  }

  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override {
    const std::size_t number = call_.operations_.size();
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      if (const Tensor& x = call.inputs[i]; x.defined() && x.requires_grad() && x.is_leaf())
        if (!known_.contains(x.storage().get())) call_.leaves_.push_back({number, i, x.grad_record()});
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      if (call.inputs[i].defined() && known_.insert(call.inputs[i].storage().get()).second)
        call_.outside_.emplace_back(fmt::format("input {} of its operation {}, {},", i, number, call.operation),
                                    call.inputs[i]);
    for (const Tensor& output : call.outputs) known_.insert(output.storage().get());
    call_.operations_.emplace_back(call);
    return nullptr;
  }

  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) override {
    if (has_no_number(tensor, use)) return nullptr;
    const std::lock_guard lock(call_.mutex_);
    std::optional<std::size_t> number = number_of_supplied(tensor);
    if (!number) number = number_of(tensor);
    if (!number) {
      number = call_.slots_.size();
      call_.slots_.push_back({call_.operations_.size() - 1, TensorMeta(tensor)});
    }
    set_number(tensor, *number);
    ++call_.slots_[*number].users;
    return std::make_unique<PackedSlot>(call_.shared_from_this(), *number);
  }

 private:
  // A function that takes gradients in its first run has second runs before its end. A tensor that they supply takes
  // the place, and the number, of the saved one.
  std::optional<std::size_t> number_of_supplied(const Tensor& tensor) const {
    for (std::size_t i = 0; call_.has_values_ && i < call_.slots_.size(); ++i)
      if (const Tensor& value = call_.slots_[i].supplied.tensor; value.defined() && value.shares_storage_with(tensor))
        return i;
    return {};
  }

  std::unordered_set<const Storage*> known_;
};

class CheckpointedCall::SecondRun : public Run {
 public:
  enum class Purpose : std::uint8_t { slots, outputs };

  SecondRun(CheckpointedCall& call, const std::vector<Tensor>& inputs, Purpose purpose)
      : Run(call, inputs),
        is_walked_(call.keeper_ == nullptr || call.takes_gradients_ || (purpose == Purpose::slots && depth() > 1)),
        keeper_(is_walked_ || purpose == Purpose::outputs ? nullptr : call.keeper_),
        stops_(purpose == Purpose::slots) {
    // A captured view of an input still has the storage of the first run, in which both had one number.
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (auto then = call_.inputs_[i].storage.lock()) {
        inputs_.emplace(then.get(), call_.inputs_[i].owner);
        first_run_.push_back(std::move(then));
      }
    const std::lock_guard lock(call_.mutex_);
    for (const Slot& slot : call_.slots_) {
      wanted_.push_back(slot);
      wanted_.back().supplied = {};
      if (slot.users > 0) needed_ = wanted_.size();
    }
  }

  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override {
    if (operation_ == call_.operations_.size())
      fail(fmt::format("it had {} operations, and now also {}", operation_, LoggedOperation(call).describe()));
    const LoggedOperation& then = call_.operations_[operation_];
    if (!then.is(call))
      fail(fmt::format("operation {} was {}, now {}", operation_, then.describe(), LoggedOperation(call).describe()));
    for (; leaf_ < call_.leaves_.size() && call_.leaves_[leaf_].operation == operation_; ++leaf_)
      call_.leaves_[leaf_].check(call);
    ++operation_;
    return keeper_ == nullptr ? nullptr : keeper_->recorded_again(call);
  }

  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) override {
    if (has_no_number(tensor, use)) return nullptr;
    std::optional<std::size_t> number = number_of(tensor);
    if (!number) number = supply(tensor, use);
    return is_walked_ ? nullptr : std::make_unique<PackedSupply>(wanted_[*number].supplied);
  }

  bool is_complete() const { return next_ >= needed_; }
  bool is_at_end() const { return next_ == wanted_.size() && operation_ == call_.operations_.size(); }
  [[noreturn]] void fail_at_end() const {
    fail(fmt::format("it ended after {} operations, not {}", operation_, call_.operations_.size()));
  }
  std::vector<Slot> take() { return std::move(wanted_); }

 private:
  /// Supplies the next slot.
  std::size_t supply(const Tensor& tensor, const SavedUse& use) {
    const std::size_t now = operation_ - 1;
    const bool same = next_ < wanted_.size() && wanted_[next_].operation == now && wanted_[next_].meta.matches(tensor);
    if (!same)
      fail(fmt::format("operation {}, {}, did not save {} elements of {} in the first run", now, use.operation,
                       tensor.numel(), to_string(tensor.dtype())));
    set_number(tensor, next_);
    if (is_walked_ || keeper_ != nullptr) {
      Supplied& supplied = wanted_[next_].supplied;
      if (keeper_ != nullptr) supplied.packed = keeper_->pack_again(tensor);
      if (supplied.packed == nullptr) supplied.tensor = tensor;
      supplied.storage = tensor.storage();
      supplied.version = tensor.storage()->version();
    }
    if (++next_ == needed_ && stops_) throw StopRecompute();
    return next_ - 1;
  }

  [[noreturn]] static void fail(const std::string& how) {
    throw Error("[checkpoint] the second run of the function differs from the first: " + how);
  }

  const bool is_walked_;  // a backward pass walks the graph of this run
  const std::shared_ptr<SavedTensorKeeper> keeper_;
  const bool stops_;  // once all needed tensors are supplied
  std::vector<Slot> wanted_;
  std::vector<std::shared_ptr<Storage>> first_run_;  // keeps the storages whose addresses are in inputs_
  std::size_t needed_ = 0, next_ = 0, operation_ = 0, leaf_ = 0;
};

CheckpointedCall::CheckpointedCall(Definition function, const std::vector<Tensor>& inputs)
    : function_(std::move(function)) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    KeptInput kept{.owner = i};
    if (const Tensor& input = inputs[i]; input.defined()) {
      outside_.emplace_back(fmt::format("input {} of the function", i), input);
      for (kept.owner = 0; !inputs[kept.owner].defined() || !inputs[kept.owner].shares_storage_with(input);)
        ++kept.owner;  // ends at the input itself
      kept.storage = input.storage();
      kept.geometry = input.geometry();
      kept.requires_grad = input.requires_grad();
      if (kept.owner == i) kept.saved = SavedTensor(input);
    }
    inputs_.push_back(std::move(kept));
  }
  const std::string name = "checkpoint";
  SavedTensor::pack_all({name, inputs, {}, {}});
}

std::vector<Tensor> CheckpointedCall::run(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> outputs;
  {
    const FirstRun policy(*this, inputs);
    const RandomLogGuard log(random_, RandomLogGuard::records);
    outputs = function_(inputs);
  }
  has_run_ = true;
  return outputs;
}

void CheckpointedCall::record_as_one(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                     double flops) {
  if (keeper_ == nullptr || SavedTensorPolicy::in_force() == nullptr) return;
  std::vector<Tensor> made;
  std::vector<std::size_t> places;  // indices in outputs
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& output = outputs[i];
    if (!output.defined() || output.is_leaf() ||
        std::ranges::any_of(inputs, [&](const Tensor& x) { return x.defined() && x.shares_storage_with(output); }))
      continue;
    made.push_back(output);
    places.push_back(i);
  }
  if (made.empty()) return;
  const Recipe again{[call = shared_from_this(), places](const std::vector<Tensor>& x) {
    const std::vector<Tensor> all = call->outputs_again(x);
    std::vector<Tensor> found;
    for (const std::size_t place : places) found.push_back(all.at(place).detach());
    return found;
  }};
  const std::string name = "checkpoint";
  const std::shared_ptr<NodeNote> note = SavedTensorPolicy::in_force()->recorded({name, inputs, made, again, flops});
  for (const Tensor& output : made)
    if (const Edge edge = gradient_edge(output); edge.node->note() == nullptr) edge.node->set_note(note);
}

void CheckpointedCall::check_unwritten() const {
  for (const OutsideTensor& tensor : outside_) {
    const std::shared_ptr<Storage> storage = tensor.storage.lock();
    if (storage == nullptr || storage->version() == tensor.version) continue;
    throw Error(fmt::format(
        "[checkpoint] the function cannot be run again: {} {} was written in place: used at version {}, now at "
        "version {}",
        tensor.role, tensor.meta.describe(), tensor.version, storage->version()));
  }
}

std::vector<Tensor> CheckpointedCall::unpack_inputs() const {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const KeptInput& kept = inputs_[i];
    Tensor input = kept.owner == i ? kept.saved.unpack() : inputs[kept.owner].alias(kept.geometry);
    if (input.defined()) input = input.detach().set_requires_grad(kept.requires_grad);
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::vector<Tensor> CheckpointedCall::run_again(const std::vector<Tensor>& inputs) {
  const MemoryScope scope(tag_);
  const EnableGradGuard grad;
  ForbidRecompute::check("checkpoint");
  const AutocastScope as_then(autocast_);
  const RandomLogGuard replay(random_, RandomLogGuard::replays);
  return function_(inputs);
}

std::vector<Tensor> CheckpointedCall::outputs_again(std::vector<Tensor> inputs) {
  check_unwritten();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined()) inputs[i] = inputs[i].detach().set_requires_grad(inputs_[i].requires_grad);
  SecondRun policy(*this, inputs, SecondRun::Purpose::outputs);
  std::vector<Tensor> outputs = run_again(inputs);
  if (!policy.is_at_end()) policy.fail_at_end();
  return outputs;
}

auto CheckpointedCall::slots_again() -> std::vector<Slot> {
  check_unwritten();
  const std::vector<Tensor> inputs = unpack_inputs();
  SecondRun policy(*this, inputs, SecondRun::Purpose::slots);
  try {
    run_again(inputs);
  } catch (const StopRecompute&) {
    if (!policy.is_complete()) throw;  // thrown for an enclosing call
  }
  if (!policy.is_complete()) policy.fail_at_end();
  return policy.take();
}

Tensor CheckpointedCall::value(std::size_t index) {
  if (!has_run_) takes_gradients_ = true;
  Slot slot;
  {
    const std::lock_guard lock(mutex_);
    slot = slots_[index];
  }
  if (!slot.supplied.is_there()) {
    std::vector<Slot> found = slots_again();
    slot = found[index];
    {
      const std::lock_guard lock(mutex_);
      has_values_ = true;
      for (std::size_t i = 0; i < found.size(); ++i)
        if (slots_[i].users > 0 && !slots_[i].supplied.is_there()) slots_[i].supplied = found[i].supplied;
    }
    at_end_of_backward([call = weak_from_this()] {
      if (const std::shared_ptr<CheckpointedCall> alive = call.lock()) alive->forget_values();
    });
  }
  // The function wrote the tensor after it was saved, which is an error without a checkpoint too.
  if (const auto storage = slot.supplied.storage.lock();
      storage != nullptr && storage->version() != slot.supplied.version)
    throw Error(fmt::format("[checkpoint] the function wrote in place to a tensor that operation {}, {}, saved: {}",
                            slot.operation, operations_[slot.operation].name, slot.meta.describe()));
  return slot.supplied.unpack();
}

void CheckpointedCall::let_go(std::size_t index) {
  Supplied doomed;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  if (--slots_[index].users == 0) std::swap(slots_[index].supplied, doomed);
}

void CheckpointedCall::forget_values() {
  std::vector<Supplied> doomed;
  const std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) doomed.push_back(std::exchange(slot.supplied, {}));
  has_values_ = false;
}

}  // namespace

namespace {

thread_local const char* no_second_run = nullptr;  // the reason; nullptr: allowed

}  // namespace

ForbidRecompute::ForbidRecompute(const char* reason) : previous_(std::exchange(no_second_run, reason)) {}
ForbidRecompute::~ForbidRecompute() { no_second_run = previous_; }
void ForbidRecompute::check(const char* op) {
  if (no_second_run != nullptr && grad_enabled())
    throw Error(fmt::format("[{}] the function cannot be run again: {}", op, no_second_run));
}

namespace {

std::vector<Tensor> checkpointed(const Definition& function, const std::vector<Tensor>& inputs, bool is_an_operator) {
  if (!grad_enabled()) return function(inputs);
  ForbidRecompute::check("checkpoint");
  const auto call = std::make_shared<CheckpointedCall>(function, inputs);
  const double flops_before = SavedTensor::flops_recorded();
  std::vector<Tensor> outputs = call->run(inputs);
  if (is_an_operator) call->record_as_one(inputs, outputs, SavedTensor::flops_recorded() - flops_before);
  return outputs;
}

}  // namespace

std::vector<Tensor> checkpoint_part(const Definition& function, const std::vector<Tensor>& inputs) {
  return checkpointed(function, inputs, false);
}

std::vector<Tensor> checkpoint(const Definition& function, const std::vector<Tensor>& inputs, CallSite) {
  return checkpointed(function, inputs, true);
}

Tensor checkpoint(const std::function<Tensor(const Tensor&)>& function, const Tensor& input, CallSite) {
  return checkpoint([function](const std::vector<Tensor>& x) { return std::vector<Tensor>{function(x[0])}; },
                    std::vector<Tensor>{input})[0];
}

}  // namespace poolgrad
