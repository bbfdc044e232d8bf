// Every pattern with its definition.
#include "allocator/error.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention::testing_support {

namespace {

using Lists = std::vector<std::vector<std::int64_t>>;

oracle::Bitmap checkerboard(std::int64_t rows, std::int64_t columns, std::int64_t phase) {
  oracle::Bitmap map(static_cast<std::size_t>(rows), std::vector<bool>(static_cast<std::size_t>(columns)));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      map[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = i != 2 && (i * i + j + phase) % 3 != 0;
  return map;
}

Pattern::BlockList listed(const oracle::Bitmap& map) {
  Pattern::BlockList list{{0}, {}};
  for (const auto& row : map) {
    for (std::size_t j = 0; j < row.size(); ++j)
      if (row[j]) list.columns.push_back(static_cast<std::int32_t>(j));
    list.row_begin.push_back(static_cast<std::int32_t>(list.columns.size()));
  }
  return list;
}

std::vector<bool> flat(const oracle::Bitmap& map) {
  std::vector<bool> all;
  for (const auto& row : map) all.insert(all.end(), row.begin(), row.end());
  return all;
}

void add_bands(std::vector<Case>& all) {
  all.push_back({"dense", Pattern::dense(), oracle::dense()});
  all.push_back({"window(5, 0)", Pattern::window(5, 0), oracle::window(5, 0)});
  all.push_back({"window(3, 7)", Pattern::window(3, 7), oracle::window(3, 7)});
  all.push_back({"window(40, unbounded)", Pattern::window(40, Pattern::unbounded), oracle::window(40, -1)});
  all.push_back({"documents", Pattern::documents({0, 13, 13, 50, 90}), oracle::documents({0, 13, 13, 50, 90})});
  all.push_back({"documents & window", Pattern::documents({0, 1, 30, 131}) & Pattern::window(20, 4),
                 oracle::both(oracle::documents({0, 1, 30, 131}), oracle::window(20, 4))});
  all.push_back({"sink tokens", Pattern::sink_tokens(3), oracle::first_keys(3)});
  all.push_back(
      {"global tokens", Pattern::global_tokens(4), oracle::either(oracle::first_keys(4), oracle::first_queries(4))});
  all.push_back({"global columns", Pattern::global_tokens(2, false), oracle::first_keys(2)});
}

void add_dilated(std::vector<Case>& all) {
  using L = std::vector<std::int64_t>;
  const auto add = [&](const std::string& name, const L& w, const L& r, const DilatedOptions& options) {
    oracle::Multiplicity m = options.mode == DilatedMode::grouped
                                 ? oracle::grouped(w, r)
                                 : oracle::longnet(w, r, options.offset == DilatedOffset::contiguous);
    if (options.unite) m = oracle::united(m);
    const auto groups = static_cast<std::int64_t>(options.mode == DilatedMode::grouped ? w.size() : 1);
    all.push_back({"dilated " + name, Pattern::dilated(w, r, options), m, true, groups});
  };
  const DilatedOptions united{.unite = true}, contiguous{.offset = DilatedOffset::contiguous},
      grouped{.mode = DilatedMode::grouped};
  add("nested", {16, 32, 64}, {1, 2, 4}, {});
  add("nested united", {16, 32, 64}, {1, 2, 4}, united);
  add("not nested", {8, 12, 40}, {1, 2, 3}, {});
  add("not nested united", {8, 12, 40}, {1, 2, 3}, united);
  add("rates that do not divide", {7, 20}, {2, 3}, {});
  add("twice the same branch", {10, 10}, {2, 2}, {});
  add("segment of everything", {1000}, {3}, {});
  add("segments of one", {1, 9}, {1, 9}, {});
  add("contiguous offsets", {16, 48}, {2, 4}, contiguous);
  add("grouped", {16, 24}, {1, 3}, grouped);
  add("three groups", {8, 16, 33}, {1, 2, 3}, grouped);
}

void add_blocks(std::vector<Case>& all) {
  const auto add = [&](const std::string& name, const Pattern& pattern, const oracle::Multiplicity& m,
                       bool depends_on_head = false) {
    all.push_back({"blocks " + name, pattern, m, depends_on_head});
  };
  add("at offsets", Pattern::block_offsets(16, {-1, 0, 2}), oracle::block_offsets(16, {{-1, 0, 2}}));
  add("at offsets of heads", Pattern::block_offsets(16, Lists{{0}, {-2, 0, 1}, {3, -3}}),
      oracle::block_offsets(16, {{0}, {-2, 0, 1}, {3, -3}}), true);
  add("dilated_sparse", Pattern::dilated_sparse(16), oracle::block_offsets(16, {{0, 1, -1, 2, -2, 4, -4}}));
  add("spaced blocks", Pattern::spaced_blocks(16, 2), oracle::spaced_blocks(16, 2, 1 << 20));
  add("spaced blocks near by", Pattern::spaced_blocks(16, 3, 4), oracle::spaced_blocks(16, 3, 4));
  add("local_window", Pattern::local_window(16, 64), oracle::block_offsets(16, {{-2, -1, 0, 1, 2}}));
  add("global_local", Pattern::global_local(16, 48, 3),
      oracle::either(oracle::block_offsets(16, {{-1, 0, 1}}),
                     oracle::either(oracle::first_keys(3), oracle::first_queries(3))));
  const oracle::Bitmap one = checkerboard(5, 7, 0), other = checkerboard(9, 9, 1);
  add("listed", Pattern::blocks(16, listed(one).row_begin, listed(one).columns), oracle::blocks(16, {one}));
  add("listed for each head", Pattern::blocks(16, {listed(one), listed(other)}), oracle::blocks(16, {one, other}),
      true);
  add("bitmap", Pattern::block_bitmap(32, 7, flat(one)), oracle::blocks(32, {one}));
  const auto tree = [](std::int64_t i, std::int64_t j) { return j % 16 == 0 || j == i || j == i / 2 || j == i / 4; };
  const auto within = [](std::int64_t length, std::int64_t i, std::int64_t j) {
    return 0 <= i && i < length && 0 <= j && j < length;
  };
  add("a function says", Pattern::where(100, tree),
      [=](auto, auto, std::int64_t i, std::int64_t j) { return std::int64_t{within(100, i, j) && tree(i, j)}; });
  const auto of_head = [](std::int64_t h, std::int64_t i, std::int64_t j) {
    return h == 1 ? i >= 64 || j < 70 : (i * (h + 3) + j) % (h + 2) == 0;
  };
  add(
      "a function says for each head", Pattern::where(90, 3, of_head),
      [=](std::int64_t h, auto, std::int64_t i, std::int64_t j) {
        return std::int64_t{within(90, i, j) && of_head(h % 3, i, j)};
      },
      true);
  // The definition uses the pattern's own hash; blocks_test checks its density and its diagonal.
  const Pattern random = Pattern::random_blocks(16, 0.4, 7);
  add(
      "random", random, [random](auto... at) { return random.multiplicity(at...); }, true);
}

void add_combinations(std::vector<Case>& all) {
  all.push_back({"strided", Pattern::strided(7), oracle::strided(7)});
  all.push_back({"axial", Pattern::axial(11), oracle::axial(11)});
  all.push_back({"dense twice", Pattern::dense() + Pattern::dense(), oracle::sum(oracle::dense(), oracle::dense())});
  all.push_back({"dilated + window", Pattern::dilated({16, 64}, {1, 4}) + Pattern::window(9, 9),
                 oracle::sum(oracle::longnet({16, 64}, {1, 4}), oracle::window(9, 9)), true});
  all.push_back({"strided | sink tokens", Pattern::strided(9) | Pattern::sink_tokens(2),
                 oracle::either(oracle::strided(9), oracle::first_keys(2))});
  const oracle::Bitmap bitmap = checkerboard(5, 7, 0);
  all.push_back({"strided & window | listed",
                 (Pattern::strided(3) & Pattern::window(9, 6)) |
                     Pattern::blocks(16, listed(bitmap).row_begin, listed(bitmap).columns),
                 oracle::either(oracle::both(oracle::strided(3), oracle::window(9, 6)), oracle::blocks(16, {bitmap}))});
  const auto every_fifth = [](std::int64_t i, std::int64_t j) { return (i + j) % 5 == 0; };
  const oracle::Multiplicity says = [=](auto, auto, std::int64_t i, std::int64_t j) {
    return std::int64_t{0 <= i && i < 70 && 0 <= j && j < 70 && every_fifth(i, j)};
  };
  all.push_back({"window | listed | function",
                 Pattern::window(3, 2) | Pattern::blocks(16, listed(bitmap).row_begin, listed(bitmap).columns) |
                     Pattern::where(70, every_fifth),
                 oracle::either(oracle::either(oracle::window(3, 2), oracle::blocks(16, {bitmap})), says)});
  all.push_back({"function | random", Pattern::where(70, every_fifth) | Pattern::random_blocks(16, 0.3, 5),
                 [=, random = Pattern::random_blocks(16, 0.3, 5)](auto h, auto heads, auto i, auto j) {
                   return std::int64_t{says(h, heads, i, j) > 0 || random.multiplicity(h, heads, i, j) > 0};
                 },
                 true});
  all.push_back(
      {"window + offsets + sinks",
       Pattern::window(4, 4) + Pattern::block_offsets(16, {0, -2}) + Pattern::sink_tokens(5),
       oracle::sum(oracle::sum(oracle::window(4, 4), oracle::block_offsets(16, {{0, -2}})), oracle::first_keys(5))});
  all.push_back(
      {"(offsets | global) & documents",
       (Pattern::block_offsets(16, {0, 3, -3}) | Pattern::global_tokens(2)) & Pattern::documents({0, 40, 131}),
       oracle::both(oracle::either(oracle::block_offsets(16, {{0, 3, -3}}),
                                   oracle::either(oracle::first_keys(2), oracle::first_queries(2))),
                    oracle::documents({0, 40, 131}))});
}

}  // namespace

std::vector<Case> pattern_cases() {
  std::vector<Case> all;
  add_bands(all);
  add_dilated(all);
  add_blocks(all);
  add_combinations(all);
  return all;
}

Case causal(const Case& one) {
  return {one.name + " & causal", one.pattern & Pattern::causal(), oracle::both(one.m, oracle::causal()),
          one.depends_on_head, one.least_heads};
}

std::vector<Case> cases_with(const std::string& part) {
  std::vector<Case> found;
  for (const Case& one : pattern_cases()) {
    if (one.name.find(part) == std::string::npos) continue;
    found.push_back(one);
    found.push_back(causal(one));
  }
  if (found.empty()) throw ValueError("no pattern is called " + part);
  return found;
}

}  // namespace poolgrad::attention::testing_support
