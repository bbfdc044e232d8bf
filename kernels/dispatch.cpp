// The public kernels: checks common to all devices, the call through the device's table, and the cost on simulated
// devices.
#include "kernels/dispatch.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "kernels/cost.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/workspace.h"
#include "kernels/functors/elementwise.h"
#include "kernels/functors/indexing.h"
#include "kernels/functors/order.h"
#include "kernels/launch.h"
#include "kernels/profile.h"
#include "kernels/schedule/device_program.h"
#include "kernels/schedule/tiles.h"

namespace poolgrad::kernels {
namespace {

/// Returns the kernel of the stream's device; nullptr on a simulated one. Throws DeviceError if the device has none.
template <class Function>
Function* kernel_for(Stream stream, std::string_view op, Function* KernelTable::*kernel) {
  const KernelTable* const timed = timed_kernels();
  if (stream.device.is_cpu()) return (timed ? *timed : cpu_kernels).*kernel;
  if (stream.device.is_sim()) return nullptr;
  static const bool usable = cuda::unavailable_reason().empty();
  if (usable && cuda_kernels.*kernel) return (timed ? *timed : cuda_kernels).*kernel;
  throw_no_kernel(stream, op);
}

void charge(Stream stream, const Cost& cost) {
  advance_clock(stream.device, static_cast<std::uint64_t>(Roofline{}.nanoseconds(cost)));
}

/// Calls the kernel of the stream's device. On a simulated device it charges the traffic of every view instead.
template <class Function, class... Operands>
void run(Function* KernelTable::*kernel, std::string_view op, Stream stream, const Operands&... operands) {
  if (const auto own = kernel_for(stream, op, kernel)) return own(stream, operands...);
  charge(stream, traffic(operands...));
}

using Scratch = Workspace<std::byte>;

/// Whether a simulated device stands for a GPU: GPU kernels may need other scratch than CPU kernels.
bool is_like_gpu(Stream stream) { return allocator_for(stream.device).memory().queues_work(); }

}  // namespace

void throw_no_kernel(Stream stream, std::string_view op) {
  const std::string reason = cuda::unavailable_reason();
  throw DeviceError("[" + std::string(op) + "] has no kernel for " + to_string(stream.device) +
                    (reason.empty() ? " in this build" : ": " + reason));
}

void synchronize(Stream stream) {
  if (stream.device.is_cuda()) cuda::finish(stream);
}

// Elementwise.

void unary(Stream stream, UnaryOp op, const View& out, const View& x, double a, double b) {
  if (!is_floating(x.dtype) && !with_functor(op, []<class F>(F) { return F::template on<float>::on_integers; }))
    throw DTypeError("[" + std::string(to_string(op)) + "] needs a floating dtype: x " +
                     std::string(to_string(x.dtype)));
  run(&KernelTable::unary, to_string(op), stream, op, out, x, a, b);
}

void unary_backward(Stream stream, UnaryOp op, const View& dx, const View& grad, const View& x, const View& y, double a,
                    double b) {
  if (const auto kernel = kernel_for(stream, to_string(op), &KernelTable::unary_backward))
    return kernel(stream, op, dx, grad, x, y, a, b);
  charge(stream, traffic(dx, grad, needs_input(op) ? x : needs_output(op) ? y : grad));
}

bool needs_input(UnaryOp op) {
  return with_functor(op, []<class F>(F) { return F::template on<float>::reads_input; });
}
bool needs_output(UnaryOp op) {
  return with_functor(op, []<class F>(F) { return F::template on<float>::reads_output; });
}

#define POOLGRAD_NAME(name, functor) #name,
std::string_view to_string(UnaryOp op) {
  constexpr std::string_view names[] = {POOLGRAD_UNARY_OPS(POOLGRAD_NAME)};
  return names[static_cast<std::size_t>(op)];
}
std::string_view to_string(BinaryOp op) {
  constexpr std::string_view names[] = {POOLGRAD_BINARY_OPS(POOLGRAD_NAME)};
  return names[static_cast<std::size_t>(op)];
}
#undef POOLGRAD_NAME

void binary(Stream stream, BinaryOp op, const View& out, const View& a, const View& b) {
  if (!is_floating(a.dtype) && !with_functor(op, []<class F>(F) { return takes_integers<F>(); }))
    throw DTypeError("[" + std::string(to_string(op)) + "] needs a floating dtype: x " +
                     std::string(to_string(a.dtype)));
  run(&KernelTable::binary, to_string(op), stream, op, out, a, b);
}

void axpby(Stream stream, const View& out, double a, const View& x, double b, const View& y) {
  run(&KernelTable::axpby, "axpby", stream, out, a, x, b, y);
}

void where(Stream stream, const View& out, const View& cond, const View& a, const View& b) {
  run(&KernelTable::where, "where", stream, out, cond, a, b);
}

void silu_mul(Stream stream, const View& out, const View& gate, const View& up) {
  run(&KernelTable::silu_mul, "silu_mul", stream, out, gate, up);
}

void silu_mul_backward(Stream stream, const View& dgate, const View& dup, const View& grad, const View& gate,
                       const View& up) {
  run(&KernelTable::silu_mul_backward, "silu_mul_backward", stream, dgate, dup, grad, gate, up);
}

void copy(Stream stream, const View& out, const View& x) { run(&KernelTable::copy, "copy", stream, out, x); }

void ask_as_copy_with_host(Stream stream, const View& there, DType dtype) {
  if (!is_like_gpu(stream) || there.count() == 0 || (there.contiguous() && there.dtype == dtype)) return;
  const Scratch scratch(stream, "copy", there.count() * static_cast<std::int64_t>(size_of(dtype)));
}

void fill(Stream stream, const View& out, double value) {
  run(&KernelTable::fill, "fill", stream, out, rounded(out.dtype, value));
}

void arange(Stream stream, const View& out, const ArithmeticSequence& numbers) {
  run(&KernelTable::arange, "arange", stream, out, numbers);
}

// Reductions.

void reduce(Stream stream, ReduceOp op, const View& out, const View& x) {
  if (out.count() == 0) return;
  if (const auto kernel = kernel_for(stream, to_string(op), &KernelTable::reduce)) return kernel(stream, op, out, x);
  const Scratch scratch(stream, "reduce", on_cpu::reduce_scratch(out, x));
  charge(stream, traffic(out, x));
}

std::string_view to_string(ReduceOp op) {
  constexpr std::string_view names[] = {"sum", "mean", "product", "maximum", "minimum", "any", "all"};
  return names[static_cast<std::size_t>(op)];
}

void sum_rows(Stream stream, const View& out, const View& x) {
  View row = x;
  for (int d = 0; d + 1 < x.rank; ++d) row.shape[d] = 1, row.strides[d] = 0;
  row.data = out.data;
  row.dtype = out.dtype;
  row.strides[x.rank - 1] = out.strides[0];
  reduce(stream, ReduceOp::sum, row, x);
}

void argmax(Stream stream, const View& out, const View& x) { run(&KernelTable::argmax, "argmax", stream, out, x); }

void argmin(Stream stream, const View& out, const View& x) { run(&KernelTable::argmin, "argmin", stream, out, x); }

void argsort(Stream stream, const View& out, const View& x, bool descending) {
  if (out.count() == 0) return;
  if (const auto own = kernel_for(stream, "argsort", &KernelTable::argsort)) return own(stream, out, x, descending);
  const std::int64_t gpu_scratch = argsort_scratch(x.shape[x.rank - 1], x.count());
  const Scratch scratch(stream, "argsort", is_like_gpu(stream) ? gpu_scratch : on_cpu::argsort_scratch(x));
  charge(stream, traffic(out, x));
}

void cumulative_sum(Stream stream, const View& out, const View& x, bool reverse) {
  run(&KernelTable::cumulative_sum, "cumulative_sum", stream, out, x, reverse);
}

void add_sums_of_squares(Stream stream, const View& sum, std::span<const View> all) {
  if (const auto kernel = kernel_for(stream, "add_sums_of_squares", &KernelTable::add_sums_of_squares))
    return kernel(stream, sum, all);
  const Scratch scratch(stream, "add_sums_of_squares", on_cpu::sums_of_squares_scratch(all));
  for (const View& x : all) charge(stream, traffic(x));
}

// Rows.

void softmax(Stream stream, const View& out, const View& x) { run(&KernelTable::softmax, "softmax", stream, out, x); }

void softmax_backward(Stream stream, const View& dx, const View& grad, const View& out) {
  run(&KernelTable::softmax_backward, "softmax_backward", stream, dx, grad, out);
}

void log_softmax(Stream stream, const View& out, const View& x) {
  run(&KernelTable::log_softmax, "log_softmax", stream, out, x);
}

void log_softmax_backward(Stream stream, const View& dx, const View& grad, const View& out) {
  run(&KernelTable::log_softmax_backward, "log_softmax_backward", stream, dx, grad, out);
}

void logsumexp(Stream stream, const View& out, const View& x) {
  run(&KernelTable::logsumexp, "logsumexp", stream, out, x);
}

void layer_norm(Stream stream, const View& out, const View& mean, const View& rstd, const View& x, const View& weight,
                const View& bias, double epsilon) {
  if (const auto kernel = kernel_for(stream, "layer_norm", &KernelTable::layer_norm))
    return kernel(stream, out, mean, rstd, x, weight, bias, epsilon);
  charge(stream, traffic(out, x));
}

void rms_norm(Stream stream, const View& out, const View& rstd, const View& x, const View& weight, double epsilon) {
  if (const auto kernel = kernel_for(stream, "rms_norm", &KernelTable::rms_norm))
    return kernel(stream, out, rstd, x, weight, epsilon);
  charge(stream, traffic(out, x));
}

namespace {

void charge_norm_backward(Stream stream, std::string_view op, const View& dx, const View& grad, const View& x,
                          bool sums) {
  std::optional<Scratch> scratch;
  if (sums) scratch.emplace(stream, op, on_cpu::norm_backward_scratch(x));
  charge(stream, traffic(dx, grad, x));
}

}  // namespace

void layer_norm_backward(Stream stream, const View& dx, const View& dweight, const View& dbias, const View& grad,
                         const View& x, const View& mean, const View& rstd, const View& weight) {
  if (const auto kernel = kernel_for(stream, "layer_norm_backward", &KernelTable::layer_norm_backward))
    return kernel(stream, dx, dweight, dbias, grad, x, mean, rstd, weight);
  charge_norm_backward(stream, "layer_norm_backward", dx, grad, x, dweight.data || dbias.data);
}

void rms_norm_backward(Stream stream, const View& dx, const View& dweight, const View& grad, const View& x,
                       const View& rstd, const View& weight) {
  if (const auto kernel = kernel_for(stream, "rms_norm_backward", &KernelTable::rms_norm_backward))
    return kernel(stream, dx, dweight, grad, x, rstd, weight);
  charge_norm_backward(stream, "rms_norm_backward", dx, grad, x, dweight.data);
}

void cross_entropy(Stream stream, const View& loss, const View& lse, const View& logits, const View& targets,
                   std::int64_t ignore, double smoothing) {
  run(&KernelTable::cross_entropy, "cross_entropy", stream, loss, lse, logits, targets, ignore, smoothing);
}

void cross_entropy_backward(Stream stream, const View& dlogits, const View& grad, const View& logits, const View& lse,
                            const View& targets, std::int64_t ignore, double smoothing) {
  if (const auto kernel = kernel_for(stream, "cross_entropy_backward", &KernelTable::cross_entropy_backward))
    return kernel(stream, dlogits, grad, logits, lse, targets, ignore, smoothing);
  charge(stream, traffic(dlogits, logits, targets));
}

void rope(Stream stream, const View& out, const View& x, const RotaryPositions& positions,
          const RotaryFrequencies& frequencies, bool inverse) {
  run(&KernelTable::rope, "rope", stream, out, x, positions, frequencies, inverse);
}

// Indexing.

void check_indices(Stream stream, const char* op, const char* what, const View& index, std::int64_t limit,
                   std::int64_t lowest) {
  if (const auto kernel = kernel_for(stream, op, &KernelTable::check_indices))
    return kernel(stream, op, what, index, limit, lowest);
  charge(stream, traffic(index));
}

namespace {

std::int64_t by_index_scratch(Stream stream, std::int64_t limit, const View& index) {
  return is_like_gpu(stream) ? sorting_scratch(index.count()) : on_cpu::by_index_scratch(limit, index);
}

}  // namespace

void index_select(Stream stream, const View& out, const View& x, int dim, const View& index) {
  if (dim == x.rank - 1 && x.rank > 1) {  // every row selects the same columns
    View same = out;
    same.data = index.data;
    same.dtype = DType::i64;
    std::fill_n(same.strides, dim, 0);
    same.strides[dim] = index.strides[0];
    return gather(stream, out, x, dim, same);
  }
  if (const auto kernel = kernel_for(stream, "index_select", &KernelTable::index_select))
    return kernel(stream, out, x, dim, index);
  charge(stream, traffic(out, out));
}

void index_add(Stream stream, const View& out, int dim, const View& index, const View& x) {
  if (const auto own = kernel_for(stream, "index_add", &KernelTable::index_add)) return own(stream, out, dim, index, x);
  const Scratch scratch(stream, "index_add", by_index_scratch(stream, out.shape[dim], index));
  charge(stream, traffic(x, x, x));
}

void gather(Stream stream, const View& out, const View& x, int dim, const View& index) {
  if (const auto kernel = kernel_for(stream, "gather", &KernelTable::gather)) return kernel(stream, out, x, dim, index);
  charge(stream, traffic(out, out, index));
}

namespace {

/// Allocates the scratch of a scatter that may sort: only on a GPU.
std::optional<Scratch> sorting_space(Stream stream, std::string_view op, int dim, const View& index) {
  const std::int64_t n = index.count(), steps = index.shape[dim];
  if (n == 0 || scatter_walks(n / steps, steps) || !is_like_gpu(stream)) return std::nullopt;
  return std::optional<Scratch>(std::in_place, stream, op, sorting_scratch(n));
}

}  // namespace

void scatter(Stream stream, const View& out, int dim, const View& index, const View& x) {
  if (const auto own = kernel_for(stream, "scatter", &KernelTable::scatter)) return own(stream, out, dim, index, x);
  const auto scratch = sorting_space(stream, "scatter", dim, index);
  charge(stream, traffic(x, x, index));
}

void scatter_reduce(Stream stream, BinaryOp op, const View& out, int dim, const View& index, const View& x) {
  bool combines = false;
  with_combination(op, [&](auto) { combines = true; });
  if (!combines) throw ValueError("[scatter_reduce] cannot reduce with " + std::string(to_string(op)));
  if (const auto kernel = kernel_for(stream, "scatter_reduce", &KernelTable::scatter_reduce))
    return kernel(stream, op, out, dim, index, x);
  const auto scratch = sorting_space(stream, "scatter_reduce", dim, index);
  charge(stream, traffic(x, x, x, index));
}

void embedding(Stream stream, const View& out, const View& table, const View& index) {
  if (const auto own = kernel_for(stream, "embedding", &KernelTable::embedding)) return own(stream, out, table, index);
  charge(stream, traffic(out, out));
}

void embedding_backward(Stream stream, const View& dtable, const View& grad, const View& index, std::int64_t padding) {
  if (const auto kernel = kernel_for(stream, "embedding_backward", &KernelTable::embedding_backward))
    return kernel(stream, dtable, grad, index, padding);
  const Scratch scratch(stream, "embedding_backward", by_index_scratch(stream, dtable.shape[0], index));
  charge(stream, traffic(grad, grad, grad));
}

// Random numbers.

void uniform(Stream stream, const RandomKey& key, const View& out, double low, double high) {
  run(&KernelTable::uniform, "uniform", stream, key, out, low, high);
}

void normal(Stream stream, const RandomKey& key, const View& out, double mean, double deviation) {
  run(&KernelTable::normal, "normal", stream, key, out, mean, deviation);
}

void dropout(Stream stream, const RandomKey& key, const View& out, const View& x, double p) {
  run(&KernelTable::dropout, "dropout", stream, key, out, x, p);
}

// Optimizers.

#define POOLGRAD_UPDATE(name, Options)                                                                          \
  void name(Stream stream, const Options& options, std::span<const UpdateOperands> all) {                       \
    if (const auto kernel = kernel_for(stream, #name, &KernelTable::name)) return kernel(stream, options, all); \
    for (const UpdateOperands& one : all) charge(stream, cost_of(one, options.states()));                       \
  }
POOLGRAD_UPDATES(POOLGRAD_UPDATE)
#undef POOLGRAD_UPDATE

void weighted_sum(Stream stream, const View& out, const WeightedSum& numbers, const View& x, const View& y) {
  run(&KernelTable::weighted_sum, "weighted_sum", stream, out, numbers, x, y);
}

// Products and attention.

void gemm(Stream stream, const Gemm& shape, const void* a, const void* b, void* c) {
  if (!is_floating(shape.dtype))
    throw DTypeError("[gemm] needs a floating dtype, got " + std::string(to_string(shape.dtype)));
  if (shape.row_sums && (shape.batch != 1 || shape.bias))
    throw ValueError("[gemm] row sums need a single product without a bias");
  if (shape.m == 0 || shape.batch == 0) return;
  const bool gpu = stream.device.is_cuda() || (stream.device.is_sim() && is_like_gpu(stream)),
             in_epilogue = gpu && shape.n > 0 && sums_rows_in_epilogue(shape);
  if (shape.n > 0) {
    if (const auto kernel = kernel_for(stream, "gemm", &KernelTable::gemm)) {
      kernel(stream, shape, a, b, c);
    } else {
      std::optional<Scratch> scratch;
      if (!gpu) {
        if (const std::int64_t bytes = on_cpu::gemm_scratch(shape)) scratch.emplace(stream, "gemm", bytes);
      } else if (const std::int64_t bytes = gemm_workspace(shape)) {
        scratch.emplace(stream, "gemm", bytes, gemm_workspace_alignment);
      }
      charge(stream, cost_of(shape));
      scratch.reset();
      if (in_epilogue) sum_rows_of(stream, shape, a, /*asks_alone=*/true);
    }
  }
  if (shape.row_sums && !in_epilogue) sum_rows_of(stream, shape, a);
}

void sum_rows_of(Stream stream, const Gemm& shape, const void* a, bool asks_alone) {
  View terms{const_cast<void*>(a), shape.dtype, 2, {shape.k, shape.m}, {shape.lda, 1}};  // op(A)^T
  if (!shape.transpose_a) std::swap(terms.strides[0], terms.strides[1]);
  const View sums{shape.row_sums, shape.out_dtype(), 2, {1, shape.m}, {0, 1}};
  if (!asks_alone) return reduce(stream, ReduceOp::sum, sums, terms);
  const Scratch scratch(stream, "reduce", on_cpu::reduce_scratch(sums, terms));
}

namespace {

/// Allocates the split planes of f32 attention on tensor cores. The shape of k gives the number of key heads.
void ask_for_split(Stream stream, const View& visited, const View& visited_out, const View& k) {
  const Scratch split(stream, "attention", GpuSplitPlan::make(visited, visited_out, k.shape[2]).bytes());
}

/// Makes the allocations of kernels/cuda/attention/forward.cu: the program, and memory for partial results. Results
/// also need memory if they alias operands and several blocks compute them.
void ask_as_gpu_forward(Stream stream, const AttentionSchedule& schedule, const View& q, const View& k, const View& v,
                        const View& out, const View& lse, const View& carry_lse) {
  if (q.shape[0] == 0 || q.shape[1] == 0 || q.shape[2] == 0) return;
  const DType compute = compute_dtype(q.dtype);
  const auto kept = program_on_device(stream, schedule, gpu_tile_rows(compute));
  const auto plan = GpuForwardPlan::make(kept->whole()->program(), q, k, v);
  const auto scratch_of = [&](std::int64_t elements, std::optional<Scratch>& scratch) {
    scratch.emplace(stream, "attention", elements * static_cast<std::int64_t>(size_of(compute)));
  };
  std::optional<Scratch> partial;
  if (plan.parts > 1) return scratch_of(plan.partial_elements(v), partial);
  if (q.dtype == DType::f32 && mma_takes({&q, &k, &v})) return ask_for_split(stream, k, v, k);
  const auto apart = [&](std::optional<Scratch>& scratch, const View& to, bool over_operand) {
    if (plan.chunks > 1 && to.data && over_operand) scratch_of(to.count(), scratch);
  };
  std::optional<Scratch> own_out, own_lse;
  apart(own_out, out, out.data == q.data);
  apart(own_lse, lse, lse.data == carry_lse.data);
}

}  // namespace

void attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
                       const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
                       const View& carry_lse) {
  if (const auto kernel = kernel_for(stream, "attention", &KernelTable::attention_forward))
    return kernel(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse);
  const Cost cost = cost_of(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse);
  if (is_like_gpu(stream)) {
    ask_as_gpu_forward(stream, schedule, q, k, v, out, lse, carry_lse);
    return charge(stream, cost);
  }
  on_cpu::plan_attention_forward(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse,
                                 [&] { charge(stream, cost); });
}

void delta_rule(Stream stream, const DeltaRule& rule, const View& out, const View& last) {
  if (const auto own = kernel_for(stream, "delta_rule", &KernelTable::delta_rule)) return own(stream, rule, out, last);
  const Scratch scratch(stream, "delta_rule", on_cpu::delta_rule_scratch(rule));
  charge(stream, cost_of(stream, rule, out, last));
}

void delta_rule_backward(Stream stream, const DeltaRule& rule, const View& grad_out, const View& grad_last,
                         const DeltaRuleGradients& gradients) {
  if (const auto kernel = kernel_for(stream, "delta_rule", &KernelTable::delta_rule_backward))
    return kernel(stream, rule, grad_out, grad_last, gradients);
  const Scratch scratch(stream, "delta_rule", on_cpu::delta_rule_backward_scratch(rule));
  charge(stream, cost_of(stream, rule, grad_out, grad_last, gradients));
}

void short_convolution(Stream stream, const View& x, const View& weight, const View& before, const View& out) {
  if (const auto kernel = kernel_for(stream, "short_convolution", &KernelTable::short_convolution))
    return kernel(stream, x, weight, before, out);
  const Scratch scratch(stream, "short_convolution", on_cpu::short_convolution_scratch(x, weight, false));
  charge(stream, traffic(x, weight, before, out));
}

void short_convolution_backward(Stream stream, const View& x, const View& weight, const View& before,
                                const View& grad_out, const View& dx, const View& dweight, const View& dbefore) {
  if (const auto kernel = kernel_for(stream, "short_convolution", &KernelTable::short_convolution_backward))
    return kernel(stream, x, weight, before, grad_out, dx, dweight, dbefore);
  const Scratch scratch(stream, "short_convolution",
                        on_cpu::short_convolution_scratch(x, weight, dweight.data != nullptr));
  charge(stream, traffic(x, weight, before, grad_out, dx, dweight, dbefore));
}

void attention_delta(Stream stream, const View& out, const View& grad_out, const View& grad_lse, const View& delta) {
  run(&KernelTable::attention_delta, "attention delta", stream, out, grad_out, grad_lse, delta);
}

void attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
                        const View& k, const View& v, const View& lse, const View& delta, const View& grad_out,
                        const AttentionGradients& gradients) {
  if (q.shape[0] == 0 || q.shape[2] == 0) {  // no query reads the keys
    for (const View* keys : {&gradients.dk, &gradients.dv})
      if (keys->data && !gradients.accumulate) fill(stream, *keys, 0);
    return;
  }
  if (const auto kernel = kernel_for(stream, "attention backward", &KernelTable::attention_backward))
    return kernel(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients);
  const AttentionGradients& g = gradients;
  Cost cost = traffic(q, k, v, lse, delta, grad_out, g.dq, g.dk, g.dv, g.dbias);
  // dq (with dbias) and dk, dv recompute the scores separately.
  const double products = (g.dq.data || g.dbias.data ? 3.0 : 0.0) + (g.dk.data || g.dv.data ? 4.0 : 0.0);
  cost.operations = attention_operations(schedule, products, q, v);
  if (is_like_gpu(stream)) {  // as kernels/cuda/attention/gradients.cu: the program and its transpose
    const std::int64_t rows = gpu_tile_rows(compute_dtype(q.dtype));
    const bool splits = q.dtype == DType::f32 && mma_takes({&q, &k, &v, &grad_out});
    if (g.dq.data || g.dbias.data) {
      program_on_device(stream, schedule, rows);
      if (splits) ask_for_split(stream, k, v, k);
    }
    if (g.dk.data || g.dv.data) {
      program_on_device(stream, schedule.transposed(), rows);
      if (splits) ask_for_split(stream, q, grad_out, k);
    }
    return charge(stream, cost);
  }
  on_cpu::plan_attention_backward(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients,
                                  [&] { charge(stream, cost); });
}

}  // namespace poolgrad::kernels
