#include "kernels/cpu/reduction_plan.h"

#include <array>
#include <cstdlib>

#include "kernels/cpu/strided.h"

namespace poolgrad::kernels {
namespace {

void append(View& view, std::int64_t size, std::int64_t stride) {
  view.shape[view.rank] = size;
  view.strides[view.rank++] = stride;
}

}  // namespace

ReductionPlan plan_reduction(const View& out, const View& x) {
  View kept_x = x, kept_out = out, gone = x;
  kept_x.rank = kept_out.rank = gone.rank = 0;
  for (int d = 0; d < x.rank; ++d) {
    if (out.shape[d] == 1 && x.shape[d] != 1) {
      append(gone, x.shape[d], x.strides[d]);
    } else {
      append(kept_x, x.shape[d], x.strides[d]);
      append(kept_out, x.shape[d], out.strides[d]);
    }
  }
  std::array kept{kept_x, kept_out};
  sort_dimensions(kept);
  merge_dimensions(kept);
  sort_dimensions({&gone, 1});
  merge_dimensions({&gone, 1});
  ReductionPlan plan;
  plan.reduced = gone.count();
  plan.reduced_rank = gone.rank;
  plan.out = kept[1];
  const View& outer = kept[0];
  constexpr std::int64_t worthwhile = 16;  // shorter rows are not worth a separate pass
  const bool columns = outer.rank > 0 && gone.rank > 0 && outer.shape[outer.rank - 1] >= worthwhile &&
                       std::abs(outer.strides[outer.rank - 1]) < std::abs(gone.strides[gone.rank - 1]);
  plan.x = x;
  plan.x.rank = 0;
  plan.outer_rank = outer.rank - (columns ? 1 : 0);
  for (int d = 0; d < plan.outer_rank; ++d) append(plan.x, outer.shape[d], outer.strides[d]);
  plan.outer = plan.x.count();
  for (int d = 0; d < gone.rank; ++d) append(plan.x, gone.shape[d], gone.strides[d]);
  if (columns) {
    append(plan.x, outer.shape[plan.outer_rank], outer.strides[plan.outer_rank]);
    plan.inner = outer.shape[plan.outer_rank];
  }
  return plan;
}

std::int64_t ReductionPlan::workspace_size() const {
  if (has_short_rows()) return 0;
  if (columns()) return outer * RowChunks(reduced).count * inner;
  return outer * segments();
}

}  // namespace poolgrad::kernels
