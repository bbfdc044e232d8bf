#include "kernels/gemm.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "allocator/base/environment.h"
#include "allocator/error.h"
#include "kernels/cpu/gemm/backends.h"
#include "kernels/cpu/kernels.h"

namespace poolgrad::kernels {

#if !defined(POOLGRAD_HAVE_ONEDNN)
bool onednn_takes(const Gemm&) { return false; }
void gemm_onednn(const Gemm&, const void*, const void*, void*) {
  throw ValueError("[gemm] this build was made without oneDNN");
}
std::int64_t gemm_onednn_scratch(const Gemm&) { return 0; }
std::string_view onednn_version() { return ""; }
#endif

namespace {

enum class Backend : std::uint8_t { automatic, native, eigen, onednn };

Backend parse_backend(std::string_view name) {
  if (name == "auto") return Backend::automatic;
  if (name == "poolgrad") return Backend::native;
  if (name == "eigen") return Backend::eigen;
  if (name == "onednn") {
    if (!onednn_version().empty()) return Backend::onednn;
    throw ValueError("[gemm] POOLGRAD_GEMM=onednn needs oneDNN, which this build does not have");
  }
  throw ValueError("[gemm] unknown back end '" + std::string(name) +
                   "': POOLGRAD_GEMM is auto, poolgrad, eigen or onednn");
}

std::atomic<Backend>& chosen_backend() {
  static std::atomic<Backend> backend{[] {
    const char* name = std::getenv("POOLGRAD_GEMM");
    return parse_backend(name && *name ? name : "auto");
  }()};
  return backend;
}

/// The back end for one product: the native kernel replaces a selected one that does not support it.
Backend backend_for(const Gemm& shape) {
  const Backend chosen = chosen_backend();
  if (chosen == Backend::eigen && shape.dtype == DType::f32 && shape.k > 0) return Backend::eigen;
  const bool wants_onednn = chosen == Backend::onednn || (chosen == Backend::automatic && shape.dtype == DType::bf16);
  if (wants_onednn && onednn_takes(shape)) return Backend::onednn;
  return Backend::native;
}

}  // namespace

void on_cpu::gemm(Stream, const Gemm& shape, const void* a, const void* b, void* c) {
  switch (backend_for(shape)) {
    case Backend::eigen: return gemm_eigen(shape, a, b, c);
    case Backend::onednn: return gemm_onednn(shape, a, b, c);
    default: return gemm_native(shape, a, b, c);
  }
}

std::int64_t on_cpu::gemm_scratch(const Gemm& shape) {
  switch (backend_for(shape)) {
    case Backend::eigen: return 0;
    case Backend::onednn: return gemm_onednn_scratch(shape);
    default: return gemm_native_scratch(shape);
  }
}

void set_gemm_backend(std::string_view name) { chosen_backend() = parse_backend(name); }

std::string_view gemm_backend() {
  switch (chosen_backend()) {
    case Backend::eigen: return eigen_version();
    case Backend::onednn: return onednn_version();
    case Backend::native: return "poolgrad";
    default: break;
  }
  static const std::string automatic =
      onednn_version().empty() ? "poolgrad" : "poolgrad, bf16: " + std::string(onednn_version());
  return automatic;
}

namespace {

std::atomic<bool>& tf32() {
  static std::atomic<bool> allowed{switched_on("POOLGRAD_TF32")};
  return allowed;
}

}  // namespace

void allow_tf32(bool allowed) { tf32() = allowed; }
bool tf32_allowed() { return tf32(); }

}  // namespace poolgrad::kernels
