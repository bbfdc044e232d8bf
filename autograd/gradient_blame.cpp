#include "autograd/gradient_blame.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "allocator/base/number.h"
#include "autograd/engine/node.h"
#include "autograd/engine/saved_tensor.h"
#include "tensor/creation.h"
#include "tensor/generator.h"
#include "tensor/grad_mode.h"

namespace poolgrad {
namespace {

using Tensors = std::vector<Tensor>;

struct WatchedCall {
  std::string name;
  Tensors inputs, outputs;  // copies; undefined unless floating
};

/// Copies the operands of every operator recorded while it is alive.
class OperandWatch : public SavedTensorPolicy {
 public:
  struct Place : NodeNote {
    explicit Place(std::size_t of_call) : call(of_call) {}
    std::size_t call;
  };

  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override {
    calls.push_back({call.operation, copies(call.inputs), copies(call.outputs)});
    return std::make_shared<Place>(calls.size() - 1);
  }
  std::unique_ptr<PackedTensor> pack(const Tensor&, const SavedUse&) override { return nullptr; }

  std::vector<WatchedCall> calls;

 private:
  static Tensors copies(const Tensors& tensors) {
    const NoGradGuard guard;
    Tensors result;
    for (const Tensor& x : tensors)
      result.push_back(x.defined() && is_floating(x.dtype()) ? x.detach().copy() : Tensor());
    return result;
  }
};

/// Returns every node between the outputs and the leaves.
std::vector<std::shared_ptr<Node>> nodes_below(const Tensors& outputs) {
  std::vector<std::shared_ptr<Node>> found;
  std::set<const Node*> seen;
  const auto add = [&](const std::shared_ptr<Node>& node) {
    if (node != nullptr && seen.insert(node.get()).second) found.push_back(node);
  };
  for (const Tensor& output : outputs) add(gradient_edge(output).node);
  for (std::size_t i = 0; i < found.size(); ++i)
    for (const Edge& edge : std::vector<Edge>(found[i]->edges())) add(edge.node);
  return found;
}

/// Both sides of <g, d outputs> = <backward(g), d inputs>, term by term.
struct Balance {
  double difference = 0.0, size = 0.0, rounding = 0.0;

  /// Returns whether any element of the operand moved by more than rounding.
  bool add(double sign, const Tensor& factors, const Tensor& high, const Tensor& low) {
    const std::vector<double> f = factors.to_vector<double>(), a = high.to_vector<double>(),
                              b = low.to_vector<double>();
    const double roundoff = 4.0 * unit_roundoff(high.dtype());
    bool moved = false;
    for (std::size_t i = 0; i < f.size(); ++i) {
      if (a[i] == b[i]) continue;
      difference += sign * f[i] * (a[i] - b[i]);
      size += std::abs(f[i] * (a[i] - b[i]));
      rounding += std::abs(f[i]) * roundoff * (std::abs(a[i]) + std::abs(b[i]));
      moved |= std::abs(a[i] - b[i]) > 4.0 * roundoff * (std::abs(a[i]) + std::abs(b[i]));
    }
    return moved;
  }
};

}  // namespace

std::string blamed_operators(const TensorFunction& function, FiniteDifference& difference, std::size_t input,
                             std::int64_t index, double epsilon, double tolerance) {
  const auto run = [&](const Tensors& point) {
    const EnableGradGuard guard;
    return floating(function(point));
  };
  std::vector<std::unique_ptr<OperandWatch>> beside;
  difference.visit_both_sides(input, index, epsilon, [&](const Tensors& point) {
    beside.push_back(std::make_unique<OperandWatch>());
    run(point);
  });
  OperandWatch here;  // only the newest policy is consulted
  const Tensors outputs = run(difference.point());
  const std::vector<WatchedCall>&high = beside[0]->calls, &low = beside[1]->calls;
  const auto same = [](const WatchedCall& a, const WatchedCall& b) { return a.name == b.name; };
  if (!std::ranges::equal(here.calls, high, same) || !std::ranges::equal(here.calls, low, same)) return "";

  Generator generator(1);
  std::int64_t checked = 0;
  std::set<std::string> wrong, cut;
  const NoGradGuard guard;
  for (const std::shared_ptr<Node>& node : nodes_below(outputs)) {
    const auto place = std::dynamic_pointer_cast<OperandWatch::Place>(node->note());
    if (place == nullptr || node->released()) continue;
    const WatchedCall& call = here.calls[place->call];
    Gradients seeds;
    for (const Tensor& output : call.outputs)
      seeds.push_back(output.defined() ? randn(output.shape(), output.options(), generator) : Tensor());
    BackwardCall backward(*node, seeds);
    const Gradients found = node->run(backward);
    Balance balance;
    std::string stops;
    for (std::size_t i = 0; i < call.outputs.size(); ++i)
      if (seeds[i].defined()) balance.add(1.0, seeds[i], high[place->call].outputs[i], low[place->call].outputs[i]);
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      if (!call.inputs[i].defined()) continue;
      const Tensor factors = found[i].defined() ? found[i] : zeros_like(call.inputs[i]);
      const bool moved = balance.add(-1.0, factors, high[place->call].inputs[i], low[place->call].inputs[i]);
      if (moved && node->edges()[i].node == nullptr) stops = fmt::format("{} of {}", i, call.name);
    }
    if (balance.size == 0.0) continue;
    ++checked;
    if (std::abs(balance.difference) - balance.rounding <= tolerance * balance.size) continue;
    if (stops.empty())
      wrong.insert(call.name);
    else
      cut.insert(stops);
  }
  if (checked == 0) return "";
  if (!wrong.empty())
    return fmt::format("the backward of {} disagrees with differences of {} alone ({} on the path)",
                       fmt::join(wrong, ", "), wrong.size() == 1 ? "it" : "each", plural(checked, "operator"));
  if (!cut.empty())
    return fmt::format("the gradient stops at input {}: the input moves, but requires no gradient",
                       fmt::join(cut, ", at input "));
  return fmt::format(
      "{} on the path, and each agrees with differences of it alone: the function also computes outside "
      "of the tape",
      plural(checked, "operator"));
}

namespace {

bool is_transposed(const ComparedGradient& compared, const Shape& shape, double near) {
  if (shape.rank() != 2 || shape[0] < 2 || shape[1] < 2) return false;
  const auto rows = static_cast<std::size_t>(shape[0]), columns = static_cast<std::size_t>(shape[1]);
  double most = 0.0;
  for (const FiniteDifference::Derivative& slope : compared.slopes) most = std::max(most, std::abs(slope.value));
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j)
      if (!(std::abs(compared.values[j * rows + i] - compared.slopes[i * columns + j].value) <= near * most))
        return false;
  return true;
}

}  // namespace

std::string describe_ratio(const ComparedGradient& compared, std::size_t worst, const Shape& shape) {
  const double near = std::max(1e-3, 4.0 * compared.relative);
  if (is_transposed(compared, shape, near)) return "the analytic gradient is the transpose of the numeric one";
  const double ratio = compared.values[worst] / compared.slopes[worst].value;
  std::int64_t wrong = 0;
  bool everywhere = std::isfinite(ratio);
  for (std::size_t e = 0; e < compared.values.size(); ++e) {
    if (compared.agrees(e)) continue;
    const double analytic = compared.values[e], numeric = compared.slopes[e].value;
    everywhere &= std::abs(analytic - ratio * numeric) <= near * std::max(std::abs(analytic), std::abs(numeric));
    ++wrong;
  }
  if (!everywhere) return fmt::format("{:.4g}; it differs between wrong elements", ratio);
  struct Mistake {
    double ratio;
    const char* text;
  };
  for (const auto& [value, text] :
       {Mistake{0.0, "0: the gradient is missing"}, Mistake{-1.0, "-1: the sign is wrong"},
        Mistake{0.5, "1/2: a factor of 2 is missing"}, Mistake{2.0, "2: a factor of 2 too many"}})
    if (std::abs(ratio - value) <= near) return text;
  return fmt::format("{:.4g}{}", ratio, wrong > 1 ? " at every wrong element" : "");
}

}  // namespace poolgrad
