#include <limits>
#include <utility>

#include "attention/attend.h"
#include "attention/modules/heads.h"
#include "attention/ring/ring.h"
#include "autograd/memory/checkpoint_tiled.h"
#include "autograd/operators.h"
#include "tests/autograd/operator_table.h"

namespace poolgrad::testing {

void add_products(std::vector<Operator>& table) {
  Numbers numbers(37);
  const auto pair = [&](const Shape& a, const Shape& b) -> OperatorCase {
    return {to_string(a) + " x " + to_string(b), {numbers.normal(a), numbers.normal(b)}};
  };
  table.push_back({.name = "matmul",
                   .records = {"matmul"},
                   .run = [](const auto& in) -> Tensors { return {matmul(in[0], in[1])}; },
                   .cases = {pair({3, 4}, {4, 5}), pair({2, 3, 4}, {4, 5}), pair({2, 3, 4}, {2, 4, 5}),
                             pair({2, 1, 3, 4}, {5, 4, 2}), pair({3, 4}, {2, 4, 5}), pair({4}, {4}), pair({3, 4}, {4}),
                             pair({4}, {4, 3}), pair({2, 3, 4}, {4}), pair({7, 13}, {13, 5}), pair({3, 0}, {0, 4}),
                             pair({0, 4}, {4, 5}), pair({0, 3, 4}, {4, 5}), pair({1, 1}, {1, 1})},
                   .rounding = 4.0});
  const auto layer = [&](const Shape& x, const Shape& weight) -> OperatorCase {
    return {to_string(x), {numbers.normal(x), numbers.normal(weight), numbers.normal({weight[0]})}};
  };
  table.push_back({.name = "linear",
                   .records = {"linear", "matmul"},
                   .run = [](const auto& in) -> Tensors { return {linear(in[0], in[1], in[2])}; },
                   .cases = {layer({3, 4}, {5, 4}), layer({2, 3, 4}, {5, 4}), layer({4}, {5, 4}), layer({0, 4}, {5, 4}),
                             layer({3, 0}, {5, 0})},
                   .rounding = 4.0});
  table.push_back({.name = "linear without bias",
                   .records = {"linear", "matmul"},
                   .run = [](const auto& in) -> Tensors { return {linear(in[0], in[1])}; },
                   .cases = {pair({3, 4}, {5, 4}), pair({2, 2, 2, 4}, {1, 4})},
                   .rounding = 4.0});
}

/// einsum, convolutions and pooling: products over letters and windows.
void add_windows(std::vector<Operator>& table) {
  Numbers numbers(38);
  const auto letters = [&](const std::string& equation, std::set<std::string> records,
                           const std::vector<Shape>& shapes) {
    OperatorCase example{equation, {}};
    for (const Shape& shape : shapes) example.inputs.push_back(numbers.normal(shape));
    table.push_back({.name = "einsum " + equation,
                     .records = std::move(records),
                     .run = [equation](const auto& in) -> Tensors { return {einsum(equation, in)}; },
                     .cases = {std::move(example)},
                     .rounding = 16.0});
  };
  letters("bqhd,bkhd->bhqk", {"matmul"}, {{2, 3, 2, 4}, {2, 5, 2, 4}});
  letters("ii", {"diagonal", "sum"}, {{3, 3}});
  letters("i,j->ji", {"mul"}, {{3}, {2}});
  letters("...ij,jk,k->...i", {"matmul"}, {{2, 3, 4}, {4, 2}, {2}});

  const auto convolution = [&](std::string name, ConvOptions options, const Shape& x, const Shape& weight) {
    OperatorCase example{to_string(x) + ", " + to_string(weight), {numbers.normal(x), numbers.normal(weight)}};
    example.inputs.push_back(numbers.normal({weight[0]}));
    table.push_back({.name = std::move(name),
                     .records = {"conv2d"},
                     .run = [options](const auto& in) -> Tensors {
                       return {in[0].dim() == 4 ? conv2d(in[0], in[1], in[2], options)
                                                : conv1d(in[0], in[1], in[2], options)};
                     },
                     .cases = {std::move(example)},
                     .rounding = 4.0});
  };
  convolution("conv2d", {}, {2, 2, 4, 3}, {3, 2, 2, 2});
  convolution("conv2d, strided", {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}}, {1, 2, 4, 5}, {2, 2, 3, 2});
  convolution("conv2d, grouped", {.padding = 1, .groups = 2}, {2, 4, 3, 2}, {2, 2, 3, 3});
  convolution("conv2d of points", {}, {2, 3, 2, 2}, {2, 3, 1, 1});
  convolution("conv2d of nothing", {}, {0, 2, 3, 3}, {2, 2, 2, 2});
  convolution("conv1d", {.stride = 2, .padding = 2}, {2, 2, 5}, {3, 2, 3});

  const auto pooling = [&](std::string name, const std::string& record, std::function<Tensor(const Tensor&)> function,
                           const std::vector<Shape>& shapes) {
    table.push_back(one_input(std::move(name), {record, "unfold"}, std::move(function), shapes));
    table.back().rounding = 4.0;
  };
  pooling("max_pool2d", "max", [](const Tensor& x) { return max_pool2d(x, 2, 1, 1); }, {{2, 1, 3, 4}});
  pooling("avg_pool2d", "mean", [](const Tensor& x) { return avg_pool2d(x, {2, 3}, {}, {1, 0}); }, {{1, 2, 4, 6}});
  pooling("max_pool1d", "max", [](const Tensor& x) { return max_pool1d(x, 2); }, {{2, 1, 5}});
  pooling("avg_pool1d", "mean", [](const Tensor& x) { return avg_pool1d(x, 3, 2, 1); }, {{1, 2, 5}});
}

void add_reductions(std::vector<Operator>& table) {
  const auto add = [&](Operator entry, double rounding = 4.0) {
    entry.rounding = rounding;
    table.push_back(std::move(entry));
  };
  const std::vector<Shape> some = {{3, 4}, {2, 3, 5}, {37}, {}};
  add(one_input("sum", {"sum", "expand"}, [](const Tensor& x) { return sum(x); }, {{3, 4}, {37}, {}, {0, 3}}));
  add(one_input("sum of columns", {"sum"}, [](const Tensor& x) { return sum(x, {0}); }, {{3, 4}, {2, 3, 5}, {0, 3}}));
  add(one_input("sum, kept", {"sum"}, [](const Tensor& x) { return sum(x, {-1, 0}, true); }, {{3, 4}, {2, 3, 5}}));
  add(one_input(
      "mean", {"mean"}, [](const Tensor& x) { return mean(x); }, some));
  add(one_input("mean of rows", {"mean"}, [](const Tensor& x) { return mean(x, {-1}, true); }, {{3, 4}, {2, 3, 5}}));
  add(one_input("var", {"var", "mean", "sub"}, [](const Tensor& x) { return var(x, {-1}); },
                {{3, 4}, {2, 3, 5}, {37}}));
  add(one_input("prod", {"prod", "mul"}, [](const Tensor& x) { return prod(x); }, {{2, 3}, {5}, {}, {1, 2, 2}, {0}}),
      8);
  table.back().cases.push_back({"one zero", {Numbers::values({1, 0, -2})}});
  table.back().cases.push_back({"two zeros", {Numbers::values({0, 3, 0, 2})}});
  add(one_input("prod of columns", {"prod", "mul"}, [](const Tensor& x) { return prod(x, {0, 2}); }, {{2, 3, 2}}), 8);
  add(one_input(
          "max", {"max"}, [](const Tensor& x) { return max(x); }, some),
      1);
  add(one_input("max of rows", {"max"}, [](const Tensor& x) { return max(x, {-1}); }, {{3, 4}, {2, 3, 5}}), 1);
  add(one_input(
          "min", {"min"}, [](const Tensor& x) { return min(x); }, some),
      1);
  add(one_input("min of columns", {"min"}, [](const Tensor& x) { return min(x, {0}, true); }, {{3, 4}, {2, 3, 5}}), 1);
  add(one_input("logsumexp", {"logsumexp", "softmax"}, [](const Tensor& x) { return logsumexp(x, -1); },
                {{3, 4}, {2, 3, 37}, {5}}));
  add(one_input("logsumexp of columns", {"logsumexp", "permute"}, [](const Tensor& x) { return logsumexp(x, 0, true); },
                {{3, 4}, {2, 3, 5}}));
  add(one_input("cumsum", {"cumsum"}, [](const Tensor& x) { return cumsum(x, -1); }, {{3, 4}, {37}, {2, 0}}));
  add(one_input("cumsum of columns", {"cumsum", "permute"}, [](const Tensor& x) { return cumsum(x, 0); },
                {{3, 4}, {2, 3, 5}}));
  add(one_input("cumprod", {"cumprod", "mul"}, [](const Tensor& x) { return cumprod(x, -1); },
                {{3, 4}, {7}, {1}, {2, 0}}),
      8);
  table.back().cases.push_back({"two zeros", {Numbers::values({2, 0, 3, 0, -2})}});
  add(one_input("cumprod of columns", {"cumprod", "permute"}, [](const Tensor& x) { return cumprod(x, 0); },
                {{3, 4}, {2, 3, 2}}),
      8);
  add(one_input("logcumsumexp", {"logcumsumexp", "logsumexp"}, [](const Tensor& x) { return logcumsumexp(x, -1); },
                {{3, 4}, {7}, {1}, {2, 0}}),
      8);
  table.back().cases.push_back({"far apart", {Numbers::values({-100, 0, 100, 99, -100})}});
  add(one_input("logcumsumexp of columns", {"logcumsumexp", "permute"},
                [](const Tensor& x) { return logcumsumexp(x, 0); }, {{3, 4}}),
      8);
  add(one_input("sort", {"gather", "scatter_add"}, [](const Tensor& x) { return sort(x).values; },
                {{3, 4}, {37}, {1}, {2, 0}}),
      1);
  add(one_input("sort of columns, descending", {"gather"}, [](const Tensor& x) { return sort(x, 0, true).values; },
                {{3, 4}, {2, 3, 5}}),
      1);
  add(one_input("topk", {"gather", "scatter_add"}, [](const Tensor& x) { return topk(x, 2).values; },
                {{3, 4}, {37}, {2, 3, 5}}),
      1);
  add(one_input("topk, smallest of columns", {"gather"}, [](const Tensor& x) { return topk(x, 2, 0, false).values; },
                {{3, 4}, {0, 3}}),
      1);
  table.back().cases.back() = {"(2, 0)", {Numbers(1).normal({2, 0})}};
  add(one_input(
      "norm", {"norm"}, [](const Tensor& x) { return norm(x); }, some));
  add(one_input("norm, 0", {"norm"}, [](const Tensor& x) { return norm(x, 0.0, {0}); }, {{3, 4}, {2, 3, 2}}));
  add(one_input("norm, 1/2", {"norm", "power"}, [](const Tensor& x) { return norm(x, 0.5, {0}); }, {{3, 4}, {2, 3, 2}}),
      16);
  add(one_input("norm, 1", {"norm", "sign"}, [](const Tensor& x) { return norm(x, 1.0, {0}); }, {{3, 4}, {2, 3, 2}}));
  add(one_input(
          "norm, 3", {"norm", "power"}, [](const Tensor& x) { return norm(x, 3.0); }, some),
      8);
  add(one_input("norm, 2", {"norm"}, [](const Tensor& x) { return norm(x, 2.0, -1, true); }, {{3, 4}, {2, 3, 2}}));
  add(one_input("norm, inf", {"norm", "sign"},
                [](const Tensor& x) {
                  return norm(x, std::numeric_limits<double>::infinity(), {0, -1});
                },
                {{3, 4}}));
  add(one_input("stddev", {"norm", "mean"}, [](const Tensor& x) { return stddev(x, 0); }, {{3, 4}, {5}}), 16);
}

void add_rows(std::vector<Operator>& table) {
  const auto add = [&](Operator entry) { table.push_back(std::move(entry)); };
  Numbers numbers(41);
  add(one_input("softmax", {"softmax"}, [](const Tensor& x) { return softmax(x); }, {{3, 4}, {2, 3, 37}, {1}, {0, 3}}));
  table.back().cases.push_back({"far apart", {Numbers::values({0, 100, -100, 99})}});
  add(one_input("softmax of columns", {"softmax", "permute"}, [](const Tensor& x) { return softmax(x, 0); },
                {{3, 4}, {2, 3, 5}}));
  add(one_input("log_softmax", {"log_softmax"}, [](const Tensor& x) { return log_softmax(x); },
                {{3, 4}, {2, 3, 37}, {1}, {0, 3}}));
  table.back().cases.push_back({"far apart", {Numbers::values({0, 100, -100, 99})}});
  add(one_input("log_softmax of columns", {"log_softmax", "permute"}, [](const Tensor& x) { return log_softmax(x, 1); },
                {{2, 3, 5}}));
  for (Operator& entry : table)
    if (entry.records.contains("softmax") || entry.records.contains("log_softmax")) entry.rounding = 4.0;

  add({.name = "layer_norm",
       .records = {"layer_norm"},
       .run = [](const auto& in) -> Tensors { return {layer_norm(in[0], in[1], in[2], 1e-3)}; },
       .cases = {{"matrix", {numbers.normal({3, 5}), numbers.normal({5}), numbers.normal({5})}},
                 {"odd length", {numbers.normal({2, 3, 37}), numbers.normal({37}), numbers.normal({37})}},
                 {"no rows", {numbers.normal({0, 5}), numbers.normal({5}), numbers.normal({5})}}},
       .rounding = 8.0});
  add({.name = "layer_norm without bias",
       .records = {"layer_norm"},
       .run = [](const auto& in) -> Tensors { return {layer_norm(in[0], in[1], {}, 1e-3)}; },
       .cases = {{"matrix", {numbers.normal({3, 5}), numbers.normal({5})}}},
       .rounding = 8.0});
  add(one_input("layer_norm without weight", {"layer_norm"},
                [](const Tensor& x) { return layer_norm(x, {}, {}, 1e-3); }, {{3, 5}, {7}}));
  table.back().rounding = 8.0;
  add({.name = "rms_norm",
       .records = {"rms_norm"},
       .run = [](const auto& in) -> Tensors { return {rms_norm(in[0], in[1], 1e-3)}; },
       .cases = {{"matrix", {numbers.normal({3, 5}), numbers.normal({5})}},
                 {"odd length", {numbers.normal({2, 3, 37}), numbers.normal({37})}},
                 {"no rows", {numbers.normal({0, 5}), numbers.normal({5})}}},
       .rounding = 8.0});
  add(one_input("rms_norm without weight", {"rms_norm"}, [](const Tensor& x) { return rms_norm(x, {}, 1e-3); },
                {{3, 5}, {7}}));
  table.back().rounding = 8.0;

  const auto entropy = [&](std::string name, CrossEntropyOptions options) {
    add({.name = std::move(name),
         .records = {"cross_entropy"},
         .run = [options](const auto& in) -> Tensors { return {cross_entropy(in[0], in[1], options)}; },
         .cases = {{"matrix", {numbers.normal({6, 5}), numbers.indices(5, {6})}},
                   {"batch", {numbers.normal({2, 3, 37}), numbers.indices(37, {2, 3})}},
                   {"one row", {numbers.normal({5}), numbers.indices(5, {})}},
                   {"no rows", {numbers.normal({0, 5}), numbers.indices(5, {0})}}},
         .rounding = 8.0});
  };
  entropy("cross_entropy", {});
  entropy("cross_entropy, sum", {.reduction = Reduction::sum});
  entropy("cross_entropy, none", {.reduction = Reduction::none});
  entropy("cross_entropy, ignoring", {.ignore_index = 2});
  entropy("cross_entropy, smoothed", {.ignore_index = 3, .label_smoothing = 0.25});

  const auto fused = [&](std::string name, CrossEntropyOptions options) {
    add({.name = std::move(name),
         .records = {"linear_cross_entropy"},
         .run = [options](const auto& in) -> Tensors { return {linear_cross_entropy(in[0], in[1], in[2], options)}; },
         .cases = {{"matrix", {numbers.normal({6, 3}), numbers.normal({5, 3}), numbers.indices(5, {6})}},
                   {"batch", {numbers.normal({2, 3, 4}), numbers.normal({7, 4}), numbers.indices(7, {2, 3})}},
                   {"no rows", {numbers.normal({0, 3}), numbers.normal({5, 3}), numbers.indices(5, {0})}}},
         .rounding = 16.0});
  };
  fused("linear_cross_entropy", {});
  fused("linear_cross_entropy, sum", {.reduction = Reduction::sum});
  fused("linear_cross_entropy, smoothed", {.ignore_index = 3, .label_smoothing = 0.25});

  add({.name = "mse_loss",
       .records = {"sub", "square", "mean"},
       .run = [](const auto& in) -> Tensors { return {mse_loss(in[0], in[1])}; },
       .cases = {{"matrix", {numbers.normal({3, 5}), numbers.normal({3, 5})}}},
       .rounding = 4.0});
  const auto loss = [&](std::string name, std::set<std::string> records,
                        std::function<Tensor(const Tensor&, const Tensor&)> function, const Tensor& a,
                        const Tensor& b) {
    add({.name = std::move(name),
         .records = std::move(records),
         .run = [function = std::move(function)](const auto& in) -> Tensors { return {function(in[0], in[1])}; },
         .cases = {{"matrix", {a, b}}},
         .rounding = 8.0});
  };
  loss(
      "l1_loss", {"sub", "abs", "mean"}, [](const Tensor& a, const Tensor& b) { return l1_loss(a, b); },
      numbers.normal({3, 5}), numbers.normal({3, 5}));
  loss(
      "huber_loss", {"sub", "clamp", "mul", "sum"},
      [](const Tensor& a, const Tensor& b) { return huber_loss(a, b, 0.75, Reduction::sum); }, numbers.normal({3, 5}),
      numbers.normal({3, 5}));
  loss(
      "binary_cross_entropy_with_logits", {"softplus", "mul", "mean"},
      [](const Tensor& a, const Tensor& b) { return binary_cross_entropy_with_logits(a, b); }, numbers.normal({3, 5}),
      numbers.between(0.0, 1.0, {3, 5}));
  loss(
      "kl_div", {"log", "mul", "sum", "mean"}, [](const Tensor& a, const Tensor& b) { return kl_div(a, b); },
      numbers.between(-3.0, -0.5, {3, 5}), numbers.between(0.1, 0.9, {3, 5}));
  loss(
      "nll_loss", {"gather", "sum"},
      [](const Tensor& a, const Tensor& b) { return nll_loss(a, b, {.ignore_index = 2}); },
      numbers.between(-3.0, -0.5, {6, 5}), numbers.indices(5, {6}));
  add(one_input(
      "checkpoint_tiled", {"tiles", "joined_tiles", "tanh", "mul"},
      [](const Tensor& x) { return checkpoint_tiled([](const Tensor& part) { return tanh(part) * part; }, x, 0, 2); },
      {{5, 3}, {2, 4}, {1, 2}}));
  add(one_input("rope_first_heads", {"rope"}, [](const Tensor& x) { return rope_first_heads(x, 2, 3, 100.0); },
                {{2, 3, 3, 4}, {1, 2, 2, 6}}));
  table.back().rounding = 4.0;
  add(one_input("rope", {"rope"}, [](const Tensor& x) { return rope(x, 3, 100.0); },
                {{2, 3, 2, 4}, {1, 5, 1, 6}, {2, 0, 2, 4}}));
  table.back().rounding = 4.0;
  const auto stretched = [&](const std::string& how, const RopeOptions& options) {
    add(one_input("rope, " + how, {"rope"}, [options](const Tensor& x) { return rope(x, 3, options); },
                  {{2, 3, 2, 4}, {1, 5, 1, 6}}));
    table.back().rounding = 4.0;
  };
  stretched("linear", {100.0, RopeScaling::linear, 4.0});
  stretched("ntk", {100.0, RopeScaling::ntk, 4.0});
  stretched("yarn", {100.0, RopeScaling::yarn, 4.0, 30});
}

void add_attention(std::vector<Operator>& table) {
  Numbers numbers(43);
  const auto heads = [&](std::int64_t n, std::int64_t h) { return numbers.normal({2, n, h, 4}); };
  const auto attending = [&](std::string name, attention::Pattern pattern) {
    table.push_back({.name = std::move(name),
                     .records = {"attend"},
                     .run = [pattern](const auto& in) -> Tensors {
                       const attention::Attended result = attention::attend(in[0], in[1], in[2], pattern);
                       return {result.out, result.lse};
                     },
                     .cases = {{"equal lengths", {heads(5, 2), heads(5, 2), heads(5, 2)}},
                               {"shared keys", {heads(3, 4), heads(6, 2), heads(6, 2)}}},
                     .rounding = 8.0});
  };
  const auto recurrent = [&](std::string name, bool delta) {
    const auto operands = [&](std::int64_t length, bool state) {
      std::vector<Tensor> all{heads(length, 2), numbers.between(-0.5, 0.5, {2, length, 2, 4}),
                              numbers.normal({2, length, 2, 3}), numbers.between(0.0, 1.0, {2, length, 2}),
                              numbers.between(-1.0, 0.0, {2, length, 2})};
      if (state) all.push_back(numbers.normal({2, 2, 4, 3}));
      return all;
    };
    table.push_back({.name = std::move(name),
                     .records = {"gated_delta_rule"},
                     .run = [delta](const auto& in) -> Tensors {
                       const auto wide = [&](std::size_t i) { return to(in[i], compute_dtype(in[0].dtype())); };
                       const RecurrentResult result =
                           gated_delta_rule(in[0], in[1], in[2], wide(3), wide(4), in.size() > 5 ? wide(5) : Tensor(),
                                            {.delta = delta, .chunk = 3});
                       return {result.out, result.state};
                     },
                     .cases = {{"from a state", operands(7, true)},
                               {"from zero", operands(3, false)},
                               {"no positions", operands(0, true)}},
                     .rounding = 16.0});
  };
  recurrent("gated_delta_rule", true);
  recurrent("gated linear attention", false);
  table.push_back({.name = "short_convolution",
                   .records = {"short_convolution"},
                   .run = [](const auto& in) -> Tensors { return {short_convolution(in[0], in[1])}; },
                   .cases = {{"sequences", {numbers.normal({2, 5, 3}), numbers.normal({3, 4})}}},
                   .rounding = 8.0});
  attending("attend", attention::Pattern::dense());
  attending("attend, causal", attention::Pattern::causal());
  const std::vector<OperatorCase> sequences{{"equal lengths", {heads(5, 2), heads(5, 2), heads(5, 2)}},
                                            {"shared keys", {heads(3, 4), heads(6, 2), heads(6, 2)}}};
  table.push_back({.name = "ring_attend_all",
                   .records = {"ring_attend_all"},
                   .run = [](const auto& in) -> Tensors {
                     const auto result =
                         attention::ring_attend_all(in[0], in[1], in[2], attention::Pattern::causal(), 2);
                     return {result.out, result.lse};
                   },
                   .cases = sequences,
                   .rounding = 8.0});
  const Tensor padding = Tensor::empty({2, 6}, {.dtype = DType::boolean})
                             .copy_from(from_data<std::int64_t>({0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0}, {2, 6}));
  table.push_back({.name = "ring_attend_all, padded",
                   .records = {"ring_attend_all"},
                   .run = [](const auto& in) -> Tensors {
                     const auto result = attention::ring_attend_all(in[0], in[1], in[2], attention::Pattern::dense(), 2,
                                                                    {.attend = {.key_padding = in[3]}});
                     return {result.out, result.lse};
                   },
                   .cases = {{"padded keys", {heads(3, 4), heads(6, 2), heads(6, 2), padding}}},
                   .rounding = 8.0});
  const auto alone = std::make_shared<attention::LocalGroup>(1, attention::LocalGroup::Progress::turns);
  table.push_back({.name = "ring_attend",
                   .records = {"ring_attend"},
                   .run = [alone](const auto& in) -> Tensors {
                     const auto result = attention::ring_attend(in[0], in[1], in[2], attention::Pattern::causal(),
                                                                alone->communicator(0));
                     return {result.out, result.lse};
                   },
                   .cases = sequences,
                   .rounding = 8.0,
                   .no_second_derivative = "a rank has no second derivative"});
  table.push_back({.name = "split_heads",
                   .records = {"split_heads"},
                   .run = [](const auto& in) -> Tensors {
                     return attention::split_heads(in[0], {2, 1, 1});
                   },
                   .cases = {{"packed", {numbers.normal({2, 3, 4, 5})}}}});
}

}  // namespace poolgrad::testing
