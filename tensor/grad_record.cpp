#include "tensor/grad_record.h"

#include "allocator/error.h"

namespace poolgrad {

namespace {
// Installed by a static initialiser of another library, so it must need no initialisation of its own.
constinit GradRecordFactory installed = nullptr;
}  // namespace

void set_grad_record_factory(GradRecordFactory factory) { installed = factory; }

std::shared_ptr<GradRecord> make_grad_record() {
  if (!installed) throw Error("[set_requires_grad] gradients need the autograd library, which is not linked");
  return installed();
}

}  // namespace poolgrad
