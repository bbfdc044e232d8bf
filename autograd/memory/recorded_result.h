// What operators made and how to make it again, while a Rematerialisation is told of them: a graph beside the tape that
// holds no memory but what can be dropped.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/memory_scope.h"
#include "autograd/engine/saved_tensor.h"
#include "autograd/memory/offload.h"
#include "tensor/tensor.h"

namespace poolgrad {

struct RecordedOperation;

/// A storage that an operator made, or, with nobody to make it again, another that a node keeps. It lives as long as
/// the node that made it has its graph, or an operation needs it.
struct RecordedResult {
  RecordedResult(std::shared_ptr<RecordedOperation> by, std::size_t index, const Tensor& output, Tag made_with)
      : operation(std::move(by)),
        output_index(index),
        dtype(output.dtype()),
        device(output.device()),
        bytes(std::max<std::size_t>(output.storage()->bytes(), 1)),
        storage(output.storage()),
        version(output.storage()->version()),
        tag(made_with) {}
  ~RecordedResult();
  RecordedResult(const RecordedResult&) = delete;
  RecordedResult& operator=(const RecordedResult&) = delete;

  /// The data, if it is kept and nobody has written into it.
  Tensor present() const { return data.defined() && data.storage()->version() == data_version ? data : Tensor(); }

  std::shared_ptr<RecordedOperation> operation;
  std::size_t output_index;
  DType dtype;
  Device device;
  std::size_t bytes;
  std::weak_ptr<Storage> storage;  // what the operator wrote first
  std::uint64_t version;
  Tag tag;
  std::unique_ptr<const OffloadFile::Extent> moved;  // its place in the file, once it was written
  Tensor data;  // (n), all of the storage; undefined where it was dropped or is not kept
  std::uint64_t data_version = 0;
  std::uint64_t number = 0;  // larger for what was made later
  int waiting = 0;           // nodes, and checkpoints, that saved it
  double listed_at = 0;      // its place among those that can be dropped
};

/// What an operator read: part of a result, or a tensor that no recipe leads to.
struct OperationInput {
  std::shared_ptr<RecordedResult> result;
  Geometry geometry;
  Tensor source;
  std::uint64_t version = 0;
};

struct RecordedOperation {
  std::string name;
  Recipe recipe;
  std::vector<OperationInput> inputs;
  std::vector<std::weak_ptr<RecordedResult>> results;
  double nanoseconds = 0;
};

/// The end of a result may end its operation, which may end the results that it read, and so on: one after the other,
/// not one inside the other.
inline RecordedResult::~RecordedResult() {
  // No destructor of its own: it is used by graphs that end with their thread, too.
  thread_local std::vector<std::shared_ptr<RecordedOperation>>* doomed = nullptr;
  if (doomed != nullptr && operation != nullptr) doomed->push_back(std::move(operation));
  if (operation == nullptr) return;
  std::vector<std::shared_ptr<RecordedOperation>> all;
  all.push_back(std::move(operation));
  doomed = &all;
  while (!all.empty()) {
    const std::shared_ptr<RecordedOperation> next = std::move(all.back());
    all.pop_back();
  }
  doomed = nullptr;
}

/// What the node of an operation carries: it owns the results.
struct ResultNote : NodeNote {
  std::vector<std::shared_ptr<RecordedResult>> results;
};

}  // namespace poolgrad
