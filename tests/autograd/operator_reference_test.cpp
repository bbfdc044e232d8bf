// docs/reference/operators.md names exactly the operators that the public headers declare.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tests/autograd/integer_operators.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

std::string text_of_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The functions that a header declares at the start of a line; operators as "operator+".
std::set<std::string> functions_in(const std::string& header) {
  static const std::regex declaration(R"(\n(?:[A-Z]\w*|std::vector<Tensor>) (operator[^\s(]+|\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator match(header.begin(), header.end(), declaration), end; match != end; ++match)
    names.insert((*match)[1]);
  return names;
}

/// The names in the first column of the tables: | `sum` `mean` | ... |
std::set<std::string> rows_in(const std::string& page) {
  static const std::regex row(R"(\n\| ((?:`[^`]+`,? ?)+)\|)"), quoted("`([^`]+)`");
  std::set<std::string> names;
  for (std::sregex_iterator match(page.begin(), page.end(), row), end; match != end; ++match) {
    std::string cell = (*match)[1];
    std::erase(cell, '\\');  // in `operator\|`, where a bar would end the cell
    for (std::sregex_iterator name(cell.begin(), cell.end(), quoted); name != end; ++name)
      EXPECT_TRUE(names.insert((*name)[1]).second) << (*name)[1] << " has two rows";
  }
  return names;
}

std::set<std::string> without(const std::set<std::string>& some, const std::set<std::string>& others) {
  std::set<std::string> left;
  for (const std::string& name : some)
    if (!others.contains(name)) left.insert(name);
  return left;
}

const std::filesystem::path root = POOLGRAD_SOURCE_DIR;

TEST(OperatorReference, HasExactlyOneRowForEveryPublicOperator) {
  const std::string umbrella = text_of_file(root / "autograd/operators.h");
  std::set<std::string> declared = functions_in(text_of_file(root / "tensor/creation.h"));
  for (const auto& entry : std::filesystem::directory_iterator(root / "autograd/operators"))
    if (umbrella.find(entry.path().filename().string() + "\"") != std::string::npos)
      declared.merge(functions_in(text_of_file(entry.path())));
  declared.merge(functions_in(text_of_file(root / "autograd/recurrence.h")));
  const std::string page = text_of_file(root / "docs/reference/operators.md");
  const std::set<std::string> rows = rows_in(page.substr(page.find("## All operators")));
  EXPECT_GT(declared.size(), 100u);
  EXPECT_EQ(without(declared, rows), std::set<std::string>{}) << "lack a row";
  EXPECT_EQ(without(rows, declared), std::set<std::string>{}) << "have a row and no function";
}

TEST(OperatorReference, ReadsDeclarationsAndRows) {
  EXPECT_EQ(functions_in("\nTensor sum(const Tensor& x);\n/// Tensor no(1)\nstd::vector<Tensor> split(\n  Tensor inner("
                         "\nTensor operator+(const Tensor& a\nTensor operator<=(\nSorted sort(\nstruct Tensor;\n"),
            (std::set<std::string>{"sum", "split", "operator+", "operator<=", "sort"}));
  EXPECT_EQ(rows_in("\n| name | what |\n|---|---|\n| `sum`, `mean` | sums `x` |\n| `split` | (x, parts) |\n"),
            (std::set<std::string>{"sum", "mean", "split"}));
}

using Call = std::function<Tensor(const Tensor&)>;

/// The third column of the operator's row.
std::string dtypes_of(const std::string& page, const std::string& name) {
  const std::size_t at = page.find("`" + name + "`"), end = page.find('\n', at);
  std::string line = page.substr(at, end - at);
  if (const std::size_t escaped = line.find("\\|"); escaped != std::string::npos) line.erase(escaped, 2);
  for (int column = 1; column < 3; ++column) line.erase(0, line.find('|') + 1);
  return line.substr(1, line.find(" |") - 1);
}

TEST(OperatorReference, ListsTheDtypesOfAnOperator) {
  const Tensor places = from_data<std::int64_t>({0, 1}, 2), grid = from_data<std::int64_t>({0, 1, 1, 0}, {2, 2});
  const std::vector<std::pair<std::string, Call>> calls = {
      {"zeros", [](const Tensor& x) { return full({2}, 1.0, x.options()); }},
      {"zeros_like", [](const Tensor& x) { return zeros_like(ones_like(x)); }},
      {"scalar", [](const Tensor& x) { return scalar(1.0, x.options()); }},
      {"arange", [](const Tensor& x) { return linspace(0, 1, arange(0, 2, 1, x.options()).numel(), x.options()); }},
      {"eye", [](const Tensor& x) { return eye(2, 2, 0, x.options()); }},
      {"randint", [](const Tensor& x) { return randint(0, 2, {2}, x.options()); }},
      {"randn", [](const Tensor& x) { return randn({2}, x.options()); }},
      {"rand", [](const Tensor& x) { return rand({2}, 0.0, 1.0, x.options()); }},
      {"add", [](const Tensor& x) { return x + 1.0; }},
      {"div", [](const Tensor& x) { return x / x; }},
      {"pow", [](const Tensor& x) { return pow(x, x); }},
      {"fmod", [](const Tensor& x) { return remainder(fmod(x, x), 2.0); }},
      {"atan2", [](const Tensor& x) { return atan2(x, x); }},
      {"maximum", [](const Tensor& x) { return maximum(x, x); }},
      {"sum_to", [](const Tensor& x) { return sum_to(x, 2); }},
      {"equal", [](const Tensor& x) { return x == x; }},
      {"less", [](const Tensor& x) { return x < x; }},
      {"logical_and", [](const Tensor& x) { return logical_or(logical_and(x, x), logical_not(x)); }},
      {"operator~", [](const Tensor& x) { return ~x & (x | x); }},
      {"neg", neg},
      {"abs", abs},
      {"sign", [](const Tensor& x) { return sign(floor(x)); }},
      {"clamp", [](const Tensor& x) { return clamp(x, 0.0, 1.0); }},
      {"log10", [](const Tensor& x) { return exp2(log10(x)); }},
      {"mish", mish},
      {"elu", [](const Tensor& x) { return elu(x); }},
      {"glu", [](const Tensor& x) { return glu(x); }},
      {"tan", tan},
      {"silu_mul", [](const Tensor& x) { return silu_mul(x, x); }},
      {"isnan", isnan},
      {"sum", [](const Tensor& x) { return sum(x, 0); }},
      {"mean", [](const Tensor& x) { return mean(x, 0); }},
      {"prod", [](const Tensor& x) { return prod(x, 0); }},
      {"max", [](const Tensor& x) { return min(max(x, 0)); }},
      {"norm", [](const Tensor& x) { return norm(x); }},
      {"cumsum", [](const Tensor& x) { return cumsum(x, 0); }},
      {"cumprod", [](const Tensor& x) { return cumprod(x, 0); }},
      {"any", [](const Tensor& x) { return any(x, 0); }},
      {"argmax", [](const Tensor& x) { return argmax(x); }},
      {"argsort", [](const Tensor& x) { return argsort(x); }},
      {"sort", [](const Tensor& x) { return sort(x).values; }},
      {"reshape", [](const Tensor& x) { return reshape(transpose(x, 0, 1), -1); }},
      {"unbind", [](const Tensor& x) { return movedim(unbind(x)[0], 0, 0); }},
      {"unfold", [](const Tensor& x) { return clone(unfold(x, 0, 2)); }},
      {"cat",
       [](const Tensor& x) {
         return cat({x, x});
       }},
      {"pad", [](const Tensor& x) { return pad(x, 0, 1, 1, 1.0); }},
      {"tril", [](const Tensor& x) { return triu(tril(x)); }},
      {"diag", [](const Tensor& x) { return diag(x[0]); }},
      {"outer", [](const Tensor& x) { return outer(x[0], x[1]); }},
      {"roll", [](const Tensor& x) { return flip(roll(x, 1, 0), 1); }},
      {"repeat", [](const Tensor& x) { return tile(repeat(x, 2, 0), 2); }},
      {"index_select", [&](const Tensor& x) { return gather(index_select(x, 0, places), 1, grid); }},
      {"index_add", [&](const Tensor& x) { return index_add(x, 0, places, x); }},
      {"scatter", [&](const Tensor& x) { return scatter(x, 0, grid, x); }},
      {"scatter_add", [&](const Tensor& x) { return scatter_add(x, 0, grid, x); }},
      {"scatter_reduce", [&](const Tensor& x) { return scatter_reduce(x, 0, grid, x, ScatterReduction::amax); }},
      {"index_put", [&](const Tensor& x) { return index_put(x, {places}, x[places], true); }},
      {"where", [&](const Tensor& x) { return where(grid > 0.0, x, 1.0); }},
      {"masked_fill", [&](const Tensor& x) { return masked_fill(x, grid > 0.0, 1.0); }},
      {"embedding", [&](const Tensor& x) { return embedding(x, grid); }},
      {"matmul", [](const Tensor& x) { return matmul(x, x); }},
      {"softmax", [](const Tensor& x) { return softmax(x); }},
      {"mse_loss", [](const Tensor& x) { return mse_loss(x, x); }},
  };
  const std::string whole = text_of_file(root / "docs/reference/operators.md"),
                    page = whole.substr(whole.find("## All operators"));
  for (const auto& [name, call] : calls) {
    const std::string said = dtypes_of(page, name);
    for (const DType dtype : testing_support::all_dtypes) {
      const bool takes = said.starts_with("all") || (said.starts_with("numbers") && dtype != DType::boolean) ||
                         (said.starts_with("floating") && is_floating(dtype)) ||
                         (said == "bool" && dtype == DType::boolean);
      const Tensor x = ones({2, 2}, {.dtype = dtype});
      if (takes) {
        EXPECT_NO_THROW(call(x)) << name << ", " << to_string(dtype);
      } else {
        EXPECT_THROW(call(x), DTypeError) << name << ", " << to_string(dtype);
      }
    }
  }
}

TEST(OperatorReference, HasATestedCallForEveryIntegerAndBoolRow) {
  const std::string whole = text_of_file(root / "docs/reference/operators.md"),
                    page = whole.substr(whole.find("## All operators"));
  const auto takes = [&](const std::string& name) {
    std::string escaped = name;
    if (const std::size_t bar = escaped.find('|'); bar != std::string::npos) escaped.insert(bar, "\\");
    return dtypes_of(page, escaped);
  };
  std::map<std::string, std::string> wanted, called;
  for (const std::string& name : rows_in(page)) {
    const std::string said = takes(name);
    if (said.starts_with("floating")) continue;
    wanted[name] = said.substr(0, said.find_first_of(",; "));
  }
  for (const testing::IntegerOperators& row : testing::integer_operators())
    for (const std::string& name : row.names)
      called[name] = std::array{"numbers", "all", "bool", "i64"}[static_cast<std::size_t>(row.takes)];
  EXPECT_GT(wanted.size(), 80u);
  for (const auto& [name, said] : wanted) EXPECT_EQ(called[name], said) << name;
  for (const auto& [name, said] : called) EXPECT_EQ(wanted[name], said) << name;
}

}  // namespace
}  // namespace poolgrad
