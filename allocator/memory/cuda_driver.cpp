// The real driver. Host code only: needs CUDA's headers and runtime library, but neither nvcc nor libcuda, whose
// functions the runtime looks up at run time.
#include "allocator/memory/cuda_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <iomanip>
#include <sstream>

#include "allocator/error.h"

namespace poolgrad {

namespace {

[[noreturn]] void fail(const char* call, const std::string& name, const char* file, int line) {
  throw CudaError("[" + std::string(call) + "] " + name + " at " + file + ":" + std::to_string(line));
}

void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // else the next call would report the error again
  fail(call, std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status), file, line);
}

// Looks up a function of the installed driver; nullptr if it has none of this name.
template <typename Function>
Function find(const char* symbol) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  constexpr unsigned version = 10020;  // the first CUDA version with all functions used here
  const cudaError_t status = cudaGetDriverEntryPointByVersion(symbol, &function, version, cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(symbol, &function, cudaEnableDefault, &found);
#endif
  if (status != cudaSuccess) cudaGetLastError();
  const bool known = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return known ? reinterpret_cast<Function>(function) : nullptr;
}

void check(CUresult status, const char* call, const char* file, int line) {
  if (status == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const auto name_of = find<decltype(&cuGetErrorName)>("cuGetErrorName");
  if (name_of != nullptr) name_of(status, &name);
  fail(call, name != nullptr ? name : "error " + std::to_string(static_cast<int>(status)), file, line);
}

#define POOLGRAD_CUDA_CHECK(call) check((call), #call, __FILE__, __LINE__)

// The driver's context and virtual memory functions; null if the installed driver lacks them.
struct EntryPoints {
  decltype(&cuDevicePrimaryCtxRetain) retain_context = find<decltype(retain_context)>("cuDevicePrimaryCtxRetain");
  decltype(&cuCtxPushCurrent) push_context = find<decltype(push_context)>("cuCtxPushCurrent");
  decltype(&cuCtxPopCurrent) pop_context = find<decltype(pop_context)>("cuCtxPopCurrent");
  decltype(&cuMemGetAllocationGranularity) granularity = find<decltype(granularity)>("cuMemGetAllocationGranularity");
  decltype(&cuDeviceGetAttribute) attribute = find<decltype(attribute)>("cuDeviceGetAttribute");
  decltype(&cuMemAddressReserve) reserve = find<decltype(reserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) unreserve = find<decltype(unreserve)>("cuMemAddressFree");
  decltype(&cuMemCreate) create = find<decltype(create)>("cuMemCreate");
  decltype(&cuMemRelease) release = find<decltype(release)>("cuMemRelease");
  decltype(&cuMemMap) map = find<decltype(map)>("cuMemMap");
  decltype(&cuMemUnmap) unmap = find<decltype(unmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = find<decltype(set_access)>("cuMemSetAccess");
  decltype(&cuDeviceCanAccessPeer) can_access = find<decltype(can_access)>("cuDeviceCanAccessPeer");
  decltype(&cuMemExportToShareableHandle) to_shareable = find<decltype(to_shareable)>("cuMemExportToShareableHandle");
  decltype(&cuMemImportFromShareableHandle) from_shareable =
      find<decltype(from_shareable)>("cuMemImportFromShareableHandle");

  bool has_contexts() const { return retain_context && push_context && pop_context; }
  bool has_virtual_memory() const {
    return granularity && attribute && reserve && unreserve && create && release && map && unmap && set_access;
  }
};

// Makes a device's context current for its lifetime, then restores the previous one, or none. cudaSetDevice() would
// instead create a context for a thread that had none, of about 500 MiB on device 0.
class Current {
 public:
  Current(const EntryPoints& entry, CUcontext context) : entry_(entry) {
    POOLGRAD_CUDA_CHECK(entry_.push_context(context));
  }
  ~Current() {
    CUcontext popped = nullptr;
    entry_.pop_context(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const EntryPoints& entry_;
};

cudaStream_t stream_of(std::uint64_t id) { return reinterpret_cast<cudaStream_t>(id); }
cudaEvent_t event_of(std::uint64_t id) { return reinterpret_cast<cudaEvent_t>(id); }

class Driver : public CudaDriver {
 public:
  explicit Driver(int index) : index_(index) {
    if (!entry_.has_contexts()) throw CudaError("[cuCtxPushCurrent] the driver has no such function");
    // Retained for the life of the process, as the runtime does.
    POOLGRAD_CUDA_CHECK(entry_.retain_context(&context_, index_));
    const Current context = current();
    check_capability();
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, index_};
    access_.location = properties_.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!entry_.has_virtual_memory()) return;
    int supported = 0;
    POOLGRAD_CUDA_CHECK(entry_.attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, index_));
    if (supported == 0) return;
    int exportable = 0;
    POOLGRAD_CUDA_CHECK(
        entry_.attribute(&exportable, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, index_));
    exportable_ = exportable != 0 && entry_.to_shareable && entry_.from_shareable;
    POOLGRAD_CUDA_CHECK(entry_.granularity(&granularity_, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  }

  std::size_t granularity() override { return granularity_; }

  MemoryInfo memory_info() override {
    const Current context = current();
    MemoryInfo info;
    POOLGRAD_CUDA_CHECK(cudaMemGetInfo(&info.free, &info.total));
    return info;
  }

  std::string identity() override {
    cudaDeviceProp properties{};
    POOLGRAD_CUDA_CHECK(cudaGetDeviceProperties(&properties, index_));
    std::ostringstream text;
    text << "GPU-" << std::hex << std::setfill('0');
    for (const char byte : properties.uuid.bytes)
      text << std::setw(2) << static_cast<int>(static_cast<unsigned char>(byte));
    return text.str();
  }
  void with_current(const std::function<void()>& call) override {
    const Current context = current();
    call();
  }

  std::uintptr_t address_reserve(std::size_t bytes, std::size_t alignment) override {
    const Current context = current();
    CUdeviceptr address = 0;
    const CUresult status = entry_.reserve(&address, bytes, alignment, 0, 0);
    // The driver reports sizes beyond the address space as an invalid value.
    if (status == CUDA_ERROR_OUT_OF_MEMORY || status == CUDA_ERROR_INVALID_VALUE) return 0;
    POOLGRAD_CUDA_CHECK(status);
    return address;
  }
  void address_free(std::uintptr_t address, std::size_t bytes) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(entry_.unreserve(address, bytes));
  }
  std::optional<std::uint64_t> create(std::size_t bytes) override {
    const Current context = current();
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties = properties_;
    if (exportable_) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUresult status = entry_.create(&handle, bytes, &properties, 0);
    if (exportable_ && (status == CUDA_ERROR_NOT_SUPPORTED || status == CUDA_ERROR_NOT_PERMITTED)) {
      exportable_ = false;  // in some containers the driver claims support, but the call fails
      status = entry_.create(&handle, bytes, &properties_, 0);
    }
    if (!given(status, "cuMemCreate")) return std::nullopt;
    return handle;
  }
  void release(std::uint64_t handle) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(entry_.release(handle));
  }
  bool map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle) override {
    const Current context = current();
    return given(entry_.map(address, bytes, 0, handle, 0), "cuMemMap");
  }
  bool set_access(std::uintptr_t address, std::size_t bytes) override {
    const Current context = current();
    return given(entry_.set_access(address, bytes, &access_, 1), "cuMemSetAccess");
  }
  bool is_reachable_from(int peer) override {
    const Current context = current();
    int reachable = 0;
    if (entry_.can_access != nullptr) POOLGRAD_CUDA_CHECK(entry_.can_access(&reachable, peer, index_));
    return reachable != 0;
  }
  bool set_access_of(int peer, std::uintptr_t address, std::size_t bytes) override {
    const Current context = current();
    CUmemAccessDesc access = access_;
    access.location.id = peer;
    return given(entry_.set_access(address, bytes, &access, 1), "cuMemSetAccess");
  }
  int export_handle(std::uint64_t handle) override {
    if (!exportable_) return -1;
    const Current context = current();
    int descriptor = -1;
    POOLGRAD_CUDA_CHECK(entry_.to_shareable(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return descriptor;
  }
  std::optional<std::uint64_t> import_handle(int descriptor, std::size_t) override {
    if (entry_.from_shareable == nullptr) return std::nullopt;
    const Current context = current();
    CUmemGenericAllocationHandle handle = 0;
    // The handle is passed by value.
    void* const shareable = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
    POOLGRAD_CUDA_CHECK(entry_.from_shareable(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return handle;
  }
  void unmap(std::uintptr_t address, std::size_t bytes) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(entry_.unmap(address, bytes));
  }

  std::uintptr_t malloc(std::size_t bytes) override {
    const Current context = current();
    void* pointer = nullptr;
    const cudaError_t status = cudaMalloc(&pointer, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return 0;
    }
    POOLGRAD_CUDA_CHECK(status);
    return reinterpret_cast<std::uintptr_t>(pointer);
  }
  void free(std::uintptr_t address) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaFree(reinterpret_cast<void*>(address)));
  }

  void fill(std::uintptr_t address, std::size_t bytes, unsigned char value, std::uint64_t stream) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaMemsetAsync(reinterpret_cast<void*>(address), value, bytes, stream_of(stream)));
  }

  bool host_register(std::uintptr_t address, std::size_t bytes) override {
    const Current context = current();
    const cudaError_t status = cudaHostRegister(reinterpret_cast<void*>(address), bytes, cudaHostRegisterPortable);
    if (status == cudaErrorMemoryAllocation || status == cudaErrorNotSupported || status == cudaErrorNotPermitted) {
      cudaGetLastError();
      return false;
    }
    POOLGRAD_CUDA_CHECK(status);
    return true;
  }
  void host_unregister(std::uintptr_t address) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaHostUnregister(reinterpret_cast<void*>(address)));
  }

  std::uint64_t event_create() override {
    const Current context = current();
    cudaEvent_t event = nullptr;
    POOLGRAD_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return reinterpret_cast<std::uint64_t>(event);
  }
  void event_destroy(std::uint64_t event) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaEventDestroy(event_of(event)));
  }
  void event_record(std::uint64_t event, std::uint64_t stream) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaEventRecord(event_of(event), stream_of(stream)));
  }
  bool event_query(std::uint64_t event) override {
    const Current context = current();
    const cudaError_t status = cudaEventQuery(event_of(event));
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    POOLGRAD_CUDA_CHECK(status);
    return true;
  }
  void event_synchronize(std::uint64_t event) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaEventSynchronize(event_of(event)));
  }
  void stream_wait(std::uint64_t stream, std::uint64_t event) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }

  std::uint64_t stream_create() override {
    const Current context = current();
    cudaStream_t stream = nullptr;
    POOLGRAD_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return reinterpret_cast<std::uint64_t>(stream);
  }
  void stream_destroy(std::uint64_t stream) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaStreamDestroy(stream_of(stream)));
  }
  void stream_synchronize(std::uint64_t stream) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaStreamSynchronize(stream_of(stream)));
  }
  // Relaxed mode: pages are committed during a capture, and other threads continue as usual.
  void begin_capture(std::uint64_t stream) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeRelaxed));
  }
  bool is_captured(std::uint64_t stream) override {
    const Current context = current();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t asked = cudaStreamIsCapturing(stream_of(stream), &status);
    if (asked == cudaErrorStreamCaptureImplicit) {  // the stream is the legacy default stream, which would wait for a
                                                    // captured one
      cudaGetLastError();
      return true;
    }
    POOLGRAD_CUDA_CHECK(asked);
    return status != cudaStreamCaptureStatusNone;
  }
  std::uint64_t end_capture(std::uint64_t stream) override {
    const Current context = current();
    cudaGraph_t recorded = nullptr;
    POOLGRAD_CUDA_CHECK(cudaStreamEndCapture(stream_of(stream), &recorded));
    cudaGraphExec_t graph = nullptr;
    const cudaError_t made = cudaGraphInstantiateWithFlags(&graph, recorded, 0);
    cudaGraphDestroy(recorded);
    POOLGRAD_CUDA_CHECK(made);
    return reinterpret_cast<std::uint64_t>(graph);
  }
  void graph_launch(std::uint64_t graph, std::uint64_t stream) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), stream_of(stream)));
  }
  void graph_destroy(std::uint64_t graph) override {
    const Current context = current();
    POOLGRAD_CUDA_CHECK(cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph)));
  }

 private:
  Current current() const { return {entry_, context_}; }
  void check_capability() const {
    if (entry_.attribute == nullptr) return;
    int major = 0, minor = 0;
    POOLGRAD_CUDA_CHECK(entry_.attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, index_));
    POOLGRAD_CUDA_CHECK(entry_.attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, index_));
    if (is_compiled_for(POOLGRAD_CUDA_ARCHITECTURES, major, minor)) return;
    throw DeviceError("[allocator] cuda:" + std::to_string(index_) + " cannot be used: its compute capability is " +
                      std::to_string(major) + "." + std::to_string(minor) +
                      ", and kernels are compiled for " POOLGRAD_CUDA_ARCHITECTURES
                      " (CMAKE_CUDA_ARCHITECTURES); use cpu or sim:N");
  }
  static bool given(CUresult status, const char* call) {
    if (status == CUDA_ERROR_OUT_OF_MEMORY) return false;
    check(status, call, __FILE__, __LINE__);
    return true;
  }

  const int index_;
  const EntryPoints entry_;
  CUcontext context_ = nullptr;
  CUmemAllocationProp properties_{};
  CUmemAccessDesc access_{};
  std::size_t granularity_ = 0;
  std::atomic<bool> exportable_{false};
};

// 12080 gives "12.8".
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string cuda_unavailable_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return "";
  cudaGetLastError();
  if (status == cudaSuccess) return "no CUDA device: the driver lists none";
  int driver = 0, runtime = 0;
  if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0 &&
      cudaRuntimeGetVersion(&runtime) == cudaSuccess)
    return "no CUDA device: the driver is for CUDA " + version_text(driver) + ", older than the runtime's CUDA " +
           version_text(runtime) + "; a newer driver, or a build with an older toolkit, is needed";
  return "no CUDA device: " + std::string(cudaGetErrorString(status));
}

namespace {

void check_index(int index) {
  const std::string reason = cuda_unavailable_reason();
  int count = 0;
  if (reason.empty()) POOLGRAD_CUDA_CHECK(cudaGetDeviceCount(&count));
  if (!reason.empty() || index < 0 || index >= count) refuse_cuda_device(index, reason, count);
}

}  // namespace

std::string cuda_device_description(int index) {
  check_index(index);
  cudaDeviceProp properties{};
  POOLGRAD_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  int driver = 0;
  int runtime = 0;
  POOLGRAD_CUDA_CHECK(cudaDriverGetVersion(&driver));
  POOLGRAD_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  std::ostringstream text;
  text << properties.name << ", compute capability " << properties.major << "." << properties.minor << ", "
       << std::fixed << std::setprecision(1) << static_cast<double>(properties.totalGlobalMem) / 1073741824.0
       << " GiB, driver " << version_text(driver) << ", runtime " << version_text(runtime);
  return text.str();
}

std::unique_ptr<CudaDriver> make_cuda_driver(int index) {
  check_index(index);
  return std::make_unique<Driver>(index);
}

}  // namespace poolgrad
