#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/error.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"

namespace poolgrad {
namespace {

/// A dimension's name: a letter, or a digit for a dimension of "...", '0' for the last.
using Label = char;
using Labels = std::string;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool mentions(std::string_view labels, Label label) { return labels.find(label) != std::string_view::npos; }

/// The equation and its operands, also for errors.
class Equation {
 public:
  Equation(std::string_view text, const std::vector<Tensor>& operands);

  std::vector<Labels> inputs;  // for each operand, one label per dimension
  Labels output;

  template <class E>
  [[noreturn]] void refuse(const std::string& reason) const {
    std::string text = "[einsum] " + reason + " in \"" + text_ + "\"";
    for (std::size_t i = 0; i < operands_.size(); ++i)
      text += (i ? ", operand " : ": operand ") + std::to_string(i) + " " + describe(operands_[i]);
    throw E(text);
  }

 private:
  /// Returns the labels of `term`.
  Labels expanded(std::string_view term, int dims_of_ellipsis) const;

  std::string text_;
  const std::vector<Tensor>& operands_;
};

Labels Equation::expanded(std::string_view term, int dims_of_ellipsis) const {
  Labels labels;
  for (std::size_t i = 0; i < term.size(); ++i) {
    if (is_letter(term[i])) {
      labels += term[i];
    } else if (term.substr(i, 3) == "..." && !mentions(term.substr(i + 3), '.')) {
      for (int d = dims_of_ellipsis - 1; d >= 0; --d) labels += static_cast<Label>('0' + d);
      i += 2;
    } else {
      refuse<ValueError>(std::string("unexpected '") + term[i] + "'");
    }
  }
  return labels;
}

Equation::Equation(std::string_view text, const std::vector<Tensor>& operands) : text_(text), operands_(operands) {
  if (operands.empty()) throw ValueError("[einsum] no operands for \"" + text_ + "\"");
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (!operands[i].defined()) throw ValueError("[einsum] operand " + std::to_string(i) + " is undefined");
  std::string equation = text_;
  std::erase(equation, ' ');
  const std::size_t arrow = equation.find("->");
  std::vector<std::string> terms(1);
  for (const char c : equation.substr(0, arrow))
    if (c == ',')
      terms.emplace_back();
    else
      terms.back() += c;
  if (terms.size() != operands.size())
    refuse<ValueError>(std::to_string(operands.size()) + " operands for " + std::to_string(terms.size()) + " terms");

  int most = 0;  // dimensions of "..."
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const int letters = static_cast<int>(std::count_if(terms[i].begin(), terms[i].end(), is_letter));
    const int others = mentions(terms[i], '.') ? std::max(operands[i].dim() - letters, 0) : 0;
    inputs.push_back(expanded(terms[i], others));
    if (static_cast<int>(inputs[i].size()) != operands[i].dim())
      refuse<ShapeError>("operand " + std::to_string(i) + " has " + std::to_string(operands[i].dim()) +
                         " dimensions, and its term \"" + terms[i] + "\" names " + std::to_string(inputs[i].size()));
    most = std::max(most, others);
  }

  const Labels all = [&] {
    Labels joined;
    for (const Labels& labels : inputs) joined += labels;
    return joined;
  }();
  if (arrow != std::string::npos) {
    output = expanded(std::string_view(equation).substr(arrow + 2), most);
    for (const Label label : output)
      if (std::count(output.begin(), output.end(), label) > 1)
        refuse<ValueError>(std::string("the result names '") + label + "' twice");
    for (int d = 0; d < most; ++d)
      if (!mentions(output, static_cast<Label>('0' + d))) refuse<ValueError>("the result lacks the \"...\"");
  } else {
    for (int d = most - 1; d >= 0; --d) output += static_cast<Label>('0' + d);
    Labels sorted = all;
    std::sort(sorted.begin(), sorted.end());
    for (const Label label : sorted)
      if (is_letter(label) && std::count(all.begin(), all.end(), label) == 1) output += label;
  }
  for (const Label label : output)
    if (!mentions(all, label)) refuse<ValueError>(std::string("no operand names '") + label + "'");

  // A letter has one size; the dimensions of "..." broadcast.
  struct Size {
    std::int64_t size = -1;
    std::size_t operand = 0;
  } size_of_letter[128];
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (std::size_t d = 0; d < inputs[i].size(); ++d) {
      const std::int64_t own = operands[i].shape()[static_cast<int>(d)];
      auto& [size, operand] = size_of_letter[static_cast<std::size_t>(inputs[i][d])];
      const bool broadcasts = !is_letter(inputs[i][d]);
      if (size == -1 || (broadcasts && size == 1)) {
        size = own;
        operand = i;
      } else if (size != own && !(broadcasts && own == 1)) {
        refuse<ShapeError>((broadcasts ? std::string("\"...\"") : std::string("'") + inputs[i][d] + "'") + " is " +
                           std::to_string(size) + " of operand " + std::to_string(operand) + " and " +
                           std::to_string(own) + " of operand " + std::to_string(i));
      }
    }
}

/// A tensor with a label for each of its dimensions, no label twice.
struct Labelled {
  Tensor tensor;
  Labels labels;

  /// Takes the diagonal for each letter that the term repeats.
  Labelled(const Tensor& operand, const Labels& names) : tensor(operand), labels(names) {
    for (std::size_t d = 0; d < labels.size();) {
      const std::size_t again = labels.find(labels[d], d + 1);
      if (again == Labels::npos) {
        ++d;
        continue;
      }
      tensor = diagonal(tensor, 0, static_cast<std::int64_t>(d), static_cast<std::int64_t>(again));
      labels += labels[d];
      labels.erase(again, 1);
      labels.erase(d, 1);
    }
  }

  /// Sums over letters that are not needed.
  void keep(std::string_view needed) {
    Dims dims;
    Labels kept;
    for (std::size_t d = 0; d < labels.size(); ++d)
      if (mentions(needed, labels[d]))
        kept += labels[d];
      else
        dims.append(static_cast<std::int64_t>(d));
    if (!dims.empty()) tensor = sum(tensor, dims);
    labels = kept;
  }
  /// Returns the dimensions in the order of `order`, with size 1 for missing ones.
  Tensor in_order(std::string_view order) const {
    Dims present;
    for (const Label label : order)
      if (mentions(labels, label)) present.append(static_cast<std::int64_t>(labels.find(label)));
    Tensor out = permute(tensor, present);
    for (std::size_t d = 0; d < order.size(); ++d)
      if (!mentions(labels, order[d])) out = unsqueeze(out, static_cast<std::int64_t>(d));
    return out;
  }
};

/// Returns the product of `count` sizes from `first` on.
std::int64_t merged_size(const Shape& shape, std::size_t first, std::size_t count) {
  std::int64_t size = 1;
  for (std::size_t d = first; d < first + count; ++d) size *= shape[static_cast<int>(d)];
  return size;
}

Shape first_dims(const Shape& shape, std::size_t count) {
  Shape first;
  for (std::size_t d = 0; d < count; ++d) first.append(shape[static_cast<int>(d)]);
  return first;
}

/// (batch..., rows..., columns...) -> (batch..., rows, columns). If that exceeds the limit of dimensions, expands the
/// batches to `batches` and merges them into one.
Tensor as_matrices(const Tensor& x, const Shape& batches, std::size_t rows, std::size_t columns) {
  const auto batch = static_cast<std::size_t>(batches.rank());
  Shape shape = first_dims(x.shape(), batch);
  const std::int64_t height = merged_size(x.shape(), batch, rows);
  const std::int64_t width = merged_size(x.shape(), batch + rows, columns);
  if (batches.rank() + 2 <= max_rank) {
    shape.append(height);
    shape.append(width);
    return reshape(x, shape);
  }
  Shape whole = batches;
  for (int d = batches.rank(); d < x.dim(); ++d) whole.append(x.shape()[d]);
  return reshape(expand(x, whole), {merged_size(batches, 0, batch), height, width});
}

/// Returns the product of a and b, summed over letters that only these two have.
Labelled combined(const Labelled& a, const Labelled& b, std::string_view needed) {
  Labels batch, inner, left, right;
  for (const Label label : a.labels)
    (!mentions(b.labels, label) ? left : mentions(needed, label) ? batch : inner) += label;
  for (const Label label : b.labels)
    if (!mentions(a.labels, label)) (is_letter(label) ? right : batch) += label;
  // Dimensions of "..." are batches even if one side lacks them.
  std::erase_if(left, [&](Label label) { return !is_letter(label) && (batch += label, true); });
  if (inner.empty()) {
    const Labels order = batch + left + right;
    return {a.in_order(order) * b.in_order(order), order};
  }
  const Tensor rows = a.in_order(batch + left + inner), columns = b.in_order(batch + inner + right);
  Shape shape = *broadcast_shapes(first_dims(rows.shape(), batch.size()), first_dims(columns.shape(), batch.size()));
  const Tensor product = matmul(as_matrices(rows, shape, left.size(), inner.size()),
                                as_matrices(columns, shape, inner.size(), right.size()));
  for (const Label label : left) shape.append(a.tensor.size(static_cast<std::int64_t>(a.labels.find(label))));
  for (const Label label : right) shape.append(b.tensor.size(static_cast<std::int64_t>(b.labels.find(label))));
  return {reshape(product, shape), batch + left + right};
}

}  // namespace

Tensor einsum(std::string_view text, const std::vector<Tensor>& operands, CallSite) {
  const Equation equation(text, operands);
  for (const Tensor& operand : operands)
    if (operand.device() != operands[0].device()) equation.refuse<DeviceError>("operands live on different devices");
  // Returns the letters needed by the result or by operands from i on.
  const auto needed_from = [&](std::size_t i) {
    Labels labels = equation.output;
    for (; i < operands.size(); ++i) labels += equation.inputs[i];
    return labels;
  };
  Labelled result(operands[0], equation.inputs[0]);
  result.keep(needed_from(1));
  for (std::size_t i = 1; i < operands.size(); ++i) {
    Labelled next(operands[i], equation.inputs[i]);
    next.keep(needed_from(i + 1) + result.labels);
    result = combined(result, next, needed_from(i + 1));
  }
  return result.in_order(equation.output);
}

}  // namespace poolgrad
