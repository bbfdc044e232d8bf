#include "autograd/embedding.h"

#include "allocator/error.h"
#include "autograd/arithmetic.h"
#include "autograd/check.h"
#include "autograd/indexing.h"
#include "autograd/record.h"
#include "autograd/rows.h"
#include "kernels/elementwise.h"
#include "kernels/indexing.h"
#include "tensor/creation.h"

namespace poolgrad {

Tensor embedding(const Tensor& table, const Tensor& index, std::int64_t padding, CallSite) {
  const Operands operands = {{"table", table}, {"index", index}};
  check_devices("embedding", operands);
  if (!is_floating(table.dtype())) fail<DTypeError>("embedding", "the table needs a floating dtype", operands);
  check_dtype("embedding", index, DType::i64, "indices must be i64", operands);
  if (table.rank() != 2) fail<ShapeError>("embedding", "the table is not (rows, columns)", operands);
  check_index_range("embedding", "index", index, table.shape()[0]);

  Shape shape = index.shape();
  shape.append(table.shape()[1]);
  Tensor out = Tensor::empty(shape, table.options());
  const Tensor rows = dense(index);
  kernels::embedding(current_stream(table.device()), out.view(), dense(table).view(), rows.view());
  if (wants_gradient({table}))
    record("embedding", {table}, {out},
           [rows = SavedTensor(rows), padding, like = table.shape(),
            options = table.options()](const BackwardCall& call) -> Gradients {
             const Tensor &grad = call.gradient(), looked_up = rows.unpack();
             if (grad_enabled()) {
               const Tensor skipped = equal(looked_up, full({}, static_cast<double>(padding), looked_up.options()));
               const Tensor kept = masked_fill(grad, unsqueeze(skipped, -1), 0.0);
               return {index_add(zeros(like, options), 0, reshape(looked_up, {looked_up.count()}),
                                 reshape(kept, {looked_up.count(), like[1]}))};
             }
             Tensor dtable = zeros(like, options);
             kernels::embedding_backward(current_stream(grad.device()), dtable.view(), dense(grad).view(),
                                         looked_up.view(), padding);
             return {dtable};
           });
  return out;
}

}  // namespace poolgrad
