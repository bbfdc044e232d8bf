#include "tests/autograd/integer_operators.h"

#include <initializer_list>

#include "autograd/operators.h"
#include "tensor/creation.h"

namespace poolgrad::testing {
namespace {

using Tensors = std::vector<Tensor>;

/// Indices on x's device.
Tensor places(const Tensor& x, std::initializer_list<std::int64_t> values) {
  return to(from_data<std::int64_t>(values, {static_cast<std::int64_t>(values.size())}), x.device());
}
/// y as an index or a condition.
Tensor as_index(const Tensor& y) { return to(y, DType::i64); }
Tensor as_truth(const Tensor& y) { return to(y, DType::boolean); }
/// Three values of x's dtype, on its device.
Tensor from_values(const Tensor& x) {
  switch (x.dtype()) {
    case DType::i64: return from_data<std::int64_t>({1, 0, 2}, 3, x.device());
    case DType::i32: return from_data<std::int32_t>({1, 0, 2}, 3, x.device());
    case DType::u8: return from_data<std::uint8_t>({1, 0, 2}, 3, x.device());
    default: return from_data<bool>({true, false, true}, 3, x.device());
  }
}
/// Three rows: their product does not overflow.
Tensor three_rows(const Tensor& x) { return slice(x, 0, 0, 3); }
Tensor changed(const Tensor& x, const std::function<void(Tensor&)>& change) {
  Tensor copy = clone(x);
  change(copy);
  return copy;
}

}  // namespace

const std::vector<IntegerOperators>& integer_operators() {
  using enum Takes;
  using T = Tensor;  // NOLINT: a table
  static const std::vector<IntegerOperators> table = {
      {{"zeros", "ones", "full"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {zeros({2, 3}, x.options()), ones({2, 3}, x.options()), full({5}, 1.0, x.options())};
       }},
      {{"zeros_like", "ones_like"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {zeros_like(x), ones_like(x)};
       }},
      {{"scalar"}, everything, [](const T& x, const T&) -> Tensors { return {scalar(1.0, x.options())}; }},
      {{"from_data"}, everything, [](const T& x, const T&) -> Tensors { return {from_values(x)}; }},
      {{"arange", "linspace"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {arange(0, 9, 2, x.options()), linspace(0, 200, 41, x.options()), linspace(7, 1, 4, x.options())};
       }},
      {{"eye"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {eye(70, 70, 0, x.options()), eye(2, 3, 1, x.options()), eye(3, 2, -2, x.options())};
       }},
      {{"randint"},
       everything,
       [](const T& x, const T&) -> Tensors {
         Generator generator(3);
         return {randint(0, 2, {37, 5}, x.options(), generator)};
       }},
      {{"add", "sub", "mul", "operator+", "operator*"},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         return {add(x, y), sub(x, y), mul(x, y), x + y[0], 2.0 * x};
       }},
      {{"operator-"},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         return {x - y, -x};
       }},
      {{"div", "operator/"},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         return {div(x, y), x / y[1]};
       }},
      {{"operator+=", "operator-=", "operator*=", "operator/="},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         return {changed(x, [&](T& z) { z += y; }), changed(x, [&](T& z) { z -= y; }),
                 changed(x, [&](T& z) { z *= y; }), changed(x, [&](T& z) { z /= y; })};
       }},
      {{"pow"},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         return {pow(x, y), pow(x, 2.0)};
       }},
      {{"fmod", "remainder"},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         return {fmod(x, y), remainder(x, y), fmod(x, 2.0), remainder(-x, 2.0), remainder(x, neg(y))};
       }},
      {{"maximum", "minimum"},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         return {maximum(x, y), minimum(x, y[2]), maximum(x, 1.0)};
       }},
      {{"affine"}, numbers, [](const T& x, const T&) -> Tensors { return {affine(x, 3.0, 2.0)}; }},
      {{"sum_to"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {sum_to(x, {1, x.shape()[1]})};
       }},
      {{"equal", "operator=="},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {equal(x, y), x == 1.0};
       }},
      {{"not_equal", "operator!="},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {not_equal(x, y), x != 1.0};
       }},
      {{"less", "operator<"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {less(x, y), x < 1.0};
       }},
      {{"less_equal", "operator<="},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {less_equal(x, y), x <= 1.0};
       }},
      {{"greater", "operator>"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {greater(x, y), x > 1.0};
       }},
      {{"greater_equal", "operator>="},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {greater_equal(x, y), x >= 1.0};
       }},
      {{"logical_and", "logical_or", "logical_not"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {logical_and(x, y), logical_or(x, y), logical_not(x)};
       }},
      {{"operator&", "operator|", "operator~"},
       bools,
       [](const T& x, const T& y) -> Tensors {
         return {x & y, x | y, ~x};
       }},
      {{"neg", "square"},
       numbers,
       [](const T& x, const T&) -> Tensors {
         return {neg(x), square(x)};
       }},
      {{"abs"}, numbers, [](const T& x, const T&) -> Tensors { return {abs(x)}; }},
      {{"sign", "floor", "ceil", "round"},
       numbers,
       [](const T& x, const T&) -> Tensors {
         return {sign(x), floor(x), ceil(x), round(x)};
       }},
      {{"clamp"},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         return {clamp(x, 0.0, 2.0), clamp(x, y[0], y), clamp(x, T(), y[1])};
       }},
      {{"isnan", "isfinite"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {isnan(x), isfinite(x)};
       }},
      {{"sum"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {sum(x), sum(x, 0), sum(x, -1, true)};
       }},
      {{"prod"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {prod(three_rows(x), 0), prod(slice(x, 1, 0, 4), 1)};
       }},
      {{"max", "min"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {max(x), max(x, 0), min(x, 1)};
       }},
      {{"cumsum", "cumprod"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {cumsum(x, 0), cumsum(x, 1), cumprod(three_rows(x), 0)};
       }},
      {{"sort", "topk"},
       everything,
       [](const T& x, const T&) -> Tensors {
         const Sorted by_rows = sort(x), by_columns = sort(x, 0, true), most = topk(x, 3);
         return {by_rows.values, by_rows.indices, by_columns.values, by_columns.indices, most.values, most.indices};
       }},
      {{"argsort"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {argsort(x), argsort(x, 0, true)};
       }},
      {{"any", "all"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {any(x, 0), all(x, 1), any(x)};
       }},
      {{"argmax", "argmin"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {argmax(x), argmin(x, 0)};
       }},
      {{"reshape", "flatten"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {reshape(transpose(x, 0, 1), -1), flatten(x)};
       }},
      {{"transpose", "permute", "movedim"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {transpose(x, 0, 1), permute(x, {1, 0}), movedim(x, 0, -1)};
       }},
      {{"slice", "select"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {slice(x, 1, 1, 4, 2), select(x, 0, 2)};
       }},
      {{"expand", "squeeze", "unsqueeze"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {expand(x, {2, x.shape()[0], x.shape()[1]}), squeeze(slice(x, 0, 1, 2), 0), unsqueeze(x, 1)};
       }},
      {{"split", "chunk", "unbind"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {split(x, {1, x.shape()[0] - 1}, 0)[1], chunk(x, 2, 1)[1], unbind(x)[1], unbind(x, -1)[2]};
       }},
      {{"diagonal"}, everything, [](const T& x, const T&) -> Tensors { return {diagonal(x, 1)}; }},
      {{"unfold"}, everything, [](const T& x, const T&) -> Tensors { return {unfold(x, 1, 2)}; }},
      {{"contiguous", "clone"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {contiguous(transpose(x, 0, 1)), clone(x)};
       }},
      {{"to"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {to(x, DType::f32), to(x, DType::i64), to(x, DType::boolean), to(y, DType::u8), to(x, DType::bf16)};
       }},
      {{"cat", "stack"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {cat({x, y}, 1), stack({x, y}, 1)};
       }},
      {{"pad"}, everything, [](const T& x, const T&) -> Tensors { return {pad(x, 0, 1, 2, 1.0)}; }},
      {{"tril", "triu"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {tril(x, 1), triu(x, -1)};
       }},
      {{"diag"}, everything, [](const T& x, const T&) -> Tensors { return {diag(x[0], 1)}; }},
      {{"outer"}, numbers, [](const T& x, const T& y) -> Tensors { return {outer(x[0], y[1])}; }},
      {{"one_hot"},
       indices,
       [](const T&, const T& y) -> Tensors {
         return {one_hot(y, 3), one_hot(y, 3, DType::u8)};
       }},
      {{"roll", "flip"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {roll(x, 1, 0), flip(x, {0, 1})};
       }},
      {{"repeat", "tile"},
       everything,
       [](const T& x, const T&) -> Tensors {
         return {repeat(x, 2, 0), tile(x, {2, 3})};
       }},
      {{"index_select", "gather"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {index_select(x, 1, places(x, {3, 0, 0, 2})), gather(x, 0, as_index(y))};
       }},
      {{"index_add", "scatter", "scatter_add"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {index_add(x, 0, places(x, {2, 0, 2}), three_rows(x)), scatter(x, 0, as_index(y), x),
                 scatter_add(x, 1, as_index(y), x)};
       }},
      {{"scatter_reduce"},
       numbers,
       [](const T& x, const T& y) -> Tensors {
         using Reduction = ScatterReduction;
         Tensors results;
         for (const Reduction reduction : {Reduction::sum, Reduction::prod, Reduction::amax, Reduction::amin})
           for (const bool include_self : {true, false})
             results.push_back(scatter_reduce(x, 0, as_index(y), y, reduction, include_self));
         return results;
       }},
      {{"index_put"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         const T at = places(x, {2, -2, 2});
         return {index_put(x, {at}, three_rows(y), true), index_put(x, {at, places(x, {0, 3, 1})}, y[{0, 0}]),
                 index_put(x, {as_truth(y)}, y[{0, 0}]), x[at], x[as_truth(y)]};
       }},
      {{"where"},
       everything,
       [](const T& x, const T& y) -> Tensors {
         return {where(as_truth(y), x, y), where(as_truth(y), x, 1.0)};
       }},
      {{"masked_fill"},
       everything,
       [](const T& x, const T& y) -> Tensors { return {masked_fill(x, as_truth(y), 1.0)}; }},
  };
  return table;
}

}  // namespace poolgrad::testing
