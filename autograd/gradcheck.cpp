#include "autograd/gradcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/error.h"
#include "autograd/compared_gradient.h"
#include "autograd/engine/engine.h"
#include "autograd/finite_difference.h"
#include "autograd/gradient_blame.h"
#include "tensor/creation.h"
#include "tensor/generator.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"

namespace poolgrad {
namespace {

using Tensors = std::vector<Tensor>;

/// Returns the inputs themselves, so that a function that holds them sees moved elements. Replaces an output of an
/// operator by a leaf on the same memory.
Tensors leaves_of(const Tensors& inputs) {
  Tensors leaves = inputs;
  for (Tensor& leaf : leaves)
    if (leaf.defined() && !leaf.is_leaf()) leaf = leaf.detach().set_requires_grad();
  return leaves;
}

bool is_checked(const Tensor& input) { return input.defined() && input.requires_grad(); }

/// One run of a function with recording on.
struct Evaluation {
  Tensors outputs;  // floating outputs
  Tensors wanted;   // inputs that require grad

  Evaluation(const TensorFunction& function, const Tensors& leaves) {
    EnableGradGuard guard;
    std::copy_if(leaves.begin(), leaves.end(), std::back_inserter(wanted), is_checked);
    outputs = floating(function(leaves));
  }
};

/// Returns the contributions() to the outputs that have elements: the others have nothing to compare.
Tensors of_elements(const Evaluation& evaluation, const Tensors& weights, BackwardOptions options) {
  Tensors outputs, seeds;
  for (std::size_t i = 0; i < evaluation.outputs.size(); ++i) {
    if (evaluation.outputs[i].numel() == 0) continue;
    outputs.push_back(evaluation.outputs[i]);
    seeds.push_back(weights[i]);
  }
  return contributions(outputs, evaluation.wanted, seeds, options);
}

Tensors random_weights(const Tensors& outputs, std::uint64_t seed) {
  Generator generator(seed);
  Tensors weights;
  for (const Tensor& output : outputs) weights.push_back(randn(output.shape(), output.options(), generator));
  return weights;
}

/// Returns the same numbers with a gap after each.
Tensor with_gaps(const Tensor& x) {
  if (x.dim() == 0) return x;
  Shape wide = x.shape();
  wide[x.dim() - 1] *= 2;
  Strides strides = contiguous_strides(wide);
  strides[x.dim() - 1] = 2;
  return Tensor::empty(wide, x.options()).fill(0.0).alias({x.shape(), strides, 0}).copy_from(x.detach());
}

/// Returns one number, broadcast without memory, as in the gradient of a sum.
Tensor expanded_constant(const Tensor& like, double value) {
  return full({}, value, like.options()).alias({like.shape(), Strides::filled(like.dim(), 0), 0});
}

double coarsest(const Tensors& tensors) {
  double roundoff = unit_roundoff(DType::f64);
  for (const Tensor& x : tensors) roundoff = std::max(roundoff, unit_roundoff(x.dtype()));
  return roundoff;
}

/// The dependences of outputs on inputs by the tape. Used only if differences leave them open: an answer takes a
/// backward pass for each output number.
class Dependences {
 public:
  Dependences(const TensorFunction& function, const Tensors& inputs) : function_(function), inputs_(inputs) {}

  /// Returns for each output number, in order, whether its gradient by an element of checked input `k` is not zero. The
  /// inputs must have their original values.
  std::vector<bool> of(std::size_t k, std::size_t element) {
    if (!known_) find();
    std::vector<bool> result;
    for (const std::vector<std::vector<bool>>& number : numbers_)
      result.push_back(!number.empty() && number[k][element]);
    return result;
  }

 private:
  void find() {
    known_ = true;
    const Evaluation evaluation(function_, inputs_);
    for (const Tensor& output : evaluation.outputs)
      for (std::int64_t i = 0; i < output.numel(); ++i) {
        Tensor one = zeros(output.shape(), output.options());
        one.alias({{}, {}, i}).fill(1.0);
        numbers_.emplace_back();
        if (!output.requires_grad()) continue;
        for (const Tensor& x : gradients_or_zeros({output}, evaluation.wanted, {one}, {.retain_graph = true})) {
          const std::vector<double> values = x.to_vector<double>();
          numbers_.back().emplace_back();
          for (const double value : values) numbers_.back().back().push_back(value != 0.0);
        }
      }
  }

  const TensorFunction& function_;
  const Tensors& inputs_;
  bool known_ = false;
  std::vector<std::vector<std::vector<bool>>> numbers_;  // by number, checked input and element; empty: no gradient
};

double largest(const Tensor& x) {
  double most = 0.0;
  for (const double value : x.to_vector<double>()) most = std::max(most, std::abs(value));
  return most;
}

/// Returns whether two gradients agree, with an absolute tolerance that follows their size.
bool are_close(const Tensor& found, const Tensor& expected, const Tolerance& tolerance) {
  return allclose(found, expected, tolerance.relative, tolerance.absolute_beside(largest(expected)), true);
}

/// Returns the name of an input in the report.
std::string input_label(const GradcheckOptions& options, std::size_t input) {
  return input < options.names.size() ? options.names[input] : fmt::format("input {}", input);
}

class Check {
 public:
  /// `inputs` are the leaves_of() the user's inputs.
  Check(const char* name, const TensorFunction& function, const Tensors& inputs, const GradcheckOptions& options)
      : name_(name), function_(function), inputs_(inputs), options_(options), tolerance_(options, 0.0) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (is_checked(inputs[i])) checked_.push_back(i);
    if (checked_.empty())
      throw ValueError(
          fmt::format("[{}] no input requires a gradient; call set_requires_grad() on the inputs to check", name));
    if (options.epsilon && !(*options.epsilon > 0))
      throw ValueError(fmt::format("[{}] epsilon must be positive, but is {}", name, *options.epsilon));
    for (const std::optional<double>& tolerance : {options.relative, options.absolute})
      if (tolerance && !(*tolerance >= 0))
        throw ValueError(fmt::format("[{}] a tolerance must not be negative, but is {}", name, *tolerance));
    for (std::size_t i : checked_) refuse_low_precision(label(i), inputs[i]);
  }

  GradcheckReport run() {
    const Evaluation evaluation(function_, inputs_);
    if (!check_numbers(evaluation) || !check_backward(evaluation)) return std::move(report_);
    roundoff_ = std::max(coarsest(evaluation.wanted), coarsest(evaluation.outputs));
    tolerance_ = Tolerance(options_, roundoff_);
    const Tensors weights = random_weights(evaluation.outputs, options_.seed);
    const Tensors analytic = gradients_or_zeros(evaluation.outputs, evaluation.wanted, weights, {.retain_graph = true});
    const Tensors found = of_elements(evaluation, weights, {.retain_graph = true});
    check_repetition(evaluation, weights, analytic);
    if (report_.passed) check_layouts(evaluation, weights, analytic);
    if (report_.passed) compare(analytic, weights);
    check_contributions(evaluation,
                        found);  // last: a mismatch of differences gives the better report
    return std::move(report_);
  }

  /// Checks only whether there is something to compare.
  GradcheckReport run_contributions() {
    const Evaluation evaluation(function_, inputs_);
    if (!check_numbers(evaluation) || !check_backward(evaluation)) return std::move(report_);
    const Tensors weights = random_weights(evaluation.outputs, options_.seed);
    check_contributions(evaluation, of_elements(evaluation, weights, {}));
    return std::move(report_);
  }

 private:
  void refuse_low_precision(const std::string& what, const Tensor& x) const {
    if (x.dtype() != DType::f64 && !options_.allow_low_precision)
      throw DTypeError(fmt::format("[{}] differences are unreliable below f64; pass f64 or allow_low_precision: {} {}",
                                   name_, what, describe(x)));
  }

  /// Keeps the first reason.
  void fail(const std::string& reason) {
    if (!report_.passed) return;
    report_.passed = false;
    report_.text = fmt::format("{} failed: {}", name_, reason);
  }

  bool check_numbers(const Evaluation& evaluation) {
    for (std::size_t i = 0; i < evaluation.outputs.size(); ++i)
      refuse_low_precision(fmt::format("floating output {}", i), evaluation.outputs[i]);
    if (evaluation.outputs.empty()) fail("the function returned no floating tensor: there is nothing to compare");
    for (const Tensors& tensors : {evaluation.wanted, evaluation.outputs})
      for (const Tensor& x : tensors)
        if (x.device().is_sim())
          fail(fmt::format("{} computes no numbers: there is nothing to compare", to_string(x.device())));
    return report_.passed;
  }

  /// A backward pass that throws, for example for a gradient with another shape than its input, is wrong.
  bool check_backward(const Evaluation& evaluation) {
    const Tensors weights = random_weights(evaluation.outputs, options_.seed);
    try {
      gradients_or_zeros(evaluation.outputs, evaluation.wanted, weights, {.retain_graph = true});
    } catch (const OutOfMemoryError&) {
      throw;
    } catch (const Error& error) {
      fail(error.what());
    }
    return report_.passed;
  }

  void check_contributions(const Evaluation& evaluation, const Tensors& found) {
    const auto empty = [](const Tensor& x) { return x.defined() && x.numel() == 0; };
    if (std::ranges::any_of(inputs_, empty) && std::ranges::all_of(evaluation.outputs, empty)) return;
    for (std::size_t k = 0; k < checked_.size(); ++k) {
      const Tensor& input = inputs_[checked_[k]];
      if (!found[k].defined() && input.numel() != 0 && !options_.allow_unused)
        fail(
            fmt::format("no output depends on {} {}: there is nothing to compare; pass allow_unused = true if "
                        "that is intended",
                        label(checked_[k]), describe(input)));
    }
  }

  void check_repetition(const Evaluation& evaluation, const Tensors& weights, const Tensors& analytic) {
    const Tensors again = gradients_or_zeros(evaluation.outputs, evaluation.wanted, weights, {.retain_graph = true});
    for (std::size_t i = 0; i < checked_.size(); ++i)
      if (!bit_equal(again[i], analytic[i]))
        fail(fmt::format("two backward passes over one graph give different bits for {}", label(checked_[i])));
    const Evaluation repeated(function_, inputs_);
    if (repeated.outputs.size() != evaluation.outputs.size())
      return fail(fmt::format("the function returned {} floating tensors, and {} in a second run",
                              evaluation.outputs.size(), repeated.outputs.size()));
    const Tensors other = gradients_or_zeros(repeated.outputs, repeated.wanted, weights, {});
    for (std::size_t i = 0; i < repeated.outputs.size(); ++i)
      if (!bit_equal(repeated.outputs[i], evaluation.outputs[i]))
        fail(fmt::format("two runs of the function give different bits in floating output {}", i));
    for (std::size_t i = 0; i < checked_.size(); ++i)
      if (!bit_equal(other[i], analytic[i]))
        fail(fmt::format("two runs of function and backward give different bits for {}", label(checked_[i])));
  }

  void check_layouts(const Evaluation& evaluation, const Tensors& weights, const Tensors& analytic) {
    Tensors strided, constant, expanded;
    for (const Tensor& weight : weights) {
      strided.push_back(with_gaps(weight));
      constant.push_back(full(weight.shape(), 0.75, weight.options()));
      expanded.push_back(expanded_constant(weight, 0.75));
    }
    const auto run = [&](const Tensors& seeds) {
      return gradients_or_zeros(evaluation.outputs, evaluation.wanted, seeds, {.retain_graph = true});
    };
    expect_close("a strided output gradient", run(strided), analytic);
    if (!report_.passed) return;
    expect_close("an expanded output gradient", run(expanded), run(constant));
  }

  void expect_close(const char* what, const Tensors& found, const Tensors& expected) {
    for (std::size_t i = 0; i < checked_.size(); ++i)
      if (!are_close(found[i], expected[i], tolerance_))
        fail(fmt::format("{} gives a different gradient of {} than the same contiguous numbers (differs by {:.3g})",
                         what, label(checked_[i]), max_difference(found[i], expected[i])));
  }

  void compare(const Tensors& analytic, const Tensors& weights) {
    FiniteDifference difference(function_, inputs_, weights);
    Dependences dependences(function_, inputs_);
    std::int64_t elements = 0, wrong_elements = 0;
    double worst = -1.0;
    std::int64_t worst_index = 0;
    std::string wrong_by_input;
    const bool coarse = coarsest(weights) > unit_roundoff(DType::f64);  // rounding of outputs is visible
    for (std::size_t k = 0; k < checked_.size(); ++k) {
      ComparedGradient compared(difference, checked_[k], analytic[k], tolerance_, epsilon());
      if (coarse && !compared.all_agree()) compared.allow_for_noise();
      if (coarse && compared.is_lost() && !(compared.is_flat() && options_.allow_unused)) {
        fail(
            fmt::format("{} {} is too coarse to tell its gradient from zero: every difference may be the outputs' "
                        "rounding; check in f64, or a function of fewer elements",
                        label(checked_[k]), describe(inputs_[checked_[k]])));
        return;
      }
      std::int64_t wrong = 0;
      for (std::size_t e = 0; e < compared.values.size(); ++e) {
        FiniteDifference::Derivative& slope = compared.slopes[e];
        // If rounding hides the change of an output, the output takes part. If it does not depend on the element, it
        // does not.
        if (coarse && !compared.agrees(e) && compared.off(e) <= compared.tolerated(e) + slope.hidden)
          slope.rounding = std::max(
              slope.rounding,
              difference.central(checked_[k], static_cast<std::int64_t>(e), epsilon(), dependences.of(k, e)).rounding);
        if (coarse && !compared.agrees(e)) compared.extrapolate(e);
        if (tolerance_.exact && (!compared.agrees(e) || (tolerance_.grows && compared.is_lost(e))))
          compared.search_step(e);
        const double excess = compared.excess(e);
        if (excess > 1.0) ++wrong;
        if (excess <= worst) continue;
        worst = excess;
        worst_index = static_cast<std::int64_t>(e);
        report_.input = static_cast<int>(checked_[k]);
        report_.analytic = compared.values[e];
        report_.numeric = compared.slopes[e].value;
        rounding_ = compared.rounding(e);
        hidden_ = compared.slopes[e].hidden;
        absolute_ = compared.absolute;
        epsilon_ = compared.steps[e];
      }
      if (wrong > 0 && report_.input == static_cast<int>(checked_[k]))
        ratio_ = describe_ratio(compared, static_cast<std::size_t>(worst_index), inputs_[checked_[k]].shape());
      elements += analytic[k].numel();
      wrong_elements += wrong;
      wrong_by_input +=
          fmt::format("{}{} of {} of {}", k == 0 ? "" : ", ", wrong, compared.values.size(), label(checked_[k]));
    }
    if (elements == 0) {
      report_.text = fmt::format("{} passed: the inputs are empty", name_);
      return;
    }
    report_.index = unravel(worst_index, input().shape());
    report_.passed = wrong_elements == 0;
    report_.text = report_.passed ? fmt::format("{} passed: {} of {}, largest relative error {:.2g}{}", name_,
                                                plural(elements, "element"), plural(std::ssize(checked_), "input"),
                                                relative_error_of_worst(), place())
                                  : failure(difference, worst_index, wrong_by_input);
    if (!report_.passed) {
      const auto line = [&](const char* head, const std::string& text) {
        if (!text.empty()) report_.text += fmt::format("\n  {:<15} {}", head, text);
      };
      line("operator", blamed_operators(function_, difference, static_cast<std::size_t>(report_.input), worst_index,
                                        std::min(epsilon_, epsilon()), 4.0 * tolerance_.relative));
      line("Jacobian", jacobians(weights));
    }
  }

  std::string failure(FiniteDifference& difference, std::int64_t index, const std::string& wrong_by_input) const {
    const auto input = static_cast<std::size_t>(report_.input);
    const auto [right, left] = difference.one_sided(input, index, epsilon_);
    const double curved =
        std::max(1e-2, 4.0 * std::min(epsilon_, epsilon())) * std::max(std::abs(right), std::abs(left));
    const bool kink = !(std::abs(right - left) <= curved + 4.0 * (rounding_ + hidden_));
    const std::string of_rounding = rounding_ == 0.0 ? "" : fmt::format(" + {:.3g} for rounding", rounding_);
    return fmt::format(
        "{} failed{}\n"
        "  analytic        {:.10g}\n"
        "  numeric         {:.10g}  (central difference, epsilon {:.3g})\n"
        "  ratio           {}\n"
        "  relative error  {:.3g}  (allowed: {:.3g} + {:g} |numeric|{})\n"
        "  one-sided       {:.10g} from the right, {:.10g} from the left: {}\n"
        "  wrong elements  {}",
        name_, place(), report_.analytic, report_.numeric, epsilon_, ratio_, relative_error_of_worst(), absolute_,
        tolerance_.relative, of_rounding, right, left,
        kink ? "they disagree, a kink or jump is near; check at another point" : "they agree, no kink is near",
        wrong_by_input);
  }

  /// Returns both Jacobians by the input with the worst element, side by side; empty beyond 6 x 6.
  std::string jacobians(const Tensors& weights) const {
    constexpr std::int64_t most = 6;
    std::int64_t rows = 0;
    for (const Tensor& weight : weights) rows += weight.numel();
    const std::int64_t columns = input().numel();
    if (rows > most || columns > most) return "";
    const Evaluation evaluation(function_, inputs_);
    const auto k = static_cast<std::size_t>(std::ranges::find(checked_, static_cast<std::size_t>(report_.input)) -
                                            checked_.begin());
    std::vector<Tensors> seeds;
    std::vector<std::string> lines;
    for (std::size_t o = 0; o < weights.size(); ++o)
      for (std::int64_t i = 0; i < weights[o].numel(); ++i) {
        Tensors& one = seeds.emplace_back();
        for (const Tensor& weight : weights) one.push_back(zeros(weight.shape(), weight.options()));
        one[o].alias({{}, {}, i}).fill(1.0);
        lines.emplace_back();
        for (const double value :
             gradients_or_zeros(evaluation.outputs, evaluation.wanted, one, {.retain_graph = true})[k]
                 .to_vector<double>())
          lines.back() += fmt::format("{:<12.4g}", value);
      }
    std::string text = fmt::format("{:<{}}numeric", "analytic", 12 * columns);
    for (std::size_t row = 0; row < lines.size(); ++row) {  // last: it moves tensors that the graph has saved
      FiniteDifference difference(function_, inputs_, seeds[row]);
      for (std::int64_t e = 0; e < columns; ++e)
        lines[row] +=
            fmt::format("{:<12.4g}", difference.central(static_cast<std::size_t>(report_.input), e, epsilon_).value);
      text += fmt::format("\n{:<17} {}", "", lines[row].substr(0, lines[row].find_last_not_of(' ') + 1));
    }
    return text;
  }

  std::string place() const {
    return fmt::format(" at element {} of {} {}", to_string(report_.index),
                       label(static_cast<std::size_t>(report_.input)), describe(input()));
  }
  std::string label(std::size_t input) const { return input_label(options_, input); }
  const Tensor& input() const { return inputs_[static_cast<std::size_t>(report_.input)]; }
  double epsilon() const { return options_.epsilon.value_or(tolerance_.exact ? 1e-6 : std::cbrt(roundoff_)); }
  double relative_error_of_worst() const {
    const double scale = std::max(std::abs(report_.analytic), std::abs(report_.numeric));
    return scale == 0.0 ? 0.0 : std::abs(report_.analytic - report_.numeric) / scale;
  }

  const char* name_;
  const TensorFunction& function_;
  const Tensors& inputs_;
  const GradcheckOptions options_;
  double roundoff_ = unit_roundoff(DType::f64);  // of the coarsest checked input or output
  Tolerance tolerance_;
  double rounding_ = 0.0;  // of the worst element
  double hidden_ = 0.0;    // of the worst element: the rounding of all outputs
  double absolute_ = 0.0;  // of its input
  double epsilon_ = 0.0;   // of the worst element
  std::string ratio_;
  std::vector<std::size_t> checked_;
  GradcheckReport report_;
};

}  // namespace

GradcheckReport gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs, GradcheckOptions options) {
  const Tensors leaves = leaves_of(inputs);
  return Check("gradcheck", function, leaves, options).run();
}

GradcheckReport gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                              GradcheckOptions options) {
  const Tensors leaves = leaves_of(inputs);
  const GradcheckReport first = Check("gradgradcheck", function, leaves, options).run_contributions();
  if (!first) return first;

  // The gradient is a function of the inputs and of the output gradients. With grad mode on it is recorded itself; with
  // grad mode off (finite differences) it equals the gradient of a training step.
  const auto count = static_cast<std::ptrdiff_t>(leaves.size());
  const TensorFunction gradient = [&](const Tensors& point) {
    const bool create_graph = grad_enabled();
    const Tensors weights(point.begin() + count, point.end());
    const Evaluation evaluation(function, Tensors(point.begin(), point.begin() + count));
    return gradients_or_zeros(evaluation.outputs, evaluation.wanted, weights, {.create_graph = create_graph});
  };

  Tensors point = leaves;
  while (options.names.size() < leaves.size()) options.names.push_back(input_label(options, options.names.size()));
  options.names.resize(leaves.size());
  for (Tensor& weight : random_weights(Evaluation(function, leaves).outputs, options.seed + 1)) {
    options.names.push_back(fmt::format("output gradient {}", point.size() - leaves.size()));
    point.push_back(weight.set_requires_grad());
  }
  options.allow_unused = true;  // a gradient may depend on fewer inputs than its function
  Check check("gradgradcheck", gradient, point, options);

  const Tensors recorded = Evaluation(gradient, point).outputs;
  NoGradGuard guard;
  const Tensors plain = gradient(point);
  const Tolerance tolerance(options, coarsest(plain));
  for (std::size_t i = 0; i < plain.size(); ++i)
    if (!are_close(recorded[i], plain[i], tolerance))
      return {{false, fmt::format("gradgradcheck failed: gradient {} differs by {:.3g} with create_graph", i,
                                  max_difference(recorded[i], plain[i]))}};
  return check.run();
}

GradcheckReport check_module(bool twice, const std::vector<std::pair<std::string, Tensor>>& parameters,
                             const TensorFunction& function, const Tensors& inputs, GradcheckOptions options) {
  Tensors points = inputs;
  for (std::size_t i = options.names.size(); i < inputs.size(); ++i)
    options.names.push_back(fmt::format("input {}", i));
  options.names.resize(inputs.size());
  for (const auto& [name, parameter] : parameters) {
    points.push_back(parameter);
    options.names.push_back("parameter " + name);
  }
  RandomLog drawn;
  bool first = true;
  const TensorFunction evaluate = [&](const Tensors& x) {
    const RandomLogGuard guard(drawn, first ? RandomLogGuard::records : RandomLogGuard::replays);
    first = false;
    return function(Tensors(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(inputs.size())));
  };
  return twice ? gradgradcheck(evaluate, points, options) : gradcheck(evaluate, points, options);
}

}  // namespace poolgrad
