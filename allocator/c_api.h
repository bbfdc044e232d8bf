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
 * Statistics, traces and so on are reached from the same program through ctypes:
 *
 *     library.poolgrad_trim.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
 *     library.poolgrad_trim(1, 0, 1 << 30, None)               # POOLGRAD_CUDA, device 0: give 1 GiB back
 *
 * Errors: a function that returns a pointer returns NULL, one that returns int returns -1 (0: done), and
 * poolgrad_last_error() has the sentence. No function throws, but poolgrad_torch_*. All may be called from any
 * thread. Giving back a foreign pointer, one that was given back already, or another size than was asked for ends the
 * program with one sentence on stderr, for memory is corrupt by then. */
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

/* Memory of cuda:device, in the order of `stream`, a cudaStream_t (NULL: the legacy default stream;
 * cudaStreamPerThread: that of the calling thread, here as everywhere below). At least 256 bytes aligned. 0 bytes give
 * a pointer of their own that must be given back like others. NULL if there is no such device, the size is negative, or
 * memory is out: then poolgrad_last_error() has the whole report, which names the code that called. */
POOLGRAD_API void* poolgrad_malloc(ssize_t size, int device, void* stream);
/* The same for callers in C++ that do not look at NULL, as PyTorch does not: throws with the text of
 * poolgrad_last_error(), where memory is out c10::OutOfMemoryError, which PyTorch makes torch.OutOfMemoryError; else,
 * or where PyTorch is not there, std::runtime_error. */
POOLGRAD_API void* poolgrad_torch_malloc(ssize_t size, int device, void* stream);
/* Gives it back; work already queued on `stream` may still use it. `size` is what was asked for. NULL is allowed. */
POOLGRAD_API void poolgrad_free(void* pointer, ssize_t size, int device, void* stream);

/* The machine's own memory (`device` is 0), 64 bytes aligned. Streams are names: work on the CPU runs at once. */
POOLGRAD_API void* poolgrad_host_malloc(ssize_t size, int device, void* stream);
POOLGRAD_API void poolgrad_host_free(void* pointer, ssize_t size, int device, void* stream);

/* Addresses of sim:device, never to be dereferenced; aligned as on CUDA. */
POOLGRAD_API void* poolgrad_sim_malloc(ssize_t size, int device, void* stream);
POOLGRAD_API void poolgrad_sim_free(void* pointer, ssize_t size, int device, void* stream);
/* Gives sim:device (0 to 255) `capacity` bytes, 8 GiB unless this is called. An error while it has live memory. */
POOLGRAD_API int poolgrad_configure_sim(int device, size_t capacity);

/* What PyTorch calls, see above; on CUDA pools. They throw std::runtime_error.
 *
 * `stream` uses the block too, as by poolgrad_use(). Pointers of others are left alone. */
POOLGRAD_API void poolgrad_torch_record_stream(void* pointer, void* stream);
/* Returns the cached pages of all CUDA devices. */
POOLGRAD_API void poolgrad_torch_empty_cache(void);
/* The budget of the device is this part of its memory, from 0 to 1. */
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

/* `stream` uses the live block too: once given back, it is not reused before what is queued there by then is done.
 * poolgrad_order(the block's own stream, `stream`) ends the uses so far: what `stream` queues after that is waited for
 * only if it is told of anew. */
POOLGRAD_API int poolgrad_use(int kind, int index, void* pointer, void* stream);
/* Work queued on `later` from now on waits for what is queued on `earlier` now. An error while one of them is being
 * recorded into a graph. */
POOLGRAD_API int poolgrad_order(int kind, int index, void* later, void* earlier);
/* The stream is about to be destroyed; its handle may come again for another. */
POOLGRAD_API int poolgrad_stream_destroyed(int kind, int index, void* stream);

/* From now on until poolgrad_end_pool(), what is allocated on streams that `filter` accepts (NULL: all) belongs to the
 * private pool `id`: when it is given back it is kept for that pool, for requests of exactly the same size on the same
 * stream, as a recorded graph needs it that uses its address again and again. What another stream uses too is reused
 * behind that stream's work, as ever, and not while the stream is being recorded: a graph waits for nothing outside.
 * `filter` may be called by several threads at once, until poolgrad_end_pool() returns. The thread that calls it holds
 * a lock: a filter must not allocate from any pool of this library, nor call poolgrad_begin_pool() or
 * poolgrad_end_pool(), nor wait for a thread that does. An `id` that is open already is opened once more. */
POOLGRAD_API int poolgrad_begin_pool(int kind, int index, struct poolgrad_pool_id id,
                                     int (*filter)(void* stream, void* context), void* context);
/* Ends what all calls of poolgrad_begin_pool() for `id` began. An error if there was none. */
POOLGRAD_API int poolgrad_end_pool(int kind, int index, struct poolgrad_pool_id id);
/* The counterpart of one poolgrad_begin_pool(), for the graph that was recorded then: its work is done, or what is
 * queued next comes after it. With the last, the private pool's blocks become ordinary ones; those in use when they are
 * given back. An error if there is no such pool. */
POOLGRAD_API int poolgrad_release_pool(int kind, int index, struct poolgrad_pool_id id);

/* Returns cached pages to the device until `bytes` (SIZE_MAX: all) are released; `released`, if not NULL, says how many
 * were. */
POOLGRAD_API int poolgrad_trim(int kind, int index, size_t bytes, size_t* released);
/* A new hard limit on reserved bytes; 0: what the device has. An error, changing nothing, if live memory is above it.
 */
POOLGRAD_API int poolgrad_set_budget(int kind, int index, size_t bytes);
POOLGRAD_API int poolgrad_budget(int kind, int index, size_t* bytes);

/* One flat JSON object, {"allocated_bytes.all.current": 0, ...}, with PyTorch's names where it has them. To be given
 * back with poolgrad_free_string(). */
POOLGRAD_API char* poolgrad_statistics_json(int kind, int index);
/* Peaks restart from the present values. */
POOLGRAD_API int poolgrad_reset_peaks(int kind, int index);
POOLGRAD_API void poolgrad_free_string(char* text);

/* Records from now on, the newest `events` of each thread (0: about a million). */
POOLGRAD_API int poolgrad_start_trace(int kind, int index, size_t events);
POOLGRAD_API int poolgrad_stop_trace(int kind, int index);
/* A training step starts: a mark in traces, and the unit of the mode `planned`. */
POOLGRAD_API int poolgrad_begin_step(int kind, int index);
/* Writes what was recorded and all blocks as they are now. `format` is "pgt", "pickle" (opens in PyTorch's memory
 * viewer), "json", "csv" or "chrome"; NULL means "pgt". What the file had to leave out is told by poolgrad_last_error()
 * though the call returns 0; that is "" otherwise. */
POOLGRAD_API int poolgrad_snapshot(int kind, int index, const char* path, const char* format);

/* What went wrong in the last call that failed in this thread, "" if none did. Valid until the next call from it. */
POOLGRAD_API const char* poolgrad_last_error(void);

#ifdef __cplusplus
}
#endif
