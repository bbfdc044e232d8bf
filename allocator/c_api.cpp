#include "allocator/c_api.h"

#include <dlfcn.h>

#include <cxxabi.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "allocator/private_pools.h"
#include "allocator/thread_cache/thread_cache.h"

namespace {

using namespace poolgrad;

// The alignment of cudaMalloc, which callers may rely on.
constexpr std::size_t device_alignment = 256;
constexpr std::size_t host_alignment = 64;

static_assert(POOLGRAD_CPU == static_cast<int>(DeviceType::cpu));
static_assert(POOLGRAD_CUDA == static_cast<int>(DeviceType::cuda));
static_assert(POOLGRAD_SIM == static_cast<int>(DeviceType::sim));

// Small on purpose: libraries loaded at run time share little space for thread-local variables.
struct LastError {
  std::string text;
  bool out_of_memory = false;

  void set(const char* what, bool memory_is_out = false) noexcept {
    out_of_memory = memory_is_out;
    try {
      text = what;
    } catch (...) {  // out of memory for the message
      text.clear();
    }
  }
};
thread_local LastError last_error;

// Returns the result of `work`. On an exception, stores its message and returns `failed`.
template <class Work, class Result>
Result guarded(Result failed, const Work& work) noexcept {
  try {
    return work();
  } catch (const OutOfMemoryError& error) {
    last_error.set(error.what(), true);
  } catch (const std::bad_alloc&) {
    last_error.set("[poolgrad] the machine has no memory left for the bookkeeping of the call", true);
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

// Translates to the pool's stream, so that private pools also tell per-thread streams apart.
Stream stream_of(const CachingAllocator& pool, void* stream) {
  return ThreadCacheTable::named({pool.device(), reinterpret_cast<std::uintptr_t>(stream)});
}

// Calls work(pool), for functions that return 0 or -1.
template <class Work>
int with_pool(int kind, int index, const Work& work) noexcept {
  return done([&] { work(pool_of(kind, index)); });
}

std::size_t alignment_on(int kind) { return kind == POOLGRAD_CPU ? host_alignment : device_alignment; }

std::size_t checked_size(ssize_t size, const char* function) {
  if (size < 0) throw ValueError("[" + std::string(function) + "] negative size: " + std::to_string(size));
  return static_cast<std::size_t>(size);
}

PrivatePools::Id id_of(poolgrad_pool_id id) { return {id.first, id.second}; }

ValueError no_private_pool(const std::string& function, const std::string& fault, const CachingAllocator& pool,
                           poolgrad_pool_id id) {
  return ValueError("[" + function + "] the private pool (" + std::to_string(id.first) + ", " +
                    std::to_string(id.second) + ") of " + to_string(pool.device()) + " " + fault);
}

void* allocate(int kind, ssize_t size, int index, void* stream) {
  const std::size_t bytes = checked_size(size, "allocate");
  CachingAllocator& pool = pool_of(kind, index);
  return private_pools().allocate(pool, bytes, alignment_on(kind), stream_of(pool, stream));
}

void deallocate(int kind, void* pointer, ssize_t size, int index, void* stream) noexcept {
  if (pointer == nullptr) return;
  done([&] {
    const std::size_t bytes = checked_size(size, "deallocate");
    CachingAllocator& pool = pool_of(kind, index);
    private_pools().deallocate(pool, pointer, bytes, alignment_on(kind), stream_of(pool, stream));
  });
}

// Describes the code at `address`, such as "fill_cache+0x1c in libmodel.so".
std::string describe_code(void* address) {
  std::ostringstream text;
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    text << address;
    return text.str();
  }
  const auto* const start = static_cast<const char*>(info.dli_sname != nullptr ? info.dli_saddr : info.dli_fbase);
  text << (info.dli_sname != nullptr ? info.dli_sname : "") << "+0x" << std::hex
       << static_cast<const char*>(address) - start << " in "
       << std::filesystem::path(info.dli_fname).filename().string();
  return text.str();
}

// Adds the caller in C to a pool's report, which names only callers in C++.
std::string asked_for_by(void* caller, std::string report) {
  const std::string line = "\n  asked for by ";
  const std::size_t begin = report.find(line);
  if (begin == std::string::npos) return report;
  const std::size_t text = begin + line.size();
  return report.replace(text, report.find('\n', text) - text, describe_code(caller));
}

// `caller`: the return address of the C function.
void* allocate_or_null(int kind, ssize_t size, int index, void* stream, void* caller) noexcept {
  return guarded(static_cast<void*>(nullptr), [&] {
    try {
      return allocate(kind, size, index, stream);
    } catch (const OutOfMemoryError& error) {
      throw OutOfMemoryError(asked_for_by(caller, error.what()));
    }
  });
}

// Throws a c10::OutOfMemoryError if the program has loaded PyTorch; else returns. The class derives from c10::Error,
// whose constructor is in libc10.so, and has its own vtable. Only some versions export its own constructor.
void throw_torch_out_of_memory(const std::string& text) {
  struct SourceLocation {
    const char* function;
    const char* file;
    std::uint32_t line;
  };
  using Construct = void (*)(void* self, SourceLocation where, std::string what);
  using Destroy = void (*)(void* self);
  void* library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);  // also finds symbols in libc10.so
  if (library == nullptr) return;
  const auto construct_base = reinterpret_cast<Construct>(
      dlsym(library, "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"));
  auto* type = static_cast<std::type_info*>(dlsym(library, "_ZTIN3c1016OutOfMemoryErrorE"));
  auto** table = static_cast<void**>(dlsym(library, "_ZTVN3c1016OutOfMemoryErrorE"));
  if (construct_base == nullptr || type == nullptr || table == nullptr) return;
  void** functions = table + 2;  // after the offset to top and the type info; the first entry is the destructor
  constexpr std::size_t large_enough = 1024;
  void* error = abi::__cxa_allocate_exception(large_enough);
  try {
    construct_base(error, {"poolgrad_torch_malloc", __FILE__, __LINE__}, text);
  } catch (...) {
    abi::__cxa_free_exception(error);
    throw;
  }
  *static_cast<void***>(error) = functions;
  abi::__cxa_throw(error, type, reinterpret_cast<Destroy>(functions[0]));
}

// For functions that PyTorch calls: throws the stored error.
void thrown_if_failed(int result) {
  if (result != 0) throw std::runtime_error(last_error.text);
}

}  // namespace

void* poolgrad_malloc(ssize_t size, int device, void* stream) {
  return allocate_or_null(POOLGRAD_CUDA, size, device, stream, __builtin_return_address(0));
}

void* poolgrad_torch_malloc(ssize_t size, int device, void* stream) {
  if (void* pointer = allocate_or_null(POOLGRAD_CUDA, size, device, stream, __builtin_return_address(0)))
    return pointer;
  if (last_error.out_of_memory) throw_torch_out_of_memory(last_error.text);
  throw std::runtime_error(last_error.text);
}

void poolgrad_free(void* pointer, ssize_t size, int device, void* stream) {
  deallocate(POOLGRAD_CUDA, pointer, size, device, stream);
}

void* poolgrad_host_malloc(ssize_t size, int device, void* stream) {
  return allocate_or_null(POOLGRAD_CPU, size, device, stream, __builtin_return_address(0));
}

void poolgrad_host_free(void* pointer, ssize_t size, int device, void* stream) {
  deallocate(POOLGRAD_CPU, pointer, size, device, stream);
}

void* poolgrad_sim_malloc(ssize_t size, int device, void* stream) {
  return allocate_or_null(POOLGRAD_SIM, size, device, stream, __builtin_return_address(0));
}

void poolgrad_sim_free(void* pointer, ssize_t size, int device, void* stream) {
  deallocate(POOLGRAD_SIM, pointer, size, device, stream);
}

int poolgrad_configure_sim(int device, size_t capacity) {
  return done([&] { configure_simulated_device(device, capacity); });
}

void poolgrad_torch_record_stream(void* pointer, void* stream) {
  if (pointer == nullptr) return;
  thrown_if_failed(done([&] {
    if (CachingAllocator* pool = owner_of(DeviceType::cuda, pointer)) pool->use(pointer, stream_of(*pool, stream));
  }));
}

void poolgrad_torch_empty_cache(void) {
  thrown_if_failed(done([] {
    for (CachingAllocator* pool : allocators_of(DeviceType::cuda)) pool->trim();
  }));
}

void poolgrad_torch_memory_fraction(double fraction, int device) {
  thrown_if_failed(done([&] {
    if (!(fraction >= 0 && fraction <= 1)) {
      throw ValueError("[poolgrad_torch_memory_fraction] the fraction must be from 0 to 1, got " +
                       std::to_string(fraction));
    }
    CachingAllocator& pool = pool_of(POOLGRAD_CUDA, device);
    // A budget of 0 would mean no limit.
    const double bytes = fraction * static_cast<double>(pool.memory().info().total);
    pool.set_budget(std::max<std::size_t>(static_cast<std::size_t>(bytes), 1));
  }));
}

void poolgrad_torch_begin_pool(int device, poolgrad_pool_id id, void* filter) {
  thrown_if_failed(done([&] {
    private_pools().begin(pool_of(POOLGRAD_CUDA, device), id_of(id), *static_cast<PrivatePools::Filter*>(filter));
  }));
}

void poolgrad_torch_end_pool(int device, poolgrad_pool_id id) {
  thrown_if_failed(poolgrad_end_pool(POOLGRAD_CUDA, device, id));
}

void poolgrad_torch_release_pool(int device, poolgrad_pool_id id) {
  // PyTorch calls this from destructors, also for a pool without any allocation.
  thrown_if_failed(done([&] { private_pools().release(pool_of(POOLGRAD_CUDA, device), id_of(id)); }));
}

int poolgrad_begin_pool(int kind, int index, poolgrad_pool_id id, int (*filter)(void*, void*), void* context) {
  return done([&] {
    PrivatePools::Filter accepts;
    if (filter != nullptr) accepts = [=](void* stream) { return filter(stream, context) != 0; };
    private_pools().begin(pool_of(kind, index), id_of(id), std::move(accepts));
  });
}

int poolgrad_end_pool(int kind, int index, poolgrad_pool_id id) {
  return done([&] {
    CachingAllocator& pool = pool_of(kind, index);
    if (!private_pools().end(pool, id_of(id))) throw no_private_pool("poolgrad_end_pool", "was not begun", pool, id);
  });
}

int poolgrad_release_pool(int kind, int index, poolgrad_pool_id id) {
  return done([&] {
    CachingAllocator& pool = pool_of(kind, index);
    if (!private_pools().release(pool, id_of(id)))
      throw no_private_pool("poolgrad_release_pool", "does not exist", pool, id);
  });
}

int poolgrad_use(int kind, int index, void* pointer, void* stream) {
  return with_pool(kind, index, [&](CachingAllocator& pool) { pool.use(pointer, stream_of(pool, stream)); });
}

int poolgrad_order(int kind, int index, void* later, void* earlier) {
  return with_pool(kind, index,
                   [&](CachingAllocator& pool) { pool.order(stream_of(pool, later), stream_of(pool, earlier)); });
}

int poolgrad_stream_destroyed(int kind, int index, void* stream) {
  return with_pool(kind, index, [&](CachingAllocator& pool) { pool.stream_destroyed(stream_of(pool, stream)); });
}

int poolgrad_trim(int kind, int index, size_t bytes, size_t* released) {
  return done([&] {
    const std::size_t freed = pool_of(kind, index).trim(bytes);
    if (released != nullptr) *released = freed;
  });
}

int poolgrad_set_budget(int kind, int index, size_t bytes) {
  return with_pool(kind, index, [&](CachingAllocator& pool) { pool.set_budget(bytes); });
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
  return with_pool(kind, index, [&](CachingAllocator& pool) { pool.reset_peaks(); });
}

void poolgrad_free_string(char* text) { std::free(text); }

int poolgrad_start_trace(int kind, int index, size_t events) {
  return with_pool(kind, index,
                   [&](CachingAllocator& pool) { events == 0 ? pool.start_trace() : pool.start_trace(events); });
}

int poolgrad_stop_trace(int kind, int index) {
  return with_pool(kind, index, [&](CachingAllocator& pool) { pool.stop_trace(); });
}

int poolgrad_begin_step(int kind, int index) {
  return with_pool(kind, index, [&](CachingAllocator& pool) { pool.begin_step(); });
}

int poolgrad_snapshot(int kind, int index, const char* path, const char* format) {
  return done([&] {
    if (path == nullptr) throw ValueError("[poolgrad_snapshot] path is NULL");
    const char* chosen = format == nullptr ? "pgt" : format;
    last_error.set(save_trace(path, pool_of(kind, index).trace(), parse_trace_format(chosen)).c_str());
  });
}

const char* poolgrad_last_error(void) { return last_error.text.c_str(); }
