#include <utility>

#include "autograd/operators.h"
#include "tests/autograd/operator_table.h"

namespace poolgrad::testing {

void add_views(std::vector<Operator>& table) {
  const auto add = [&](Operator entry) { table.push_back(std::move(entry)); };
  add(one_input("reshape", {"reshape"}, [](const Tensor& x) { return reshape(x, {-1, 2}); }, {{3, 4}, {2}, {6, 0, 2}}));
  table.back().cases.pop_back();  // -1 is ambiguous for an empty tensor
  add(one_input("reshape of a transpose", {"reshape", "transpose", "clone"},
                [](const Tensor& x) { return reshape(transpose(x, 0, 1), {x.numel()}); }, {{3, 4}, {1, 5}, {0, 3}}));
  add(one_input("flatten", {"reshape"}, [](const Tensor& x) { return flatten(x, 1, -1); }, {{2, 3, 4}, {2, 0, 3}}));
  add(one_input("transpose", {"transpose"}, [](const Tensor& x) { return transpose(x, 0, -1); },
                {{3, 4}, {2, 3, 4}, {5}, {0, 3}}));
  add(one_input("permute", {"permute"},
                [](const Tensor& x) {
                  return permute(x, {2, -3, 1});
                },
                {{2, 3, 4}, {0, 3, 2}}));
  add(one_input("movedim", {"permute"},
                [](const Tensor& x) {
                  return movedim(x, {0, -1}, {1, 0});
                },
                {{2, 3, 4}, {2, 3}, {0, 3, 2}}));
  add(one_input("glu", {"split", "mul", "sigmoid"}, [](const Tensor& x) { return glu(x, 1); },
                {{3, 4}, {2, 6, 3}, {0, 2}, {2, 0}}));
  add(one_input("slice", {"slice", "place"}, [](const Tensor& x) { return slice(x, 1, 1, 6, 2); },
                {{2, 7}, {3, 5, 2}, {2, 1}, {0, 4}}));
  add(one_input("slice from the end", {"slice", "place"}, [](const Tensor& x) { return slice(x, -1, -3, -1); },
                {{2, 7}, {5}, {4, 0}}));
  add(one_input("select", {"select", "place"}, [](const Tensor& x) { return select(x, 1, -2); },
                {{3, 4}, {2, 3, 2}, {0, 2}}));
  add(one_input("expand", {"expand"},
                [](const Tensor& x) {
                  return expand(x, {2, 3, x.size(-1)});
                },
                {{3, 4}, {1, 4}, {5}, {1, 3, 2}, {2, 1, 1}, {3, 0}}));
  add(one_input("squeeze", {"reshape"}, [](const Tensor& x) { return squeeze(x, 1); }, {{3, 1, 2}, {3, 1}, {0, 1}}));
  add(one_input("unsqueeze", {"reshape"}, [](const Tensor& x) { return unsqueeze(x, -1); }, {{3, 2}, {}, {0}}));
  add(one_input("pad", {"pad", "slice"}, [](const Tensor& x) { return pad(x, 0, 2, 1, 0.5); }, {{3, 2}, {5}, {0, 2}}));
  add(one_input("sum_to", {"sum"},
                [](const Tensor& x) {
                  return sum_to(x, {3, 1});
                },
                {{3, 4}, {2, 3, 4}, {5, 3, 1}, {0, 3, 1}}));

  add(one_input("diagonal", {"diagonal", "place_on_diagonal"}, [](const Tensor& x) { return diagonal(x, 1, -2, -1); },
                {{3, 4}, {2, 4, 3}, {3, 1}, {2, 0, 3}}));
  add(one_input("diagonal of outer dimensions", {"diagonal", "place_on_diagonal"},
                [](const Tensor& x) { return diagonal(x, -1, 2, 0); }, {{3, 2, 4}}));
  add(one_input("diag", {"place_on_diagonal", "diagonal"}, [](const Tensor& x) { return diag(x, -1); }, {{3}, {0}}));
  add(one_input("unfold", {"unfold", "fold"}, [](const Tensor& x) { return unfold(x, 1, 3, 2); },
                {{2, 7}, {2, 4, 3}, {0, 3}}));
  add(one_input("unfold, dilated", {"unfold", "fold"}, [](const Tensor& x) { return unfold(x, -1, 2, 1, 3); },
                {{2, 7}, {4}}));
  add(one_input("index", {"select", "slice", "place"},
                [](const Tensor& x) {
                  return x[{-1, ellipsis, new_axis, slice(0, 3, 2)}];
                },
                {{2, 4}, {3, 2, 3}}));
  add(one_input("tril", {"masked_fill"}, [](const Tensor& x) { return tril(x); }, {{3, 4}, {2, 4, 3}, {0, 2}}));
  add(one_input("triu", {"masked_fill"}, [](const Tensor& x) { return triu(x, 1); }, {{3, 4}, {2, 4, 3}}));
  add(one_input("roll", {"cat", "slice"}, [](const Tensor& x) { return roll(x, -2, 0); }, {{5}, {3, 2}, {0, 2}}));
  table.back().cases.pop_back();  // an empty tensor has no element to move
  add(one_input("flip", {"index_select"},
                [](const Tensor& x) {
                  return flip(x, {0, -1});
                },
                {{3, 4}, {2, 2, 3}, {0, 2}}));
  add(one_input("repeat", {"expand", "sum"}, [](const Tensor& x) { return repeat(x, 3, 0); }, {{3, 2}, {4}, {0, 2}}));
  add(one_input("tile", {"expand", "sum"},
                [](const Tensor& x) {
                  return tile(x, {2, 1, 3});
                },
                {{3, 2}, {2, 1, 2}, {}}));

  Numbers numbers(24);
  add({.name = "outer",
       .records = {"mul"},
       .run = [](const auto& in) -> Tensors { return {outer(in[0], in[1])}; },
       .cases = {{"vectors", {numbers.normal({3}), numbers.normal({4})}},
                 {"empty", {numbers.normal({0}), numbers.normal({2})}}}});
  add({.name = "split by sizes",
       .records = {"split", "place"},
       .run = [](const auto& in) -> Tensors {
         return split(in[0], {1, 0, 3}, 0);
       },
       .cases = {{"vector", {numbers.normal({4})}}, {"matrix", {numbers.normal({4, 2})}}}});
  add({.name = "chunk",
       .records = {"split", "place"},
       .run = [](const auto& in) -> Tensors { return chunk(in[0], 3, -1); },
       .cases = {{"a smaller last one", {numbers.normal({2, 7})}}, {"fewer than asked", {numbers.normal({2})}}}});
  add({.name = "split",
       .records = {"split", "place"},
       .run = [](const auto& in) -> Tensors { return split(in[0], 3, 1); },
       .cases = {{"matrix", {numbers.normal({2, 6})}},
                 {"three dimensions", {numbers.normal({2, 3, 2})}},
                 {"empty", {numbers.normal({2, 0})}}}});
  add({.name = "one part of a split",
       .records = {"split", "place"},
       .run = [](const auto& in) -> Tensors { return {split(in[0], 3, -1)[1]}; },
       .cases = {{"matrix", {numbers.normal({2, 6})}}}});
  add({.name = "unbind",
       .records = {"split", "place", "reshape"},
       .run = [](const auto& in) -> Tensors { return unbind(in[0], -1); },
       .cases = {{"matrix", {numbers.normal({2, 3})}}, {"vector", {numbers.normal({4})}}}});
  add({.name = "cat",
       .records = {"cat", "slice"},
       .run = [](const auto& in) -> Tensors { return {cat(in, -1)}; },
       .cases = {{"two", {numbers.normal({2, 3}), numbers.normal({2, 4})}},
                 {"three, one empty", {numbers.normal({2, 3}), numbers.normal({2, 0}), numbers.normal({2, 1})}},
                 {"one", {numbers.normal({5})}}}});
  add({.name = "cat of rows",
       .records = {"cat", "slice"},
       .run = [](const auto& in) -> Tensors { return {cat(in, 0)}; },
       .cases = {{"two", {numbers.normal({2, 3}), numbers.normal({4, 3})}}}});
  add({.name = "stack",
       .records = {"cat", "reshape"},
       .run = [](const auto& in) -> Tensors { return {stack(in, 1)}; },
       .cases = {{"two", {numbers.normal({2, 3}), numbers.normal({2, 3})}},
                 {"vectors", {numbers.normal({4}), numbers.normal({4}), numbers.normal({4})}}}});
}

void add_indexing(std::vector<Operator>& table) {
  const auto add = [&](Operator entry) { table.push_back(std::move(entry)); };
  Numbers numbers(29);
  add({.name = "index_select",
       .records = {"index_select", "index_add"},
       .run = [](const auto& in) -> Tensors { return {index_select(in[0], 0, in[1])}; },
       .cases = {{"repeated", {numbers.normal({4, 3}), Numbers::integers({2, 0, 2, 2, 3})}},
                 {"vector", {numbers.normal({5}), Numbers::integers({4, 4})}},
                 {"no index", {numbers.normal({4, 3}), Numbers::integers({})}}}});
  add({.name = "index_select of columns",
       .records = {"index_select", "index_add"},
       .run = [](const auto& in) -> Tensors { return {index_select(in[0], -1, in[1])}; },
       .cases = {{"repeated", {numbers.normal({2, 3, 4}), Numbers::integers({3, 1, 3})}}}});
  add({.name = "index_add",
       .records = {"index_add", "index_select"},
       .run = [](const auto& in) -> Tensors { return {index_add(in[0], 1, in[1], in[2])}; },
       .cases = {{"repeated", {numbers.normal({2, 4}), Numbers::integers({3, 1, 3}), numbers.normal({2, 3})}},
                 {"inner", {numbers.normal({2, 4, 3}), Numbers::integers({0, 0}), numbers.normal({2, 2, 3})}}}});
  add({.name = "gather",
       .records = {"gather", "scatter_add"},
       .run = [](const auto& in) -> Tensors { return {gather(in[0], 1, in[1])}; },
       .cases = {{"more than there are", {numbers.normal({3, 4}), numbers.indices(4, {3, 6})}},
                 {"inner", {numbers.normal({2, 5, 3}), numbers.indices(5, {2, 2, 3})}},
                 {"empty", {numbers.normal({0, 4}), numbers.indices(4, {0, 2})}}}});
  add({.name = "scatter_add",
       .records = {"scatter_add", "gather"},
       .run = [](const auto& in) -> Tensors { return {scatter_add(in[0], 0, in[1], in[2])}; },
       .cases = {{"collisions", {numbers.normal({4, 3}), numbers.indices(4, {6, 3}), numbers.normal({6, 3})}},
                 {"vector", {numbers.normal({5}), numbers.indices(5, {7}), numbers.normal({7})}}}});
  add({.name = "scatter",
       .records = {"scatter", "gather", "masked_fill"},
       .run = [](const auto& in) -> Tensors { return {scatter(in[0], 1, in[1], in[2])}; },
       .cases = {{"collisions", {numbers.normal({3, 4}), numbers.indices(4, {3, 6}), numbers.normal({3, 6})}},
                 {"inner", {numbers.normal({2, 4, 3}), numbers.indices(4, {2, 2, 3}), numbers.normal({2, 2, 3})}}}});
  add({.name = "index tensor",
       .records = {"index_select", "index_add"},
       .run = [](const auto& in) -> Tensors { return {in[0][in[1]]}; },
       .cases = {{"negative", {numbers.normal({4, 3}), Numbers::integers({2, -1, 0, 2})}},
                 {"matrix", {numbers.normal({5, 2, 3}), numbers.indices(5, {2, 4})}},
                 {"one", {numbers.normal({5}), numbers.indices(5, {})}},
                 {"none", {numbers.normal({5, 3}), numbers.indices(5, {0, 2})}}}});
  add({.name = "index_put",
       .records = {"scatter", "gather", "masked_fill"},
       .run = [](const auto& in) -> Tensors { return {index_put(in[0], {in[1]}, in[2])}; },
       .cases = {{"collisions", {numbers.normal({4, 3}), Numbers::integers({2, -2, 0}), numbers.normal({3, 3})}},
                 {"broadcast", {numbers.normal({4, 3}), numbers.indices(4, {2, 2}), numbers.normal({3})}}}});
  add({.name = "index_put, accumulated",
       .records = {"index_add", "index_select"},
       .run = [](const auto& in) -> Tensors {
         return {index_put(in[0], {in[1], in[2]}, in[3], true)};
       },
       .cases = {
           {"vectors",
            {numbers.normal({4, 3, 2}), numbers.indices(4, {5}), numbers.indices(3, {5}), numbers.normal({5, 2})}},
           {"row and column",
            {numbers.normal({4, 3}), numbers.indices(4, {2, 1}), numbers.indices(3, {3}), numbers.normal({})}}}});
  const auto reduce = [&](const std::string& name, std::set<std::string> records, ScatterReduction reduction,
                          bool include_self) {
    add({.name = "scatter_reduce, " + name,
         .records = std::move(records),
         .run = [=](const auto& in) -> Tensors {
           return {scatter_reduce(in[0], 0, in[1], in[2], reduction, include_self)};
         },
         .cases = {{"collisions", {numbers.normal({4, 3}), numbers.indices(4, {6, 3}), numbers.normal({6, 3})}},
                   {"vector", {numbers.normal({5}), numbers.indices(5, {7}), numbers.normal({7})}},
                   {"nothing sent", {numbers.normal({5}), numbers.indices(5, {0}), numbers.normal({0})}}},
         .rounding = 8.0});
  };
  reduce("sum of the others", {"scatter", "scatter_add"}, ScatterReduction::sum, false);
  reduce("mean", {"scatter_add", "div"}, ScatterReduction::mean, true);
  reduce("mean of the others", {"scatter", "scatter_add", "div"}, ScatterReduction::mean, false);
  reduce("amax", {"scatter_reduce", "gather"}, ScatterReduction::amax, true);
  reduce("amin of the others", {"scatter_reduce", "gather"}, ScatterReduction::amin, false);
  for (const bool include_self : {true, false}) {
    reduce(include_self ? "prod" : "prod of the others", {"scatter_reduce"}, ScatterReduction::prod, include_self);
    table.back().no_second_derivative = "[scatter_reduce] prod has no second derivative";
  }
  add({.name = "embedding",
       .records = {"embedding", "index_add"},
       .run = [](const auto& in) -> Tensors { return {embedding(in[0], in[1])}; },
       .cases = {{"repeated", {numbers.normal({5, 3}), numbers.indices(5, {4, 3})}},
                 {"one", {numbers.normal({5, 3}), numbers.indices(5, {})}},
                 {"none", {numbers.normal({5, 3}), numbers.indices(5, {0})}}}});
  add({.name = "embedding with padding",
       .records = {"embedding", "index_add", "masked_fill"},
       .run = [](const auto& in) -> Tensors { return {embedding(in[0], in[1], 2)}; },
       .cases = {}});
  // The forward reads the padding row, but its gradient is masked. Differences therefore need a padding row that no
  // index reads.
  table.back().cases = {{"unread", {numbers.normal({5, 3}), Numbers::integers({0, 4, 4, 1})}}};
}

}  // namespace poolgrad::testing
