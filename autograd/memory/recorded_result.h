// The results and recipes of operators, recorded for a Rematerialisation: a graph beside the tape, in which all memory
// can be dropped.
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

/// A storage that an operator made, or, without an operation, another storage that a node saved. It lives as long as
/// its node's graph, or as long as an operation needs it.
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

  /// Returns the data if they are kept and unwritten since; otherwise an undefined tensor.
  Tensor present() const { return data.defined() && data.storage()->version() == data_version ? data : Tensor(); }

  std::shared_ptr<RecordedOperation> operation;
  std::size_t output_index;
  DType dtype;
  Device device;
  std::size_t bytes;
  std::weak_ptr<Storage> storage;  // the first storage that the operator wrote
  std::uint64_t version;
  Tag tag;
  std::unique_ptr<const OffloadFile::Extent> moved;  // its place in the file, once written
  Tensor data;                                       // (n), the whole storage; undefined if dropped or not kept
  std::uint64_t data_version = 0;
  std::uint64_t number = 0;  // increases with each result
  int waiting = 0;           // number of nodes and checkpoints that saved it
  double listed_at = 0;      // its key in droppable_
};

/// An input of an operator: part of a result, or a tensor without a recipe.
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

/// The end of a result may end its operation, which may end the results that it read, and so on. Destroys them in a
/// loop, not by recursion.
inline RecordedResult::~RecordedResult() {
  // A pointer has no destructor, so graphs that end with their thread can use it.
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

/// The note of an operation's node, which owns the results.
struct ResultNote : NodeNote {
  std::vector<std::shared_ptr<RecordedResult>> results;
};

}  // namespace poolgrad
