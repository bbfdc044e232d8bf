// A log of the first run of a checkpointed function, for comparison with the second.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/node.h"
#include "autograd/engine/saved_tensor.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// A recorded operation, to check that the second run does the same.
struct LoggedOperation {
  std::string name;
  std::vector<TensorMeta> outputs;

  explicit LoggedOperation(const RecordedCall& call) : name(call.operation) {
    for (const Tensor& output : call.outputs) outputs.emplace_back(output);
  }
  std::string describe() const {
    std::string text = name;
    for (std::size_t i = 0; i < outputs.size(); ++i) text += (i == 0 ? " " : ", ") + outputs[i].describe();
    return text;
  }
  bool is(const RecordedCall& call) const {
    return name == call.operation && std::equal(outputs.begin(), outputs.end(), call.outputs.begin(),
                                                call.outputs.end(), [](const TensorMeta& meta, const Tensor& tensor) {
                                                  return meta.defined ? meta.matches(tensor) : !tensor.defined();
                                                });
  }
};

/// A tensor that the function did not make.
struct OutsideTensor {
  std::string role;
  TensorMeta meta;
  std::weak_ptr<Storage> storage;
  std::uint64_t version;

  OutsideTensor(std::string what, const Tensor& tensor)
      : role(std::move(what)), meta(tensor), storage(tensor.storage()), version(tensor.storage()->version()) {}
};

/// A leaf that the function captured, and its first use.
struct CapturedLeaf {
  std::size_t operation, input;
  std::weak_ptr<GradRecord> record;  // expired if the function made the leaf itself

  void check(const RecordedCall& now) const {
    const std::shared_ptr<GradRecord> then = record.lock();
    const Tensor found = input < now.inputs.size() ? now.inputs[input] : Tensor();
    if (then == nullptr || (found.defined() && then == found.grad_record())) return;
    throw Error(
        fmt::format("[checkpoint] the function cannot be run again: input {} of its operation {}, {}, is another "
                    "tensor than in the first run: {}",
                    input, operation, now.operation, poolgrad::describe(found)));
  }
};

}  // namespace poolgrad
