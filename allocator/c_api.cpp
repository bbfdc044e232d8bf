#include "allocator/c_api.h"

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/trace/trace_file.h"

namespace {

using namespace poolgrad;

// What cudaMalloc promises; code that was written for it may rely on that.
constexpr std::size_t device_alignment = 256;
constexpr std::size_t host_alignment = 64;

static_assert(POOLGRAD_CPU == static_cast<int>(DeviceType::cpu));
static_assert(POOLGRAD_CUDA == static_cast<int>(DeviceType::cuda));
static_assert(POOLGRAD_SIM == static_cast<int>(DeviceType::sim));

// Small on purpose: a library that is loaded late shares little room for thread-local variables with all others.
struct LastError {
  std::string text;

  void set(const char* what) noexcept {
    try {
      text = what;
    } catch (...) {  // no memory for a sentence
      text.clear();
    }
  }
};
thread_local LastError last_error;

// What `work` returns, or `failed` with the sentence kept: nothing is thrown to the caller.
template <class Work, class Result>
Result guarded(Result failed, const Work& work) noexcept {
  try {
    return work();
  } catch (const std::exception& error) {
    last_error.set(error.what());
  } catch (...) {
    last_error.set("[poolgrad] unknown error");
  }
  return failed;
}

template <class Work>
int done(const Work& work) noexcept {
  return guarded(-1, [&] {
    work();
    return 0;
  });
}

Device device_of(int kind, int index) {
  if (kind < POOLGRAD_CPU || kind > POOLGRAD_SIM) {
    throw DeviceError("[poolgrad] the kind of a device is 0 (cpu), 1 (cuda) or 2 (sim), got " + std::to_string(kind));
  }
  if (index < 0 || index > 255)
    throw DeviceError("[poolgrad] the index of a device is from 0 to 255, got " + std::to_string(index));
  return {static_cast<DeviceType>(kind), static_cast<std::uint8_t>(index)};
}

CachingAllocator& pool_of(int kind, int index) { return allocator_for(device_of(kind, index)); }

Stream stream_of(const CachingAllocator& pool, void* stream) {
  return {pool.device(), reinterpret_cast<std::uintptr_t>(stream)};
}

std::size_t alignment_on(int kind) { return kind == POOLGRAD_CPU ? host_alignment : device_alignment; }

std::size_t checked_size(ssize_t size, const char* function) {
  if (size < 0) throw ValueError("[" + std::string(function) + "] negative size: " + std::to_string(size));
  return static_cast<std::size_t>(size);
}

void* allocate(int kind, ssize_t size, int index, void* stream) {
  const std::size_t bytes = checked_size(size, "allocate");
  CachingAllocator& pool = pool_of(kind, index);
  return pool.allocate(bytes, alignment_on(kind), stream_of(pool, stream));
}

void deallocate(int kind, void* pointer, ssize_t size, int index, void* stream) noexcept {
  if (pointer == nullptr) return;
  done([&] {
    const std::size_t bytes = checked_size(size, "deallocate");
    CachingAllocator& pool = pool_of(kind, index);
    pool.deallocate(pointer, bytes, alignment_on(kind), stream_of(pool, stream));
  });
}

void* allocate_or_null(int kind, ssize_t size, int index, void* stream) noexcept {
  return guarded(static_cast<void*>(nullptr), [&] { return allocate(kind, size, index, stream); });
}

}  // namespace

void* poolgrad_malloc(ssize_t size, int device, void* stream) {
  return allocate_or_null(POOLGRAD_CUDA, size, device, stream);
}

void* poolgrad_torch_malloc(ssize_t size, int device, void* stream) {
  if (void* pointer = poolgrad_malloc(size, device, stream)) return pointer;
  throw std::runtime_error(last_error.text);
}

void poolgrad_free(void* pointer, ssize_t size, int device, void* stream) {
  deallocate(POOLGRAD_CUDA, pointer, size, device, stream);
}

void* poolgrad_host_malloc(ssize_t size, int device, void* stream) {
  return allocate_or_null(POOLGRAD_CPU, size, device, stream);
}

void poolgrad_host_free(void* pointer, ssize_t size, int device, void* stream) {
  deallocate(POOLGRAD_CPU, pointer, size, device, stream);
}

void* poolgrad_sim_malloc(ssize_t size, int device, void* stream) {
  return allocate_or_null(POOLGRAD_SIM, size, device, stream);
}

void poolgrad_sim_free(void* pointer, ssize_t size, int device, void* stream) {
  deallocate(POOLGRAD_SIM, pointer, size, device, stream);
}

int poolgrad_configure_sim(int device, size_t capacity) {
  return done([&] { configure_simulated_device(device, capacity); });
}

int poolgrad_use(int kind, int index, void* pointer, void* stream) {
  return done([&] {
    CachingAllocator& pool = pool_of(kind, index);
    pool.use(pointer, stream_of(pool, stream));
  });
}

int poolgrad_order(int kind, int index, void* later, void* earlier) {
  return done([&] {
    CachingAllocator& pool = pool_of(kind, index);
    pool.order(stream_of(pool, later), stream_of(pool, earlier));
  });
}

int poolgrad_stream_destroyed(int kind, int index, void* stream) {
  return done([&] {
    CachingAllocator& pool = pool_of(kind, index);
    pool.stream_destroyed(stream_of(pool, stream));
  });
}

int poolgrad_trim(int kind, int index, size_t bytes, size_t* released) {
  return done([&] {
    const std::size_t freed = pool_of(kind, index).trim(bytes);
    if (released != nullptr) *released = freed;
  });
}

int poolgrad_set_budget(int kind, int index, size_t bytes) {
  return done([&] { pool_of(kind, index).set_budget(bytes); });
}

int poolgrad_budget(int kind, int index, size_t* bytes) {
  return done([&] {
    if (bytes == nullptr) throw ValueError("[poolgrad_budget] bytes is NULL");
    *bytes = pool_of(kind, index).budget();
  });
}

char* poolgrad_statistics_json(int kind, int index) {
  return guarded(static_cast<char*>(nullptr), [&] {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const auto& [name, value] : named_statistics(pool_of(kind, index).statistics())) object[name] = value;
    char* text = strdup(object.dump().c_str());
    if (text == nullptr) throw std::bad_alloc();
    return text;
  });
}

int poolgrad_reset_peaks(int kind, int index) {
  return done([&] { pool_of(kind, index).reset_peaks(); });
}

void poolgrad_free_string(char* text) { std::free(text); }

int poolgrad_start_trace(int kind, int index, size_t events) {
  return done([&] {
    CachingAllocator& pool = pool_of(kind, index);
    if (events == 0) {
      pool.start_trace();
    } else {
      pool.start_trace(events);
    }
  });
}

int poolgrad_stop_trace(int kind, int index) {
  return done([&] { pool_of(kind, index).stop_trace(); });
}

int poolgrad_begin_step(int kind, int index) {
  return done([&] { pool_of(kind, index).begin_step(); });
}

int poolgrad_snapshot(int kind, int index, const char* path, const char* format) {
  return done([&] {
    if (path == nullptr) throw ValueError("[poolgrad_snapshot] path is NULL");
    const TraceFormat chosen = format == nullptr ? TraceFormat::pgt : parse_trace_format(format);
    last_error.set(save_trace(path, pool_of(kind, index).trace(), chosen).c_str());
  });
}

const char* poolgrad_last_error(void) { return last_error.text.c_str(); }
