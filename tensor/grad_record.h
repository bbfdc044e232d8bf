// What autograd/ keeps for a tensor. An abstract base, so that tensor/ never includes autograd/.
#pragma once

#include <memory>
#include <string>

namespace poolgrad {

class Tensor;

class GradRecord {
 public:
  virtual ~GradRecord() = default;

  virtual bool requires_grad() const = 0;
  virtual void set_requires_grad(bool value) = 0;
  /// True if no operator made the tensor.
  virtual bool is_leaf() const = 0;
  /// The operator that made it ("matmul"), or "".
  virtual std::string made_by() const = 0;
  /// The accumulated gradient of a leaf; an undefined tensor where there is none.
  virtual Tensor grad() const = 0;
  virtual void set_grad(const Tensor& grad) = 0;
  virtual void backward(const Tensor& self, const Tensor& gradient, bool retain_graph, bool create_graph) = 0;
};

/// Makes the record of a leaf. autograd/ installs it from a static initialiser.
using GradRecordFactory = std::shared_ptr<GradRecord> (*)();
void set_grad_record_factory(GradRecordFactory factory);
/// Throws Error where autograd/ is not linked.
std::shared_ptr<GradRecord> make_grad_record();

}  // namespace poolgrad
