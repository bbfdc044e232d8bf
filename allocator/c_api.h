/* The pools for programs in C, Python (ctypes) and PyTorch: libpoolgrad_allocator.so, the process-wide pools of
 * allocator_for() behind functions of C. C11, no C++.
 *
 * PyTorch on CUDA takes its memory from the pool of each device with
 *
 *     import ctypes, torch
 *     path = "libpoolgrad_allocator.so"
 *     pool = torch.cuda.memory.CUDAPluggableAllocator(path, "poolgrad_torch_malloc", "poolgrad_free")
 *     library = ctypes.CDLL(path)
 *     def address(name): return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
 *     hooks = pool.allocator()
 *     hooks.set_record_stream_fn(address("poolgrad_torch_record_stream"))      # Tensor.record_stream()
 *     hooks.set_reset_fn(address("poolgrad_torch_empty_cache"))                # torch.cuda.empty_cache()
 *     hooks.set_memory_fraction_fn(address("poolgrad_torch_memory_fraction"))  # set_per_process_memory_fraction()
 *     hooks.set_begin_allocate_to_pool(address("poolgrad_torch_begin_pool"))   # CUDA graphs, torch.cuda.MemPool
 *     hooks.set_end_allocate_to_pool_fn(address("poolgrad_torch_end_pool"))
 *     hooks.set_release_pool(address("poolgrad_torch_release_pool"))
 *     torch.cuda.memory.change_current_allocator(pool)        # before the first CUDA tensor
 *
 * and a configuration in the environment: POOLGRAD_ALLOCATOR=budget:8GiB,stitch:on,... (the keys of AllocatorConfig).
 * The same program reaches statistics, traces and the other functions through ctypes:
 *
 *     library.poolgrad_trim.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
 *     library.poolgrad_trim(1, 0, 1 << 30, None)               # POOLGRAD_CUDA, device 0: release 1 GiB
 *
 * Errors: a function that returns a pointer returns NULL, and one that returns int returns -1 (0: success). Then
 * poolgrad_last_error() has the sentence. Only poolgrad_torch_* functions throw. All functions may be called from any
 * thread. A free of a foreign pointer, a double free, and a free with another size than the request end the program
 * with one sentence on stderr, because memory is already corrupt. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__GNUC__)
#define POOLGRAD_API __attribute__((visibility("default")))
#else
#define POOLGRAD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum poolgrad_device_kind { POOLGRAD_CPU = 0, POOLGRAD_CUDA = 1, POOLGRAD_SIM = 2 };

/* Allocates memory of cuda:device, in the order of `stream`, a cudaStream_t. NULL is the legacy default stream, and
 * cudaStreamPerThread is the calling thread's own stream, in all functions. Aligned to at least 256 bytes. 0 bytes give
 * a unique pointer, which must be freed like others. Returns NULL if the device does not exist, the size is negative,
 * or memory runs out. poolgrad_last_error() then has the whole report, which names the calling code. */
POOLGRAD_API void* poolgrad_malloc(ssize_t size, int device, void* stream);
/* The same for callers in C++ that do not check for NULL, such as PyTorch. Throws with the text of
 * poolgrad_last_error(): c10::OutOfMemoryError if memory runs out, which PyTorch turns into torch.OutOfMemoryError.
 * Throws std::runtime_error for other errors, and for all errors without PyTorch. */
POOLGRAD_API void* poolgrad_torch_malloc(ssize_t size, int device, void* stream);
/* Frees the block; work already queued on `stream` may still use it. `size` is the requested size. NULL is allowed. */
POOLGRAD_API void poolgrad_free(void* pointer, ssize_t size, int device, void* stream);

/* Memory of the host (`device` is 0), aligned to 64 bytes. Streams are names: work on the CPU runs at once. */
POOLGRAD_API void* poolgrad_host_malloc(ssize_t size, int device, void* stream);
POOLGRAD_API void poolgrad_host_free(void* pointer, ssize_t size, int device, void* stream);

/* Addresses of sim:device, never to be dereferenced; aligned as on CUDA. */
POOLGRAD_API void* poolgrad_sim_malloc(ssize_t size, int device, void* stream);
POOLGRAD_API void poolgrad_sim_free(void* pointer, ssize_t size, int device, void* stream);
/* Gives sim:device (0 to 255) `capacity` bytes; the default is 8 GiB. An error while it has live memory. */
POOLGRAD_API int poolgrad_configure_sim(int device, size_t capacity);

/* The functions for PyTorch (see above), on CUDA pools. They throw std::runtime_error.
 *
 * Records that `stream` uses the block too, as poolgrad_use() does. Ignores foreign pointers. */
POOLGRAD_API void poolgrad_torch_record_stream(void* pointer, void* stream);
/* Releases the cached pages of all CUDA devices. */
POOLGRAD_API void poolgrad_torch_empty_cache(void);
/* Sets the budget of the device to this fraction of its memory, from 0 to 1. */
POOLGRAD_API void poolgrad_torch_memory_fraction(double fraction, int device);
/* PyTorch's c10::MempoolId_t. */
struct poolgrad_pool_id {
  unsigned long long first, second;
};
/* See poolgrad_begin_pool(); `filter` is a std::function<bool(cudaStream_t)>. */
POOLGRAD_API void poolgrad_torch_begin_pool(int device, struct poolgrad_pool_id id, void* filter);
POOLGRAD_API void poolgrad_torch_end_pool(int device, struct poolgrad_pool_id id);
/* Does nothing for a pool that does not exist: PyTorch calls it from destructors, which must not throw. */
POOLGRAD_API void poolgrad_torch_release_pool(int device, struct poolgrad_pool_id id);

/* The functions below name a device by kind (enum poolgrad_device_kind) and index. */

/* Records that `stream` uses the live block too. Once freed, the block is not reused before the work queued on
 * `stream` by then is done. poolgrad_order(the block's own stream, `stream`) ends the uses so far. Later work needs
 * another call. */
POOLGRAD_API int poolgrad_use(int kind, int index, void* pointer, void* stream);
/* Makes later work on `later` wait for the work queued on `earlier` now. An error while one of them is being recorded
 * into a graph. */
POOLGRAD_API int poolgrad_order(int kind, int index, void* later, void* earlier);
/* Records that the stream will be destroyed and its handle may be reused. */
POOLGRAD_API int poolgrad_stream_destroyed(int kind, int index, void* stream);

/* Until poolgrad_end_pool(), allocations on streams that `filter` accepts (NULL: all) belong to the private pool `id`.
 * Freed blocks stay in that pool, for requests of exactly the same size on the same stream, because a recorded graph
 * uses their addresses in each replay. A block that another stream uses too is reused after that stream's work, but not
 * while the stream is being recorded: a graph waits for no work outside.
 *
 * Several threads may call `filter` at once, until poolgrad_end_pool() returns. The calling thread holds a lock. So a
 * filter must not allocate from any pool of this library, call poolgrad_begin_pool() or poolgrad_end_pool(), or wait
 * for a thread that does. Opening an open `id` again is allowed. */
POOLGRAD_API int poolgrad_begin_pool(int kind, int index, struct poolgrad_pool_id id,
                                     int (*filter)(void* stream, void* context), void* context);
/* Ends all calls of poolgrad_begin_pool() for `id`. An error if there was none. */
POOLGRAD_API int poolgrad_end_pool(int kind, int index, struct poolgrad_pool_id id);
/* The counterpart of one poolgrad_begin_pool(), for the graph recorded then. The graph's work must be done, or come
 * before all work queued next. The last call makes the private pool's blocks ordinary ones; live blocks become ordinary
 * when they are freed. An error if the pool does not exist. */
POOLGRAD_API int poolgrad_release_pool(int kind, int index, struct poolgrad_pool_id id);

/* Releases cached pages to the device until `bytes` (SIZE_MAX: all) are released. `released`, if not NULL, receives the
 * bytes released. */
POOLGRAD_API int poolgrad_trim(int kind, int index, size_t bytes, size_t* released);
/* Sets the hard limit on reserved bytes (0: the capacity of the device). An error, changing nothing, if live memory
 * exceeds it. */
POOLGRAD_API int poolgrad_set_budget(int kind, int index, size_t bytes);
POOLGRAD_API int poolgrad_budget(int kind, int index, size_t* bytes);

/* Returns one flat JSON object, {"allocated_bytes.all.current": 0, ...}, with PyTorch's names where they exist. The
 * caller frees it with poolgrad_free_string(). */
POOLGRAD_API char* poolgrad_statistics_json(int kind, int index);
/* Resets the peaks to the current values. */
POOLGRAD_API int poolgrad_reset_peaks(int kind, int index);
POOLGRAD_API void poolgrad_free_string(char* text);

/* Starts to record: keeps the newest `events` of each thread (0: about a million). */
POOLGRAD_API int poolgrad_start_trace(int kind, int index, size_t events);
POOLGRAD_API int poolgrad_stop_trace(int kind, int index);
/* Starts a training step: a mark in traces, and the unit of the mode `planned`. */
POOLGRAD_API int poolgrad_begin_step(int kind, int index);
/* Writes the recorded events and the current state of all blocks. `format` is "pgt", "pickle" (opens in PyTorch's
 * memory viewer), "json", "csv" or "chrome"; NULL means "pgt". If the file omits something, the call returns 0 and
 * poolgrad_last_error() has a warning; otherwise that is "". */
POOLGRAD_API int poolgrad_snapshot(int kind, int index, const char* path, const char* format);

/* Returns the error of the last failed call of this thread, or "". Valid until the thread's next call. */
POOLGRAD_API const char* poolgrad_last_error(void);

#ifdef __cplusplus
}
#endif
