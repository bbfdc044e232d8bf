#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "allocator/caching_allocator.h"
#include "allocator/memory/stream_capture.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/workspace.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/transpose.cuh"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

template <class T>
struct Same {
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const { out[0] = in[0]; }
};
template <class T>
struct Constant {
  T value;
  POOLGRAD_HD void operator()(std::int64_t, const T*, T* out) const { out[0] = value; }
};
template <class T>
struct Progress {
  ArithmeticSequence numbers;
  POOLGRAD_HD void operator()(std::int64_t i, const T*, T* out) const { out[0] = numbers.at<T>(i); }
};

/// Equal dtypes copy bits, so that no value changes.
void copy_on_device(Stream stream, const View& out, const View& x) {
  if (out.dtype != x.dtype)
    return with_compute_type(x.dtype, [&]<class T>(T) {
      cuda::for_each_element<T, true>("copy", stream, std::array{out}, std::array{x}, Same<T>{});
    });
  with_word(x.dtype, [&]<class Word>(Word) {
    if (const auto transposed = cuda::Transposition::between(out, x))
      return cuda::transpose<Word>(stream, out, x, *transposed);
    cuda::for_each_element<Word>("copy", stream, std::array{out}, std::array{x}, Same<Word>{});
  });
}

std::int64_t bytes_in(const View& view) { return view.count() * static_cast<std::int64_t>(size_of(view.dtype)); }

/// A row-major copy of a view's shape in a dtype. Uses the view itself if it is already row-major and of that dtype.
class Dense {
 public:
  Dense(Stream stream, const View& like, DType dtype) : view_(like) {
    if (like.contiguous() && like.dtype == dtype) return;
    view_.dtype = dtype;
    std::int64_t stride = 1;
    for (int d = view_.rank - 1; d >= 0; --d) {
      view_.strides[d] = stride;
      stride *= view_.shape[d];
    }
    view_.data = memory_.emplace(stream, "copy", bytes_in(view_)).data();
  }
  const View& view() const { return view_; }
  bool own() const { return memory_.has_value(); }

 private:
  View view_;
  std::optional<Workspace<std::byte>> memory_;
};

/// Runs on the source's stream, ordered after and before the work of both streams. Each stream then uses only memory of
/// its own device, as the pools require. Peer access, where available, avoids a copy through the host.
void copy_between_devices(Stream target_stream, Stream source_stream, const View& out, const View& x) {
  allocator_for(target_stream.device).memory().share_with(source_stream.device);
  const Dense source(source_stream, x, out.dtype), target(target_stream, out, out.dtype);
  if (source.own()) copy_on_device(source_stream, source.view(), x);
  cuda::order(source_stream, target_stream);
  cuda::copy_to_device(source_stream, target.view().data, target_stream.device.index, source.view().data,
                       static_cast<std::size_t>(bytes_in(out)));
  cuda::order(target_stream, source_stream);
  if (target.own()) copy_on_device(target_stream, out, target.view());
}

/// Copies through pinned memory. `from` has been read on return, without a wait for the device. Copies of more than
/// `most` bytes, or without pinned memory, read `from` directly.
void copy_from_host(Stream stream, void* to, const void* from, std::int64_t bytes) {
  constexpr std::int64_t most = std::int64_t{32} << 20, page = PinnedMemory::page;
  CachingAllocator& pool = pinned_allocator_for(stream.device);
  const Stream host{stream.device, PinnedMemory::host_stream};
  const auto* const source = static_cast<const std::byte*>(from);
  auto* const target = static_cast<std::byte*>(to);
  const auto whole = [&](std::int64_t begin) {
    cuda::copy_bytes(stream, target + begin, source + begin, static_cast<std::size_t>(bytes - begin));
  };
  if (bytes > most) return whole(0);
  const MemoryScope scope("copy", Category::workspace);
  for (std::int64_t begin = 0, end; begin < bytes; begin = end) {
    end = std::min(bytes, begin + page);
    // A block of a power of two at a multiple of its size lies in one page.
    const std::size_t size = std::bit_ceil(static_cast<std::size_t>(end - begin));
    const auto had = pool.try_allocate({.bytes = size, .alignment = size, .stream = host});
    void* const* const staged = std::get_if<void*>(&had);
    if (staged == nullptr) return whole(begin);
    const std::unique_ptr<void, std::function<void(void*)>> given_back(
        *staged, [&](void* block) { pool.deallocate(block, size, size, host); });
    std::memcpy(*staged, source + begin, static_cast<std::size_t>(end - begin));
    pool.use(*staged, stream);
    cuda::copy_bytes(stream, target + begin, *staged, static_cast<std::size_t>(end - begin));
  }
}

/// Throws DeviceError for a recorded step that leaves its device. The host would read data before a replay writes it,
/// and replays would not reread host memory.
void check_not_recorded(int to, int from) {
  const StreamCapture* const capture = StreamCapture::current();
  if (capture == nullptr || to == from || (capture->device().index != to && capture->device().index != from)) return;
  throw DeviceError("[copy] a recorded step on " + to_string(capture->device()) + " cannot " +
                    (to < 0     ? "be read by the host"
                     : from < 0 ? "copy from the host, because replays would not read the host memory again"
                                : "copy between devices"));
}

}  // namespace

/// Between host and device, each side converts to row-major order; the source side also converts the dtype. `stream` is
/// of the destination's device, or of the source's if the destination is the host.
void on_cuda::copy(Stream stream, const View& out, const View& x) {
  if (out.count() == 0) return;
  const int to = cuda::device_of(stream, out.data), from = cuda::device_of(stream, x.data);
  check_not_recorded(to, from);
  const auto stream_of = [&](int device) {
    const Device owner{DeviceType::cuda, static_cast<std::uint8_t>(device)};
    return device < 0 ? Stream{cpu} : owner == stream.device ? stream : current_stream(owner);
  };
  if (to >= 0 && from >= 0)
    return to == from ? copy_on_device(stream_of(to), out, x)
                      : copy_between_devices(stream_of(to), stream_of(from), out, x);
  const auto copy_there = [&](int device, const View& target, const View& source) {
    device >= 0 ? copy_on_device(stream, target, source) : on_cpu::copy(Stream{cpu}, target, source);
  };
  const Dense source(stream_of(from), x, out.dtype), target(stream_of(to), out, out.dtype);
  if (source.own()) copy_there(from, source.view(), x);
  if (from < 0) {
    copy_from_host(stream, target.view().data, source.view().data, bytes_in(out));
  } else {
    cuda::copy_bytes(stream, target.view().data, source.view().data, static_cast<std::size_t>(bytes_in(out)));
    cuda::synchronize(stream);  // pageable memory has been waited for, pinned has not
  }
  if (target.own()) copy_there(to, out, target.view());
}

void on_cuda::fill(Stream stream, const View& out, double value) {
  with_compute_type(out.dtype, [&]<class T>(T) {
    cuda::for_each_element<T>("fill", stream, std::array{out}, std::array<View, 0>{},
                              Constant<T>{static_cast<T>(value)});
  });
}

void on_cuda::arange(Stream stream, const View& out, const ArithmeticSequence& numbers) {
  with_type_among<double, std::int64_t>(is_floating(out.dtype) ? DType::f64 : DType::i64, [&]<class T>(T) {
    cuda::for_each_element<T, true>("arange", stream, std::array{out}, std::array<View, 0>{}, Progress<T>{numbers});
  });
}

}  // namespace poolgrad::kernels
