#include "allocator/trace/internal/value_tree.h"

namespace poolgrad {

Value ValueTree::text(std::string_view text) {
  const auto known = numbers_.find(text);
  if (known != numbers_.end()) return {ValueKind::text, false, known->second};
  const std::uint64_t number = texts_.size();
  texts_.push_back(numbers_.emplace(std::string(text), number).first->first);
  return {ValueKind::text, false, number};
}

Value ValueTree::container(ValueKind kind) {
  containers_.emplace_back();
  return {kind, false, containers_.size() - 1};
}

const Value* ValueTree::find(Value dict, std::string_view key) const {
  if (dict.kind != ValueKind::dict) return nullptr;
  const std::span<const Value> pairs = items(dict);
  for (std::size_t i = pairs.size(); i >= 2; i -= 2)
    if (pairs[i - 2].kind == ValueKind::text && text_of(pairs[i - 2]) == key) return &pairs[i - 1];
  return nullptr;
}

bool ValueTree::first_visit(Value container) {
  bool& visited = containers_[container.bits].visited;
  const bool first = !visited;
  visited = true;
  return first;
}

}  // namespace poolgrad
