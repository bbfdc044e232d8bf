// The gated delta rule by chunks (Yang et al. 2024, 2025). With decays G_ij = e^(gate_(j+1) + ... + gate_i), a_i the
// decay since the chunk began and S the state before it, the rows of a chunk are
//   (I + L) U = beta (V - a K S),  L_ij = beta_i G_ij <k_i, k_j> for i > j  (without the delta rule: U = beta V)
//   O = a Q S + A U,               A_ij = G_ij <q_i, k_j> for i >= j
//   S' = a_last S + sum_j G_last,j k_j u_j^T.
// Decays are products, never quotients, so gates of -infinity are exact.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/workspace.h"
#include "kernels/parallel.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using simd::Compute;
using simd::Vec;

template <class T>
constexpr std::int64_t padded(std::int64_t n) {
  return (n + simd::lanes<T> - 1) / simd::lanes<T> * simd::lanes<T>;
}

/// Which part of the left operand of a product is not 0.
enum class Part { all, lower, upper };

/// Element (r, p) of a left operand is data[r * row + p * step].
template <class T>
struct Left {
  const T* data;
  std::int64_t row, step;
  Part part = Part::all;
};

template <class T, int Rows, int Vectors>
void multiply_block(T* c, std::int64_t ldc, const Left<T>& a, const T* b, std::int64_t ldb, std::int64_t begin,
                    std::int64_t end, bool add) {
  constexpr int n = simd::lanes<T>;
  Vec<T> sum[std::size_t{Rows}][std::size_t{Vectors}];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) sum[r][v] = add ? simd::load<T>(c + r * ldc + v * n) : Vec<T>{};
  const T* factor = a.data + begin * a.step;
  const T* row = b + begin * ldb;
  for (std::int64_t p = begin; p < end; ++p, factor += a.step, row += ldb) {
    Vec<T> line[std::size_t{Vectors}];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) line[v] = simd::load<T>(row + v * n);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sum[r][v] += factor[r * a.row] * line[v];
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) simd::store(c + r * ldc + v * n, sum[r][v]);
}

/// c (m, n) = a (m, k) b (k, n), or c += a b with `add`. n is a multiple of the lanes.
template <class T>
void multiply(T* c, std::int64_t ldc, const Left<T>& a, const T* b, std::int64_t ldb, std::int64_t m, std::int64_t n,
              std::int64_t k, bool add = false) {
  constexpr std::int64_t most = simd::vector_bytes == 64 ? 8 : 4, lanes = simd::lanes<T>;
  for (std::int64_t i = 0; i < m;) {
    const std::int64_t rows = m - i >= most ? most : 1;
    const std::int64_t begin = a.part == Part::upper ? i : 0, end = a.part == Part::lower ? std::min(k, i + rows) : k;
    const Left<T> of_block{a.data + i * a.row, a.row, a.step};
    for (std::int64_t j = 0; j < n; j += 2 * lanes) {
      const auto block = n - j > lanes ? (rows > 1 ? &multiply_block<T, most, 2> : &multiply_block<T, 1, 2>)
                                       : (rows > 1 ? &multiply_block<T, most, 1> : &multiply_block<T, 1, 1>);
      block(c + i * ldc + j, ldc, of_block, b + j, ldb, begin, end, add);
    }
    i += rows;
  }
}

/// out (columns, rows) = in (rows, columns)^T; both sizes are multiples of the lanes.
template <class T>
void transpose(T* out, const T* in, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t n = simd::lanes<T>;
  for (std::int64_t i = 0; i < rows; i += n)
    for (std::int64_t j = 0; j < columns; j += n) {
      Vec<T> block[std::size_t{n}];
      for (std::int64_t r = 0; r < n; ++r) block[r] = simd::load<T>(in + (i + r) * columns + j);
      simd::transpose<T>(block);
      for (std::int64_t r = 0; r < n; ++r) simd::store(out + (j + r) * rows + i, block[r]);
    }
}

/// body(i) for i = 0, lanes, ... below the padded n.
template <class T, class Body>
inline void for_lanes(std::int64_t n, const Body& body) {
  for (std::int64_t i = 0; i < n; i += simd::lanes<T>) body(i);
}

template <class T>
void scale_row(T* row, T factor, std::int64_t n) {
  for_lanes<T>(n, [&](std::int64_t i) { simd::store(row + i, simd::load<T>(row + i) * factor); });
}

template <class T>
T dot(const T* a, const T* b, std::int64_t n) {
  Vec<T> sum{};
  for_lanes<T>(n, [&](std::int64_t i) { sum += simd::load<T>(a + i) * simd::load<T>(b + i); });
  return simd::sum<T>(sum);
}

/// Sizes of a call. K, V and the chunk are rounded up to whole vectors.
template <class T>
struct Sizes {
  explicit Sizes(const DeltaRule& x)
      : length(x.q.shape[1]),
        heads(x.q.shape[2]),
        items(x.q.shape[0] * heads),
        k(x.q.shape[3]),
        v(x.v.shape[3]),
        chunk(std::clamp<std::int64_t>(length, 1, x.chunk)),
        chunks((length + chunk - 1) / chunk),
        kp(padded<T>(k)),
        vp(padded<T>(v)),
        cp(padded<T>(chunk)) {}

  std::int64_t length, heads, items, k, v, chunk, chunks, kp, vp, cp;

  std::int64_t rows(std::int64_t c) const { return std::min(chunk, length - c * chunk); }
  /// Elements that a thread needs in a forward pass.
  std::int64_t forward() const { return 3 * cp * kp + 2 * cp * vp + 3 * cp * cp + kp * vp + 5 * cp; }
  /// Elements that a thread needs in a backward pass.
  std::int64_t backward() const {
    return forward() + 2 * cp * kp + 3 * cp * vp + 2 * cp * cp + 3 * kp * vp + cp + chunks * (cp * vp + kp * vp);
  }
};

/// Hands out parts of a thread's scratch.
template <class T>
class Parts {
 public:
  explicit Parts(T* next) : next_(next) {}
  T* take(std::int64_t elements) { return std::exchange(next_, next_ + elements); }

 private:
  T* next_;
};

/// One head of one sequence, chunk by chunk. S is the storage type of q, k and v.
template <class S>
class Head {
 public:
  using T = Compute<S>;

  Head(const DeltaRule& x, std::int64_t item, T* scratch)
      : x_(x), at_(x), parts_(scratch), batch_(item / at_.heads), head_(item % at_.heads) {
    for (T** const rows : {&q_, &k_, &kt_}) *rows = parts_.take(at_.cp * at_.kp);
    for (T** const rows : {&v_, &u_}) *rows = parts_.take(at_.cp * at_.vp);
    for (T** const square : {&decay_, &a_, &n_}) *square = parts_.take(at_.cp * at_.cp);
    state_ = parts_.take(at_.kp * at_.vp);
    for (T** const row : {&beta_, &alpha_, &since_, &col_, &since_gradient_}) *row = parts_.take(at_.cp);
  }

  void forward(const View& out, const View& last) {
    load_state(state_, x_.state);
    for (std::int64_t c = 0; c < at_.chunks; ++c) {
      const std::int64_t rows = at_.rows(c);
      load_chunk(c);
      load(q_, x_.q, c, at_.k, at_.kp);
      multiply<T>(a_, at_.cp, {q_, at_.kp, 1}, kt_, at_.cp, rows, at_.cp, at_.k);
      mask_lower(
          a_, rows, [&](std::int64_t) { return T(1); }, true);
      solve(rows, state_);
      multiply<T>(v_, at_.vp, {q_, at_.kp, 1}, state_, at_.vp, rows, at_.vp, at_.k);
      for (std::int64_t i = 0; i < rows; ++i) scale_row(v_ + i * at_.vp, since_[i], at_.vp);
      multiply<T>(v_, at_.vp, {a_, at_.cp, 1, Part::lower}, u_, at_.vp, rows, at_.vp, rows, true);
      store(out, v_, c, at_.v, at_.vp);
      advance(rows, state_, state_);
    }
    store_state(last, state_);
  }

  void backward(const View& grad_out, const View& grad_last, const DeltaRuleGradients& gradients) {
    for (T** const rows : {&dq_, &dk_}) *rows = parts_.take(at_.cp * at_.kp);
    for (T** const rows : {&d_out_, &du_, &ut_}) *rows = parts_.take(at_.cp * at_.vp);
    for (T** const square : {&b_, &w_}) *square = parts_.take(at_.cp * at_.cp);
    for (T** const state : {&d_state_, &state_t_, &d_state_t_}) *state = parts_.take(at_.kp * at_.vp);
    d_beta_ = parts_.take(at_.cp);
    T* const all_u = parts_.take(at_.chunks * at_.cp * at_.vp);
    T* const all_states = parts_.take(at_.chunks * at_.kp * at_.vp);
    if (at_.chunks > 0) load_state(all_states, x_.state);
    for (std::int64_t c = 0; c < at_.chunks; ++c) {
      T* const state = all_states + c * at_.kp * at_.vp;
      u_ = all_u + c * at_.cp * at_.vp;
      load_chunk(c);
      solve(at_.rows(c), state);
      std::fill(u_ + at_.rows(c) * at_.vp, u_ + at_.cp * at_.vp, T(0));
      if (c + 1 < at_.chunks) advance(at_.rows(c), state, state + at_.kp * at_.vp);
    }
    load_state(d_state_, grad_last);
    for (std::int64_t c = at_.chunks - 1; c >= 0; --c) {
      u_ = all_u + c * at_.cp * at_.vp;
      state_ = all_states + c * at_.kp * at_.vp;
      backward_chunk(c, grad_out, gradients);
    }
    if (gradients.dstate.data) store_state(gradients.dstate, d_state_);
  }

 private:
  /// Rows of chunk c of x (B, T, H, n), with zeros up to whole vectors.
  void load(T* to, const View& x, std::int64_t c, std::int64_t n, std::int64_t stride) const {
    const S* from = x.as<const S>() + batch_ * x.strides[0] + c * at_.chunk * x.strides[1] + head_ * x.strides[2];
    for (std::int64_t i = 0; i < at_.rows(c); ++i, from += x.strides[1], to += stride)
      for_lanes<T>(stride, [&](std::int64_t j) { simd::store(to + j, simd::load_partial<T>(from + j, n - j)); });
  }
  void store(const View& x, const T* from, std::int64_t c, std::int64_t n, std::int64_t stride) const {
    S* to = x.as<S>() + batch_ * x.strides[0] + c * at_.chunk * x.strides[1] + head_ * x.strides[2];
    for (std::int64_t i = 0; i < at_.rows(c); ++i, to += x.strides[1], from += stride)
      for_lanes<T>(stride, [&](std::int64_t j) { simd::store_partial(to + j, simd::load<T>(from + j), n - j); });
  }
  /// A number a position, (B, T, H) in the compute type.
  T* number(const View& x, std::int64_t c, std::int64_t i) const {
    return x.as<T>() + batch_ * x.strides[0] + (c * at_.chunk + i) * x.strides[1] + head_ * x.strides[2];
  }
  std::int64_t state_offset() const { return (batch_ * at_.heads + head_) * at_.k * at_.v; }
  void load_state(T* to, const View& x) const {
    std::fill(to, to + at_.kp * at_.vp, T(0));
    if (!x.data) return;
    for (std::int64_t i = 0; i < at_.k; ++i)
      std::copy_n(x.as<const T>() + state_offset() + i * at_.v, at_.v, to + i * at_.vp);
  }
  void store_state(const View& x, const T* from) const {
    for (std::int64_t i = 0; i < at_.k; ++i)
      std::copy_n(from + i * at_.vp, at_.v, x.as<T>() + state_offset() + i * at_.v);
  }

  /// Loads k, its transpose, v, beta and the decays.
  void load_chunk(std::int64_t c) {
    const std::int64_t rows = at_.rows(c);
    load(k_, x_.k, c, at_.k, at_.kp);
    std::fill(k_ + rows * at_.kp, k_ + at_.cp * at_.kp, T(0));
    transpose(kt_, k_, at_.cp, at_.kp);
    load(v_, x_.v, c, at_.v, at_.vp);
    T since = 1;
    for (std::int64_t i = 0; i < rows; ++i) {
      beta_[i] = *number(x_.beta, c, i);
      alpha_[i] = std::exp(*number(x_.gate, c, i));
      since_[i] = since *= alpha_[i];
      T* const row = decay_ + i * at_.cp;
      for_lanes<T>(at_.cp, [&](std::int64_t j) {
        simd::store(row + j, i > 0 ? simd::load<T>(row - at_.cp + j) * alpha_[i] : Vec<T>{});
      });
      row[i] = 1;
    }
  }

  /// square_ij *= factor(i) decay_ij at and below the diagonal, or below it alone; 0 above.
  template <class Factor>
  void mask_lower(T* square, std::int64_t rows, const Factor& factor, bool diagonal) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      T* const row = square + i * at_.cp;
      const T by = factor(i);
      const std::int64_t end = diagonal ? i + 1 : i;
      for_lanes<T>(end, [&](std::int64_t j) {
        simd::store(row + j, simd::load<T>(row + j) * simd::load<T>(decay_ + i * at_.cp + j) * by);
      });
      std::fill(row + end, row + at_.cp, T(0));
    }
  }

  /// u = (I + L)^-1 beta (v - a k S), and n = -L; without the delta rule u = beta v.
  void solve(std::int64_t rows, const T* state) {
    if (x_.delta) multiply<T>(u_, at_.vp, {k_, at_.kp, 1}, state, at_.vp, rows, at_.vp, at_.k);
    for (std::int64_t i = 0; i < rows; ++i)
      for_lanes<T>(at_.vp, [&](std::int64_t j) {
        const Vec<T> v = simd::load<T>(v_ + i * at_.vp + j);
        simd::store(u_ + i * at_.vp + j,
                    (x_.delta ? v - since_[i] * simd::load<T>(u_ + i * at_.vp + j) : v) * beta_[i]);
      });
    if (!x_.delta) return;
    multiply<T>(n_, at_.cp, {k_, at_.kp, 1}, kt_, at_.cp, rows, at_.cp, at_.k);
    mask_lower(
        n_, rows, [&](std::int64_t i) { return -beta_[i]; }, false);
    for (std::int64_t i = 0; i < rows; i += solved_rows) {
      const std::int64_t end = std::min(rows, i + solved_rows);
      multiply<T>(u_ + i * at_.vp, at_.vp, {n_ + i * at_.cp, at_.cp, 1}, u_, at_.vp, end - i, at_.vp, i, true);
      for (std::int64_t r = i + 1; r < end; ++r)
        multiply<T>(u_ + r * at_.vp, at_.vp, {n_ + r * at_.cp + i, at_.cp, 1}, u_ + i * at_.vp, at_.vp, 1, at_.vp,
                    r - i, true);
    }
  }

  /// du = (I + L)^-T du.
  void solve_transposed(std::int64_t rows) {
    for (std::int64_t i = (rows - 1) / solved_rows * solved_rows; i >= 0; i -= solved_rows) {
      const std::int64_t end = std::min(rows, i + solved_rows);
      multiply<T>(du_ + i * at_.vp, at_.vp, {n_ + end * at_.cp + i, 1, at_.cp}, du_ + end * at_.vp, at_.vp, end - i,
                  at_.vp, rows - end, true);
      for (std::int64_t r = end - 2; r >= i; --r)
        multiply<T>(du_ + r * at_.vp, at_.vp, {n_ + (r + 1) * at_.cp + r, 1, at_.cp}, du_ + (r + 1) * at_.vp, at_.vp, 1,
                    at_.vp, end - r - 1, true);
    }
  }

  /// after = a_last before + sum_j decay_last,j k_j u_j^T; overwrites k.
  void advance(std::int64_t rows, const T* before, T* after) {
    for (std::int64_t j = 0; j < rows; ++j) scale_row(k_ + j * at_.kp, last_decay(rows)[j], at_.kp);
    for_lanes<T>(at_.kp * at_.vp,
                 [&](std::int64_t i) { simd::store(after + i, simd::load<T>(before + i) * since_[rows - 1]); });
    multiply<T>(after, at_.vp, {k_, 1, at_.kp}, u_, at_.vp, at_.k, at_.vp, rows, true);
  }
  const T* last_decay(std::int64_t rows) const { return decay_ + (rows - 1) * at_.cp; }

  /// Gradients of chunk c. d_state_ goes from the gradient of the state after it to that of the state before it. w
  /// sums, for each decay, the product of the decay and its gradient.
  void backward_chunk(std::int64_t c, const View& grad_out, const DeltaRuleGradients& gradients) {
    const std::int64_t rows = at_.rows(c), cp = at_.cp, kp = at_.kp, vp = at_.vp;
    const auto one = [](std::int64_t) { return T(1); };
    load_chunk(c);
    load(q_, x_.q, c, at_.k, kp);
    if (grad_out.data)
      load(d_out_, grad_out, c, at_.v, vp);
    else
      std::fill(d_out_, d_out_ + rows * vp, T(0));
    transpose(ut_, u_, cp, vp);
    transpose(state_t_, state_, kp, vp);
    transpose(d_state_t_, d_state_, kp, vp);
    multiply<T>(a_, cp, {q_, kp, 1}, kt_, cp, rows, cp, at_.k);
    mask_lower(a_, rows, one, true);
    // The gradient of u, by the outputs and by the next state.
    multiply<T>(du_, vp, {k_, kp, 1}, d_state_, vp, rows, vp, at_.k);
    for (std::int64_t j = 0; j < rows; ++j) scale_row(du_ + j * vp, last_decay(rows)[j], vp);
    multiply<T>(du_, vp, {a_, 1, cp, Part::upper}, d_out_, vp, rows, vp, rows, true);
    // Gradients of a q S and of A = decay q k^T.
    multiply<T>(w_, cp, {d_out_, vp, 1}, ut_, cp, rows, cp, at_.v);
    multiply<T>(dq_, kp, {d_out_, vp, 1}, state_t_, kp, rows, kp, at_.v);
    for (std::int64_t i = 0; i < rows; ++i) {
      since_gradient_[i] = since_[i] * dot(q_ + i * kp, dq_ + i * kp, kp);
      scale_row(dq_ + i * kp, since_[i], kp);
      T *const w = w_ + i * cp, *const a = a_ + i * cp;
      for_lanes<T>(cp, [&](std::int64_t j) {
        const Vec<T> gradient = simd::load<T>(w + j);
        simd::store(w + j, gradient * simd::load<T>(a + j));
        simd::store(a + j, gradient);
      });
    }
    mask_lower(a_, rows, one, true);
    multiply<T>(dq_, kp, {a_, cp, 1, Part::lower}, k_, kp, rows, kp, rows, true);
    store(gradients.dq, dq_, c, at_.k, kp);
    // Gradient of the next state by k, u and the decays.
    multiply<T>(dk_, kp, {u_, vp, 1}, d_state_t_, kp, rows, kp, at_.v);
    for (std::int64_t j = 0; j < rows; ++j) {
      const T decay = last_decay(rows)[j];
      w_[(rows - 1) * cp + j] += decay * dot(k_ + j * kp, dk_ + j * kp, kp);
      scale_row(dk_ + j * kp, decay, kp);
    }
    multiply<T>(dk_, kp, {a_, 1, cp, Part::upper}, q_, kp, rows, kp, rows, true);
    since_gradient_[rows - 1] += since_[rows - 1] * dot(d_state_, state_, kp * vp);
    scale_row(d_state_, since_[rows - 1], kp * vp);
    for (std::int64_t i = 0; i < rows; ++i) scale_row(d_out_ + i * vp, since_[i], vp);
    multiply<T>(d_state_, vp, {q_, 1, kp}, d_out_, vp, at_.k, vp, rows, true);
    if (x_.delta) backward_delta(rows);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T by_v = dot(v_ + i * vp, du_ + i * vp, vp);
      *number(gradients.dbeta, c, i) = x_.delta ? d_beta_[i] + by_v : by_v;
    }
    for (std::int64_t i = 0; i < rows; ++i) scale_row(du_ + i * vp, beta_[i], vp);
    store(gradients.dv, du_, c, at_.v, vp);
    if (x_.delta) {
      for (std::int64_t i = 0; i < rows; ++i) scale_row(du_ + i * vp, -since_[i], vp);
      multiply<T>(d_state_, vp, {k_, 1, kp}, du_, vp, at_.k, vp, rows, true);
    }
    store(gradients.dk, dk_, c, at_.k, kp);
    gate_gradients(c, gradients.dgate);
  }

  /// Gradients by (I + L) u = beta (v - a k S): du becomes that of the right-hand side.
  void backward_delta(std::int64_t rows) {
    const std::int64_t cp = at_.cp, kp = at_.kp, vp = at_.vp;
    multiply<T>(b_, cp, {k_, kp, 1}, kt_, cp, rows, cp, at_.k);
    mask_lower(
        b_, rows, [](std::int64_t) { return T(1); }, false);
    for (std::int64_t i = 0; i < rows; ++i)
      for_lanes<T>(cp,
                   [&](std::int64_t j) { simd::store(n_ + i * cp + j, simd::load<T>(b_ + i * cp + j) * -beta_[i]); });
    solve_transposed(rows);
    multiply<T>(a_, cp, {du_, vp, 1}, ut_, cp, rows, cp, at_.v);  // minus the gradient of L
    multiply<T>(dq_, kp, {du_, vp, 1}, state_t_, kp, rows, kp, at_.v);
    for (std::int64_t i = 0; i < rows; ++i) {
      T *const w = w_ + i * cp, *const b = b_ + i * cp, *const a = a_ + i * cp;
      d_beta_[i] = -dot(a, b, cp);
      for_lanes<T>(cp, [&](std::int64_t j) {
        simd::store(w + j, simd::load<T>(w + j) - simd::load<T>(a + j) * simd::load<T>(b + j) * beta_[i]);
      });
      const T by_k = since_[i] * dot(k_ + i * kp, dq_ + i * kp, kp);
      d_beta_[i] -= by_k;
      since_gradient_[i] -= beta_[i] * by_k;
      for_lanes<T>(kp, [&](std::int64_t j) {
        simd::store(dk_ + i * kp + j,
                    simd::load<T>(dk_ + i * kp + j) - simd::load<T>(dq_ + i * kp + j) * (beta_[i] * since_[i]));
      });
    }
    mask_lower(
        a_, rows, [&](std::int64_t i) { return -beta_[i]; }, false);
    multiply<T>(dk_, kp, {a_, cp, 1, Part::lower}, k_, kp, rows, kp, rows, true);
    multiply<T>(dk_, kp, {a_, 1, cp, Part::upper}, k_, kp, rows, kp, rows, true);
  }

  /// The gate at l decays from every j < l, and from the state, to every i >= l.
  void gate_gradients(std::int64_t c, const View& dgate) {
    std::fill(col_, col_ + at_.cp, T(0));
    T since = 0;
    for (std::int64_t l = at_.rows(c) - 1; l >= 0; --l) {
      Vec<T> sum{};
      since += since_gradient_[l];
      for_lanes<T>(l, [&](std::int64_t j) {
        const Vec<T> total = simd::load<T>(col_ + j) + simd::load_partial<T>(w_ + l * at_.cp + j, l - j);
        simd::store(col_ + j, total);
        sum += l - j >= simd::lanes<T> ? total : simd::load_partial<T>(col_ + j, l - j);
      });
      *number(dgate, c, l) = since + simd::sum<T>(sum);
    }
  }

  static constexpr std::int64_t solved_rows = 8;

  const DeltaRule& x_;
  const Sizes<T> at_;
  Parts<T> parts_;
  const std::int64_t batch_, head_;
  T *q_, *k_, *kt_, *v_, *u_, *decay_, *a_, *n_, *state_, *beta_, *alpha_, *since_, *col_, *since_gradient_;
  T *dq_, *dk_, *d_out_, *du_, *ut_, *b_, *w_, *d_state_, *state_t_, *d_state_t_, *d_beta_;
};

/// Bytes of scratch for all threads: `elements` of one.
template <class Elements>
std::int64_t scratch_bytes(const DeltaRule& x, const Elements& elements) {
  return with_floating_compute_type(x.q.dtype, [&]<class T>(T) {
    const Sizes<T> sizes(x);
    return std::min<std::int64_t>(num_threads(), sizes.items) * elements(sizes) * static_cast<std::int64_t>(sizeof(T));
  });
}

template <class Body>
void for_heads(Stream stream, const DeltaRule& x, std::int64_t bytes, const Body& body) {
  const SteadyThreads steady;
  const Workspace<std::byte> scratch(stream, "delta_rule", bytes);
  with_floating_type(x.q.dtype, [&]<class S>(S) {
    const std::int64_t items = x.q.shape[0] * x.q.shape[2];
    if (items == 0) return;
    const std::int64_t each = bytes / std::min<std::int64_t>(num_threads(), items);
    parallel_items(items, [&](std::int64_t item, int worker) {
      body(Head<S>(x, item, reinterpret_cast<Compute<S>*>(scratch.data() + worker * each)));
    });
  });
}

}  // namespace

std::int64_t on_cpu::delta_rule_scratch(const DeltaRule& rule) {
  return scratch_bytes(rule, [](const auto& sizes) { return sizes.forward(); });
}

std::int64_t on_cpu::delta_rule_backward_scratch(const DeltaRule& rule) {
  return scratch_bytes(rule, [](const auto& sizes) { return sizes.backward(); });
}

void on_cpu::delta_rule(Stream stream, const DeltaRule& rule, const View& out, const View& last) {
  for_heads(stream, rule, delta_rule_scratch(rule), [&](auto&& head) { head.forward(out, last); });
}

void on_cpu::delta_rule_backward(Stream stream, const DeltaRule& rule, const View& grad_out, const View& grad_last,
                                 const DeltaRuleGradients& gradients) {
  for_heads(stream, rule, delta_rule_backward_scratch(rule),
            [&](auto&& head) { head.backward(grad_out, grad_last, gradients); });
}

}  // namespace poolgrad::kernels
