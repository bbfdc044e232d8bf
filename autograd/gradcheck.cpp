#include "autograd/gradcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "allocator/error.h"
#include "autograd/engine.h"
#include "autograd/finite_difference.h"
#include "tensor/creation.h"
#include "tensor/generator.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"

namespace poolgrad {
namespace {

using Tensors = std::vector<Tensor>;

/// A function run once with recording on.
struct Evaluation {
  Tensors outputs;  // the floating ones
  Tensors wanted;   // the inputs that require grad

  Evaluation(const TensorFunction& function, const Tensors& inputs) {
    EnableGradGuard guard;
    Tensors leaves;
    for (const Tensor& input : inputs) {
      leaves.push_back(input.defined() ? input.detach() : input);
      if (!input.defined() || !input.requires_grad()) continue;
      leaves.back().set_requires_grad();
      wanted.push_back(leaves.back());
    }
    outputs = floating(function(leaves));
  }
};

/// One gradient per `wanted`; zeros where an input did not contribute.
Tensors gradients(const Tensors& outputs, const Tensors& wanted, const Tensors& weights, BackwardOptions options) {
  Tensors roots, seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(weights[i]);
  }
  Tensors result(wanted.size());
  if (!roots.empty()) result = grad(roots, wanted, seeds, options, true);
  for (std::size_t i = 0; i < result.size(); ++i)
    if (!result[i].defined()) result[i] = zeros_like(wanted[i]);
  return result;
}

Tensors random_weights(const Tensors& outputs, std::uint64_t seed) {
  Generator generator(seed);
  Tensors weights;
  for (const Tensor& output : outputs) weights.push_back(randn(output.shape(), output.options(), generator));
  return weights;
}

/// The same numbers with a gap after each.
Tensor with_gaps(const Tensor& x) {
  if (x.rank() == 0) return x;
  Shape wide = x.shape();
  wide[x.rank() - 1] *= 2;
  Strides strides = contiguous_strides(wide);
  strides[x.rank() - 1] = 2;
  return Tensor::empty(wide, x.options()).fill(0.0).alias({x.shape(), strides, 0}).copy_from(x.detach());
}

/// One number broadcast without memory, as the gradient of a sum is.
Tensor expanded_constant(const Tensor& like, double value) {
  return full({}, value, like.options()).alias({like.shape(), Strides::filled(like.rank(), 0), 0});
}

Shape unravel(std::int64_t index, const Shape& shape) {
  Shape result = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    result[d] = index % shape[d];
    index /= shape[d];
  }
  return result;
}

class Check {
 public:
  Check(const char* name, const TensorFunction& function, const Tensors& inputs, const GradcheckOptions& options)
      : name_(name), function_(function), inputs_(inputs), options_(options) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined() && inputs[i].requires_grad()) checked_.push_back(i);
    if (checked_.empty()) throw ValueError(fmt::format("[{}] no input requires a gradient", name));
    for (std::size_t i : checked_)
      if (inputs[i].dtype() != DType::f64 && !options.allow_low_precision)
        throw DTypeError(
            fmt::format("[{}] differences mislead in less than f64; pass f64 or allow_low_precision: "
                        "input {} {}",
                        name, i, describe(inputs[i])));
  }

  GradcheckReport run() {
    const Evaluation evaluation(function_, inputs_);
    const Tensors weights = random_weights(evaluation.outputs, options_.seed);
    const Tensors analytic = gradients(evaluation.outputs, evaluation.wanted, weights, {.retain_graph = true});
    check_repetition(evaluation, weights, analytic);
    if (report_.passed) check_layouts(evaluation, weights, analytic);
    if (report_.passed) compare(analytic, weights);
    return std::move(report_);
  }

 private:
  /// The first reason counts.
  void fail(const std::string& reason) {
    if (!report_.passed) return;
    report_.passed = false;
    report_.text = fmt::format("{} failed: {}", name_, reason);
  }

  void check_repetition(const Evaluation& evaluation, const Tensors& weights, const Tensors& analytic) {
    const Tensors again = gradients(evaluation.outputs, evaluation.wanted, weights, {.retain_graph = true});
    for (std::size_t i = 0; i < checked_.size(); ++i)
      if (!bit_equal(again[i], analytic[i]))
        fail(fmt::format("two backward passes over one graph give other bits for input {}", checked_[i]));
    const Evaluation repeated(function_, inputs_);
    const Tensors other = gradients(repeated.outputs, repeated.wanted, weights, {});
    for (std::size_t i = 0; i < repeated.outputs.size(); ++i)
      if (!bit_equal(repeated.outputs[i], evaluation.outputs[i]))
        fail(fmt::format("two runs of the function give other bits in floating output {}", i));
    for (std::size_t i = 0; i < checked_.size(); ++i)
      if (!bit_equal(other[i], analytic[i]))
        fail(fmt::format("two runs of function and backward give other bits for input {}", checked_[i]));
  }

  void check_layouts(const Evaluation& evaluation, const Tensors& weights, const Tensors& analytic) {
    Tensors strided, constant, expanded;
    for (const Tensor& weight : weights) {
      strided.push_back(with_gaps(weight));
      constant.push_back(full(weight.shape(), 0.75, weight.options()));
      expanded.push_back(expanded_constant(weight, 0.75));
    }
    const auto run = [&](const Tensors& seeds) {
      return gradients(evaluation.outputs, evaluation.wanted, seeds, {.retain_graph = true});
    };
    expect_close("a strided output gradient", run(strided), analytic);
    if (!report_.passed) return;
    expect_close("an expanded output gradient", run(expanded), run(constant));
  }

  void expect_close(const char* what, const Tensors& found, const Tensors& expected) {
    for (std::size_t i = 0; i < checked_.size(); ++i)
      if (!all_close(found[i], expected[i], options_.relative, options_.absolute, true))
        fail(fmt::format("{} gives another gradient of input {} than the same numbers in a row (differs by {:.3g})",
                         what, checked_[i], max_difference(found[i], expected[i])));
  }

  void compare(const Tensors& analytic, const Tensors& weights) {
    FiniteDifference difference(function_, inputs_, weights);
    std::int64_t elements = 0, wrong_elements = 0;
    double worst = -1.0;
    std::int64_t worst_index = 0;
    std::string wrong_by_input;
    for (std::size_t k = 0; k < checked_.size(); ++k) {
      const std::vector<double> values = analytic[k].to_vector<double>();
      std::int64_t wrong = 0;
      for (std::size_t e = 0; e < values.size(); ++e) {
        const double numeric = difference.central(checked_[k], static_cast<std::int64_t>(e), options_.epsilon);
        double excess = std::abs(values[e] - numeric) / allowed(numeric);
        if (std::isnan(excess)) excess = std::numeric_limits<double>::infinity();
        if (excess > 1.0) ++wrong;
        if (excess <= worst) continue;
        worst = excess;
        worst_index = static_cast<std::int64_t>(e);
        report_.input = static_cast<int>(checked_[k]);
        report_.analytic = values[e];
        report_.numeric = numeric;
      }
      elements += analytic[k].count();
      wrong_elements += wrong;
      wrong_by_input += fmt::format("{}{} of {} of input {}", k == 0 ? "" : ", ", wrong, values.size(), checked_[k]);
    }
    if (elements == 0) {
      report_.text = fmt::format("{} passed: the inputs are empty", name_);
      return;
    }
    report_.index = unravel(worst_index, input().shape());
    report_.passed = wrong_elements == 0;
    report_.text = report_.passed ? fmt::format("{} passed: {} elements of {} inputs, largest relative error {:.2g}{}",
                                                name_, elements, checked_.size(), relative_error_of_worst(), place())
                                  : failure(difference, worst_index, wrong_by_input);
  }

  std::string failure(FiniteDifference& difference, std::int64_t index, const std::string& wrong_by_input) const {
    const auto [right, left] = difference.one_sided(static_cast<std::size_t>(report_.input), index, options_.epsilon);
    const bool kink = !(std::abs(right - left) <= 1e-2 * std::max(std::abs(right), std::abs(left)) + 1e-4);
    return fmt::format(
        "{} failed{}\n"
        "  analytic        {:.10g}\n"
        "  numeric         {:.10g}  (central difference, epsilon {:g})\n"
        "  relative error  {:.3g}  (allowed: {:g} + {:g} |numeric|)\n"
        "  one-sided       {:.10g} from the right, {:.10g} from the left: {}\n"
        "  wrong elements  {}",
        name_, place(), report_.analytic, report_.numeric, options_.epsilon, relative_error_of_worst(),
        options_.absolute, options_.relative, right, left,
        kink ? "they disagree, a kink or jump is near; check at another point" : "they agree, no kink is near",
        wrong_by_input);
  }

  std::string place() const {
    return fmt::format(" at element {} of input {} {}", to_string(report_.index), report_.input, describe(input()));
  }
  const Tensor& input() const { return inputs_[static_cast<std::size_t>(report_.input)]; }
  double allowed(double numeric) const { return options_.absolute + options_.relative * std::abs(numeric); }
  double relative_error_of_worst() const {
    const double scale = std::max(std::abs(report_.analytic), std::abs(report_.numeric));
    return scale == 0.0 ? 0.0 : std::abs(report_.analytic - report_.numeric) / scale;
  }

  const char* name_;
  const TensorFunction& function_;
  const Tensors& inputs_;
  const GradcheckOptions options_;
  std::vector<std::size_t> checked_;
  GradcheckReport report_;
};

}  // namespace

GradcheckReport gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs, GradcheckOptions options) {
  return Check("gradcheck", function, inputs, options).run();
}

GradcheckReport gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                              GradcheckOptions options) {
  // The gradient is a function of the inputs and of the output gradients. With grad mode on it is itself recorded;
  // with grad mode off (finite differences) it is what a training step computes.
  const std::size_t count = inputs.size();
  const TensorFunction gradient = [&](const Tensors& point) {
    const bool create_graph = grad_enabled();
    EnableGradGuard guard;
    Tensors leaves, wanted;
    for (std::size_t i = 0; i < count; ++i) {
      leaves.push_back(point[i]);
      if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
      if (!create_graph) leaves.back() = point[i].detach().set_requires_grad();
      wanted.push_back(leaves.back());
    }
    const Tensors weights(point.begin() + static_cast<std::ptrdiff_t>(count), point.end());
    return gradients(floating(function(leaves)), wanted, weights, {.create_graph = create_graph});
  };

  Tensors point = inputs;
  for (Tensor& weight : random_weights(Evaluation(function, inputs).outputs, options.seed + 1))
    point.push_back(weight.set_requires_grad());
  Check check("gradgradcheck", gradient, point, options);

  const Tensors recorded = Evaluation(gradient, point).outputs;
  NoGradGuard guard;
  const Tensors plain = gradient(point);
  for (std::size_t i = 0; i < plain.size(); ++i)
    if (!all_close(recorded[i], plain[i], options.relative, options.absolute, true))
      return {.passed = false,
              .text = fmt::format("gradgradcheck failed: gradient {} differs by {:.3g} with create_graph", i,
                                  max_difference(recorded[i], plain[i])),
              .index = {}};
  return check.run();
}

}  // namespace poolgrad
