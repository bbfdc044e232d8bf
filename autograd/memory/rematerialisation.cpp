#include "autograd/memory/rematerialisation.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/engine/engine.h"
#include "autograd/memory/offload.h"
#include "autograd/memory/recorded_result.h"
#include "kernels/cost.h"
#include "tensor/grad_mode.h"

namespace poolgrad {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Prices of computation by a model of the device, not by a clock: the same program always drops the same tensors.
kernels::Roofline speed_of(Device device) {
  if (device.type == DeviceType::cuda) return {.launch = 0, .bytes = 2000, .operations = 200'000};
  return {.launch = 0, .bytes = 8, .operations = 40};
}

}  // namespace

class Rematerialisation::Results : public ReclaimClient,
                                   public SavedTensorKeeper,
                                   public std::enable_shared_from_this<Results> {
 public:
  explicit Results(const RematerialisationOptions& options)
      : options_(options), file_(options.offload_folder.empty() ? nullptr : OffloadFile::in(options.offload_folder)) {}

  std::string name() const override { return "saved tensors that can be recomputed"; }
  ReclaimStageId kind() const override { return ReclaimStageId::rematerialise; }
  double price_per_byte() const override {
    const std::lock_guard lock(mutex_);
    return droppable_.empty() ? 0.0 : droppable_.begin()->first.first;
  }
  std::size_t estimate() override {
    const std::lock_guard lock(mutex_);
    return statistics_.held_bytes;
  }

  /// Results are listed at the price of their own operator, or at a higher price found later. If the inputs of a result
  /// are gone too, its price rises above the next one, and it is listed again at the known price.
  std::size_t reclaim(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    std::size_t freed = 0;
    for (auto place = droppable_.begin(); place != droppable_.end() && freed < bytes;) {
      RecordedResult& result = *place->second;
      if (!result.data.is_sole_owner()) {
        ++place;
        continue;
      }
      const auto next = std::next(place);
      const double enough = next == droppable_.end() ? infinity : next->first.first;
      if (const double price = price_of(result, enough); price > enough) {
        droppable_.erase(place);
        list(result, price);  // after `next`
      } else if (drop(result)) {
        freed += result.bytes;
      }
      place = next;
    }
    return freed;
  }

  std::shared_ptr<NodeNote> recorded_again(const RecordedCall& call) override { return recorded(call); }
  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) {
    const std::lock_guard lock(mutex_);
    decide();
    if (!call.recipe) return nullptr;
    auto operation = std::make_shared<RecordedOperation>();
    operation->name = call.operation;
    operation->recipe = call.recipe;
    std::size_t bytes = 0;
    for (const Tensor& input : call.inputs) {
      operation->inputs.push_back(input_of(input));
      if (input.defined()) bytes += bytes_of(input);
    }
    auto note = std::make_shared<ResultNote>();
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      const Tensor& output = call.outputs[i];
      bytes += output.storage()->bytes();
      if (find(output) != nullptr) continue;  // a view of an input
      auto result = std::make_shared<RecordedResult>(operation, i, output, current_tag());
      result->number = next_number_++;
      known_.add(output.storage(), result);
      operation->results.push_back(result);
      note->results.push_back(std::move(result));
    }
    operation->nanoseconds =
        speed_of(call.outputs.at(0).device()).nanoseconds({static_cast<double>(bytes), call.flops});
    statistics_.recorded_nanoseconds += operation->nanoseconds;
    return note;
  }

  class Packed;
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor) { return pack(tensor, false); }
  /// The tensor is needed soon, so it is dropped only on demand.
  std::unique_ptr<PackedTensor> pack_again(const Tensor& tensor) override { return pack(tensor, true); }
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, bool is_again);

  /// Returns the data of `wanted`, recomputed if needed. Tensors in use during the call cannot be dropped; any thread
  /// can drop all others, so memory does not grow with the number of missing results.
  Tensor restored(const std::shared_ptr<RecordedResult>& wanted) {
    const std::lock_guard lock(mutex_);
    decide();
    const Tensor data = there(wanted);
    return data.defined() ? data : computed(wanted);
  }

  Tensor computed(const std::shared_ptr<RecordedResult>& wanted) {
    struct Frame {
      std::shared_ptr<RecordedResult> result;
      std::vector<Tensor> inputs;  // of its operation, as far as available
    };
    Passing passing{*this, {}};
    std::vector<Frame> frames{{wanted, {}}};
    Tensor last;
    while (!frames.empty()) {
      Frame& frame = frames.back();
      const std::vector<OperationInput>& inputs = frame.result->operation->inputs;
      if (last.defined()) {
        frame.inputs.push_back(last.alias(inputs[frame.inputs.size()].geometry));
        last = {};
      }
      while (frame.inputs.size() < inputs.size()) {
        const OperationInput& input = inputs[frame.inputs.size()];
        if (input.result == nullptr) {
          frame.inputs.push_back(checked_source(*frame.result->operation, input));
        } else if (const Tensor data = there(input.result); data.defined()) {
          frame.inputs.push_back(data.alias(input.geometry));
        } else {
          break;
        }
      }
      if (frame.inputs.size() < inputs.size()) {
        frames.push_back({inputs[frame.inputs.size()].result, {}});
        continue;
      }
      const std::shared_ptr<RecordedResult> result = frame.result;
      last = run(*result, std::move(frame.inputs), passing);
      frames.pop_back();
    }
    return last;
  }

  void released(RecordedResult& result) {
    const std::lock_guard lock(mutex_);
    if (--result.waiting == 0) let_go(result);
  }
  void let_go(RecordedResult& result) {
    forget(result);
    result.moved.reset();
  }

  RematerialisationStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }
  std::string offload_failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  /// Intermediate results that no node waits for. The destructor drops them, also if an operator throws.
  struct Passing {
    Results& all;
    std::vector<std::shared_ptr<RecordedResult>> results;
    ~Passing() {
      for (const std::shared_ptr<RecordedResult>& result : results)
        if (result->waiting == 0) all.let_go(*result);
    }
  };

  /// Releases the lock, which this thread must hold once, for a scope. Allocation and foreign code may wait for threads
  /// in reclaim().
  class Unlocked {
   public:
    explicit Unlocked(std::recursive_mutex& mutex) : mutex_(mutex) { mutex_.unlock(); }
    ~Unlocked() { mutex_.lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    std::recursive_mutex& mutex_;
  };

  using Place = std::pair<double, std::uint64_t>;  // price of a byte, number

  std::shared_ptr<RecordedResult> find(const Tensor& tensor) const {
    return known_.find(tensor.storage(), tensor.storage()->version());
  }

  OperationInput input_of(const Tensor& input) const {
    if (!input.defined()) return {};
    if (std::shared_ptr<RecordedResult> result = find(input); result != nullptr && result->operation != nullptr)
      return {std::move(result), input.geometry(), {}, 0};
    return {nullptr, {}, input.detach(), input.storage()->version()};
  }

  static Tensor checked_source(const RecordedOperation& operation, const OperationInput& input) {
    if (input.source.defined() && input.source.storage()->version() != input.version)
      throw Error("[" + operation.name + "] cannot be recomputed: an input " + describe(input.source) +
                  " was written in place: read at version " + std::to_string(input.version) + ", now at version " +
                  std::to_string(input.source.storage()->version()));
    return input.source;
  }

  /// Runs the operation of `wanted`, and keeps the results that nodes wait for.
  Tensor run(const RecordedResult& wanted, std::vector<Tensor> inputs, Passing& passing) {
    const RecordedOperation& operation = *wanted.operation;
    std::vector<Tensor> outputs;
    {
      const Unlocked meanwhile(mutex_);
      const NoGradGuard no_grad;
      const MemoryScope tag(wanted.tag);
      outputs = operation.recipe.compute(inputs);
      inputs.clear();
    }
    ++statistics_.recomputed;
    statistics_.recomputed_nanoseconds += operation.nanoseconds;
    if (!std::exchange(counts_pass_, true))
      at_end_of_backward([results = weak_from_this()] {
        if (const std::shared_ptr<Results> alive = results.lock()) {
          const std::lock_guard lock(alive->mutex_);
          alive->counts_pass_ = false;
          alive->again_in_pass_ = 0;
        }
      });
    again_in_pass_ += operation.nanoseconds;
    if (again_in_pass_ > most_again * statistics_.recorded_nanoseconds)
      throw OutOfMemoryError("[" + operation.name + "] recomputation of saved tensors has taken more than " +
                             std::to_string(static_cast<int>(most_again)) +
                             " times as long as the recorded operations: the budget is too small, with " +
                             format_bytes(statistics_.held_bytes) + " of saved tensors in memory");
    Tensor found;
    for (const std::weak_ptr<RecordedResult>& made : operation.results) {
      const std::shared_ptr<RecordedResult> result = made.lock();
      if (result == nullptr) continue;
      const Tensor& output = outputs.at(result->output_index);
      const Tensor whole = whole_storage(output);
      if (result.get() == &wanted) found = whole;
      if (result->present().defined()) continue;
      hold(result, whole);
      if (result->waiting == 0) passing.results.push_back(result);
    }
    return found;
  }

  void hold(const std::shared_ptr<RecordedResult>& held, const Tensor& whole) {
    RecordedResult& result = *held;
    forget(result);  // if other code wrote into it
    result.data = whole;
    result.data_version = whole.storage()->version();
    statistics_.held_bytes += result.bytes;
    if (result.storage.expired()) {  // later reads use this storage
      result.storage = whole.storage();
      result.version = result.data_version;
      known_.add(whole.storage(), held);
    }
    const double own =
        result.operation == nullptr ? infinity : result.operation->nanoseconds / static_cast<double>(result.bytes);
    list(result, std::min(own, offload_price(result)));
  }
  void list(RecordedResult& result, double price) {
    result.listed_at = price;
    droppable_.emplace(Place{price, result.number}, &result);
  }
  void forget(RecordedResult& result) {
    if (!result.data.defined()) return;
    droppable_.erase({result.listed_at, result.number});
    statistics_.held_bytes -= result.bytes;
    result.data = {};
  }
  /// Returns false if the result must stay: no operation makes it, and the file does not take it.
  bool drop(RecordedResult& result) {
    if (!result.moved && can_move()) {
      const double moving = offload_price(result);
      if (options_.offload_all || moving < price_to_compute(result, moving)) move_out(result);
    }
    if (!result.moved && result.operation == nullptr) return false;
    forget(result);
    ++statistics_.dropped;
    statistics_.dropped_bytes += result.bytes;
    return true;
  }
  void move_out(RecordedResult& result) {
    if (!result.present().defined()) return;
    try {
      result.moved = file_->move_out(result.data);
    } catch (const FileError& error) {
      failure_ = error.what();
      return;
    }
    ++statistics_.offloaded;
    statistics_.offloaded_bytes += result.bytes;
  }
  bool can_move() const { return file_ != nullptr && failure_.empty(); }

  /// Returns the data if they are kept or can be read from the file; otherwise an undefined tensor.
  Tensor there(const std::shared_ptr<RecordedResult>& wanted) {
    RecordedResult& result = *wanted;
    if (const Tensor data = result.present(); data.defined() || !result.moved) return data;
    Tensor whole;
    {
      const Unlocked meanwhile(mutex_);
      const MemoryScope tag(result.tag);
      whole = Tensor::empty({static_cast<std::int64_t>(result.bytes / size_of(result.dtype))},
                            {result.dtype, result.device});
    }
    if (const Tensor data = result.present(); data.defined() || !result.moved) return data;  // by another thread
    file_->bring_back(*result.moved, whole);
    ++statistics_.loaded;
    hold(wanted, whole);
    return whole;
  }

  /// Returns the price of dropping the result, in nanoseconds a byte. Stops the search above `enough`.
  double price_of(const RecordedResult& result, double enough) const {
    return std::min(offload_price(result), price_to_compute(result, enough));
  }
  double offload_price(const RecordedResult& result) const {
    if (!result.moved && !can_move()) return infinity;
    return (result.moved ? 1 : 2) / options_.file_speed;
  }
  /// Returns the price of its operation and of all missing ones before it.
  double price_to_compute(const RecordedResult& result, double enough) const {
    if (result.operation == nullptr) return infinity;
    constexpr std::size_t far = 256;  // operations; beyond, the price is only known to be high
    const auto bytes = static_cast<double>(result.bytes);
    double nanoseconds = 0;
    std::unordered_set<const RecordedOperation*> seen{result.operation.get()};
    std::vector<const RecordedOperation*> open{result.operation.get()};
    while (!open.empty() && nanoseconds <= enough * bytes && seen.size() < far) {
      const RecordedOperation& operation = *open.back();
      open.pop_back();
      nanoseconds += operation.nanoseconds;
      for (const OperationInput& input : operation.inputs)
        if (input.result == nullptr || input.result->data.defined() ||
            !seen.insert(input.result->operation.get()).second) {
          continue;
        } else if (input.result->moved) {
          nanoseconds += offload_price(*input.result) * static_cast<double>(input.result->bytes);
        } else {
          open.push_back(input.result->operation.get());
        }
    }
    return nanoseconds / bytes;
  }

  /// Drops cheap tensors that the last operator saved: now the other tensors that it saved are known.
  void decide() {
    for (const std::weak_ptr<RecordedResult>& one : std::exchange(undecided_, {}))
      if (const std::shared_ptr<RecordedResult> result = one.lock(); result != nullptr && result->data.defined())
        if (options_.offload_all || price_to_compute(*result, options_.drop_below) < options_.drop_below) drop(*result);
  }

  // Never held during an allocation. Recursive, because a destructor under it may release another result.
  mutable std::recursive_mutex mutex_;
  const RematerialisationOptions options_;
  const std::shared_ptr<OffloadFile> file_;
  std::string failure_;  // why the file failed
  StorageIndex<RecordedResult> known_;
  std::map<Place, RecordedResult*> droppable_;
  std::vector<std::weak_ptr<RecordedResult>> undecided_;
  static constexpr double most_again = 50;
  double again_in_pass_ = 0;  // nanoseconds of recomputed operators
  bool counts_pass_ = false;  // reset at the end of the pass
  std::uint64_t next_number_ = 0;
  RematerialisationStatistics statistics_;
};

class Rematerialisation::Results::Packed : public PackedTensor {
 public:
  Packed(std::shared_ptr<Results> results, std::shared_ptr<RecordedResult> result)
      : results_(std::move(results)), result_(std::move(result)) {}
  ~Packed() override { results_->released(*result_); }
  Tensor unpack() override { return results_->restored(result_); }

 private:
  std::shared_ptr<Results> results_;
  std::shared_ptr<RecordedResult> result_;
};

std::unique_ptr<PackedTensor> Rematerialisation::Results::pack(const Tensor& tensor, bool is_again) {
  const std::lock_guard lock(mutex_);
  if ((options_.device && tensor.device() != *options_.device) || tensor.numel() == 0) return nullptr;
  std::shared_ptr<RecordedResult> result = find(tensor);
  if (result == nullptr) {
    if (!can_move()) return nullptr;
    result = std::make_shared<RecordedResult>(nullptr, 0, tensor, current_tag());
    result->number = next_number_++;
    known_.add(tensor.storage(), result);
  }
  ++result->waiting;
  ++statistics_.saved;
  statistics_.saved_bytes += result->bytes;
  if (!result->data.defined()) hold(result, tensor);
  if (!is_again && (options_.drop_below > 0.0 || options_.offload_all)) undecided_.push_back(result);
  return std::make_unique<Packed>(shared_from_this(), result);
}

Rematerialisation::Rematerialisation(const RematerialisationOptions& options)
    : results_(std::make_shared<Results>(options)) {}
Rematerialisation::~Rematerialisation() = default;

std::shared_ptr<NodeNote> Rematerialisation::recorded(const RecordedCall& call) { return results_->recorded(call); }
std::unique_ptr<PackedTensor> Rematerialisation::pack(const Tensor& tensor, const SavedUse& use) {
  return use.is_leaf ? nullptr : results_->pack(tensor);
}
std::shared_ptr<SavedTensorKeeper> Rematerialisation::keeper() { return results_; }
std::shared_ptr<ReclaimClient> Rematerialisation::client() const { return results_; }
RematerialisationStatistics Rematerialisation::statistics() const { return results_->statistics(); }
std::string Rematerialisation::offload_failure() const { return results_->offload_failure(); }

}  // namespace poolgrad
