#include "tests/autograd/operator_table.h"

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace poolgrad::testing {

const std::vector<Operator>& operator_table() {
  static const std::vector<Operator> table = [] {
    std::vector<Operator> all;
    for (const auto add : {add_unary, add_binary, add_views, add_indexing, add_products, add_windows, add_reductions,
                           add_rows, add_attention})
      add(all);
    return all;
  }();
  return table;
}

const Operator& find_operator(const std::string& name) {
  for (const Operator& entry : operator_table())
    if (entry.name == name) return entry;
  throw std::out_of_range("the operator table has no " + name);
}

Operator one_input(std::string name, std::set<std::string> records, std::function<Tensor(const Tensor&)> function,
                   const std::vector<Shape>& shapes) {
  Numbers numbers(23);
  Operator entry{.name = std::move(name),
                 .records = std::move(records),
                 .run = [function = std::move(function)](const auto& in) -> Tensors { return {function(in[0])}; },
                 .cases = {}};
  for (const Shape& shape : shapes) entry.cases.push_back({to_string(shape), {numbers.normal(shape)}});
  return entry;
}

std::set<std::string> recorded_names(const std::vector<std::string>& folders) {
  static const std::regex call(R"(\brecord\w*\(\s*"(\w+)\")");
  std::set<std::string> names;
  for (const std::string& folder : folders)
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
      if (file.path().extension() != ".cpp") continue;
      std::ostringstream text;
      text << std::ifstream(file.path()).rdbuf();
      const std::string source = text.str();
      for (std::sregex_iterator match(source.begin(), source.end(), call), end; match != end; ++match)
        names.insert((*match)[1]);
    }
  return names;
}

std::set<std::string> missing_from(const std::vector<Operator>& table, const std::set<std::string>& recorded) {
  std::set<std::string> missing = recorded;
  for (const Operator& entry : table)
    for (const std::string& name : entry.records) missing.erase(name);
  return missing;
}

std::set<std::string> unknown_in(const std::vector<Operator>& table, const std::set<std::string>& recorded) {
  std::set<std::string> unknown;
  for (const Operator& entry : table)
    for (const std::string& name : entry.records)
      if (!recorded.contains(name)) unknown.insert(name);
  return unknown;
}

}  // namespace poolgrad::testing
