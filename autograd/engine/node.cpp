#include "autograd/engine/node.h"

#include <fmt/format.h>

#include <atomic>
#include <tuple>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/error.h"
#include "autograd/engine/tape_record.h"

namespace poolgrad {
namespace {

std::atomic<std::uint64_t> next_sequence{0};
std::atomic<std::int64_t> live_nodes{0};
thread_local Node* current_node = nullptr;

/// Sets the running node, also in nested backward passes.
class CurrentNodeGuard {
 public:
  explicit CurrentNodeGuard(Node* node) : previous_(std::exchange(current_node, node)) {}
  ~CurrentNodeGuard() { current_node = previous_; }
  CurrentNodeGuard(const CurrentNodeGuard&) = delete;
  CurrentNodeGuard& operator=(const CurrentNodeGuard&) = delete;

 private:
  Node* previous_;
};

}  // namespace

TensorMeta::TensorMeta(const Tensor& tensor) : defined(tensor.defined()) {
  if (!defined) return;
  shape = tensor.shape();
  dtype = tensor.dtype();
  device = tensor.device();
}

std::string TensorMeta::describe() const {
  if (!defined) return "undefined";
  return fmt::format("{} {} on {}", to_string(shape), to_string(dtype), to_string(device));
}

bool TensorMeta::matches(const Tensor& tensor) const {
  return defined && tensor.dtype() == dtype && tensor.device() == device && tensor.shape() == shape;
}

std::uint64_t Hooks::add(Hook hook) {
  std::lock_guard lock(mutex_);
  hooks_.emplace(next_, std::move(hook));
  return next_++;
}

void Hooks::remove(std::uint64_t id) {
  Hook doomed;  // destroyed after unlocking, since it may hold a graph
  std::lock_guard lock(mutex_);
  const auto found = hooks_.find(id);
  if (found == hooks_.end()) return;
  doomed.swap(found->second);
  hooks_.erase(found);
}

void Hooks::run(Gradients& gradients) const {
  const auto from = [this](std::uint64_t id) -> std::pair<std::uint64_t, Hook> {
    std::lock_guard lock(mutex_);
    const auto found = hooks_.lower_bound(id);
    if (found == hooks_.end()) return {};
    return *found;
  };
  for (auto [id, hook] = from(0); hook; std::tie(id, hook) = from(id + 1)) hook(gradients);
}

void HookHandle::remove() {
  if (const std::shared_ptr<Hooks> hooks = hooks_.lock()) hooks->remove(id_);
  hooks_.reset();
}

Tensor BackwardCall::place_over_gradient(int i) const {
  const Tensor& grad = gradient(i);
  return is_reusable(grad) ? grad : Tensor::empty_like(grad);
}

bool BackwardCall::needs(int i) const {
  const auto index = static_cast<std::size_t>(i);
  return node_.edges()[index].node != nullptr && (wanted_ == nullptr || wanted_[index] != 0);
}

// Destroying a node destroys its edges and saved tensors, which may end other nodes, and so on down the graph. If a
// destruction is already in progress on this thread, the deleter only queues the node.
struct Node::Deleter {
  void operator()(Node* node) const noexcept {
    thread_local Node* doomed = nullptr;
    thread_local bool draining = false;
    node->next_doomed_ = doomed;
    doomed = node;
    if (draining) return;
    draining = true;
    while (doomed != nullptr) delete std::exchange(doomed, doomed->next_doomed_);
    draining = false;
  }
};

Node::Node(std::string name, std::uint64_t priority)
    : name_(std::move(name)),
      made_by_(CallSite::current()),
      sequence_(priority | next_sequence.fetch_add(1, std::memory_order_relaxed)) {
  live_nodes.fetch_add(1, std::memory_order_relaxed);
}

Node::~Node() { live_nodes.fetch_sub(1, std::memory_order_relaxed); }

std::shared_ptr<Node> Node::own(Node* node) { return std::shared_ptr<Node>(node, Deleter()); }

std::shared_ptr<Node> Node::make(std::string name, const std::vector<Tensor>& inputs, int output_count,
                                 BackwardFunction backward) {
  std::vector<Edge> edges;
  std::vector<TensorMeta> metas;
  edges.reserve(inputs.size());
  metas.reserve(inputs.size());
  for (const Tensor& input : inputs) {
    edges.push_back(gradient_edge(input));  // may make a leaf's node, which must be older than this one
    metas.emplace_back(input);
  }
  std::shared_ptr<Node> node = own(new Node(std::move(name), 0));
  node->edges_ = std::move(edges);
  node->inputs_ = std::move(metas);
  node->output_count_ = output_count;
  node->backward_ = std::move(backward);
  return node;
}

Gradients Node::run(BackwardCall& call) {
  if (released()) {
    throw Error(
        fmt::format("[backward] the graph was freed by an earlier backward; pass retain_graph = true: {}", name_));
  }
  CurrentNodeGuard guard(this);
  const CallSite site(name_, made_by_);
  Gradients gradients = backward_(call);
  check(gradients);
  return gradients;
}

void Node::check(const Gradients& gradients) const {
  if (gradients.size() != edges_.size()) {
    throw Error(fmt::format("[{}] backward returned {} for {}", name_, plural(std::ssize(gradients), "gradient"),
                            plural(std::ssize(edges_), "input")));
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& gradient = gradients[i];
    if (!gradient.defined() || edges_[i].node == nullptr || inputs_[i].matches(gradient)) continue;
    const std::string text = fmt::format("[{}] backward returned a gradient unlike input {}: gradient {}, input {}",
                                         name_, i, poolgrad::describe(gradient), inputs_[i].describe());
    if (gradient.shape() != inputs_[i].shape) throw ShapeError(text);
    if (gradient.dtype() != inputs_[i].dtype) throw DTypeError(text);
    throw DeviceError(text);
  }
}

void Node::release() {
  // Moved out first: destructors of captured objects may run code that reads this node.
  const BackwardFunction doomed = std::exchange(backward_, nullptr);
  const std::shared_ptr<NodeNote> forgotten = std::exchange(note_, nullptr);
}

HookHandle Node::add_hook(Hook hook) {
  if (hooks_ == nullptr) hooks_ = std::make_shared<Hooks>();
  const std::uint64_t id = hooks_->add(std::move(hook));
  return {hooks_, id};
}

void Node::run_hooks(Gradients& gradients) const {
  if (hooks_ != nullptr) hooks_->run(gradients);
}

Node* Node::current() { return current_node; }

std::int64_t live_node_count() { return live_nodes.load(std::memory_order_relaxed); }

}  // namespace poolgrad
