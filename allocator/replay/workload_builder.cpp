#include "allocator/replay/workload_builder.h"

#include <algorithm>
#include <string>

namespace poolgrad {

Operation& WorkloadBuilder::add(OperationKind kind, std::uint16_t stream) {
  workload_.streams = std::max<std::uint16_t>(workload_.streams, static_cast<std::uint16_t>(stream + 1));
  Operation& operation = workload_.operations.emplace_back();
  operation.kind = kind;
  operation.stream = stream;
  operation.think = think_;
  return operation;
}

std::uint32_t WorkloadBuilder::allocate(std::uint64_t bytes, Category category, std::uint16_t stream) {
  Operation& operation = add(OperationKind::allocate, stream);
  operation.bytes = bytes;
  operation.category = category;
  operation.block = workload_.blocks++;
  blocks_.push_back(operation);
  return operation.block;
}

void WorkloadBuilder::free(std::uint32_t block) { free(block, blocks_[block].stream); }

void WorkloadBuilder::free(std::uint32_t block, std::uint16_t stream) {
  Operation& operation = add(OperationKind::free, stream);
  operation.bytes = blocks_[block].bytes;
  operation.category = blocks_[block].category;
  operation.block = block;
}

void WorkloadBuilder::free(const std::vector<std::uint32_t>& blocks) {
  for (const std::uint32_t block : blocks) free(block);
}

void WorkloadBuilder::use(std::uint32_t block, std::uint16_t stream) {
  Operation& operation = add(OperationKind::use, stream);
  operation.bytes = blocks_[block].bytes;
  operation.category = blocks_[block].category;
  operation.block = block;
}

void WorkloadBuilder::order(std::uint16_t later, std::uint16_t earlier) {
  add(OperationKind::order, earlier);
  Operation& operation = workload_.operations.back();
  operation.stream = later;
  operation.block = earlier;
  workload_.streams = std::max<std::uint16_t>(workload_.streams, static_cast<std::uint16_t>(later + 1));
}

void WorkloadBuilder::step() { add(OperationKind::step, 0); }

Workload WorkloadBuilder::take(std::string_view name, std::string_view description) {
  workload_.name = name;
  workload_.description = description;
  blocks_.clear();
  return std::exchange(workload_, {});
}

}  // namespace poolgrad
