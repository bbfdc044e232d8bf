// The real driver of one device, on stand-ins for CUDA's functions that keep its rules of contexts: a runtime call
// without a current context makes one on device 0.
#include "allocator/memory/cuda_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "allocator/error.h"

namespace {

std::set<int> contexts;                 // devices with a context
thread_local std::vector<int> current;  // a stack, the current one last
std::vector<int> called_on;             // the device of each call that concerns one
cudaError_t next_result = cudaSuccess;  // of the next such call
char object;                            // target of CUDA's pointers
cudaError_t count_result = cudaSuccess;
int driver_version = 13000;
int capability = 90;
int requested = 0;  // handle types of the last cuMemCreate
CUresult create_exportable = CUDA_SUCCESS;
std::vector<int> given_access;  // devices

int ordinal(CUcontext context) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1; }

cudaError_t runtime_call() {
  if (current.empty()) {
    contexts.insert(0);
    current = {0};
  }
  called_on.push_back(current.back());
  return std::exchange(next_result, cudaSuccess);
}

CUresult driver_call() {
  called_on.push_back(current.empty() ? -1 : current.back());
  return CUDA_SUCCESS;
}

CUresult retain_context(CUcontext* context, CUdevice device) {
  contexts.insert(device);
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device + 1));
  return CUDA_SUCCESS;
}
CUresult push_context(CUcontext context) {
  current.push_back(ordinal(context));
  return CUDA_SUCCESS;
}
CUresult pop_context(CUcontext*) {
  current.pop_back();
  return CUDA_SUCCESS;
}
CUresult get_granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = std::size_t{2} << 20;
  return driver_call();
}
CUresult get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability / 10
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability % 10
                                                                       : 1;
  return driver_call();
}
CUresult reserve(CUdeviceptr* address, std::size_t, std::size_t, CUdeviceptr, unsigned long long) {
  *address = reinterpret_cast<CUdeviceptr>(&object);
  return driver_call();
}
CUresult free_addresses(CUdeviceptr, std::size_t) { return driver_call(); }
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t, const CUmemAllocationProp* properties,
                unsigned long long) {
  *handle = 1;
  requested = properties->requestedHandleTypes;
  const CUresult result = driver_call();
  return requested == 0 ? result : create_exportable;
}
CUresult can_access(int* reachable, CUdevice peer, CUdevice of) {
  *reachable = peer == 2 && of == 1;
  return driver_call();
}
CUresult to_shareable(void* descriptor, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                      unsigned long long) {
  *static_cast<int*>(descriptor) =
      type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? 40 + static_cast<int>(handle) : -7;
  return driver_call();
}
CUresult from_shareable(CUmemGenericAllocationHandle* handle, void* descriptor, CUmemAllocationHandleType) {
  *handle = reinterpret_cast<std::uintptr_t>(descriptor) - 40;
  return driver_call();
}
CUresult release(CUmemGenericAllocationHandle) { return driver_call(); }
CUresult map(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return driver_call();
}
CUresult unmap(CUdeviceptr, std::size_t) { return driver_call(); }
CUresult set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc* access, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) given_access.push_back(access[i].location.id);
  return driver_call();
}

template <class Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

cudaError_t find(const char* symbol, void** function, cudaDriverEntryPointQueryResult* found) {
  static const std::map<std::string_view, void*> functions = {
      {"cuDevicePrimaryCtxRetain", address_of(retain_context)},
      {"cuCtxPushCurrent", address_of(push_context)},
      {"cuCtxPopCurrent", address_of(pop_context)},
      {"cuMemGetAllocationGranularity", address_of(get_granularity)},
      {"cuDeviceGetAttribute", address_of(get_attribute)},
      {"cuMemAddressReserve", address_of(reserve)},
      {"cuMemAddressFree", address_of(free_addresses)},
      {"cuMemCreate", address_of(create)},
      {"cuMemRelease", address_of(release)},
      {"cuMemMap", address_of(map)},
      {"cuMemUnmap", address_of(unmap)},
      {"cuMemSetAccess", address_of(set_access)},
      {"cuDeviceCanAccessPeer", address_of(can_access)},
      {"cuMemExportToShareableHandle", address_of(to_shareable)},
      {"cuMemImportFromShareableHandle", address_of(from_shareable)}};
  const auto known = functions.find(symbol);
  *function = known == functions.end() ? nullptr : known->second;
  *found = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // namespace

// The program's symbols precede those of its libraries.
extern "C" {
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 3;
  return count_result;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return runtime_call(); }
cudaError_t cudaHostUnregister(void*) { return runtime_call(); }
cudaError_t cudaGetDevice(int* device) {
  *device = current.empty() ? 0 : current.back();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  contexts.insert(device);
  if (!current.empty()) current.pop_back();
  current.push_back(device);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* found) {  // before 12.5
  return find(symbol, function, found);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return find(symbol, function, found);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 30;
  return runtime_call();
}
cudaError_t cudaMalloc(void** pointer, std::size_t) {
  *pointer = &object;
  return runtime_call();
}
cudaError_t cudaFree(void*) { return runtime_call(); }
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return runtime_call(); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(&object);
  return runtime_call();
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return runtime_call(); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return runtime_call(); }
cudaError_t cudaEventQuery(cudaEvent_t) { return runtime_call(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return runtime_call(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return runtime_call(); }
}

namespace poolgrad::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CudaDriverTest : public ::testing::Test {
 protected:
  CudaDriverTest() {
    contexts.clear();
    current.clear();
    called_on.clear();
  }
  ~CudaDriverTest() override { current.clear(); }

  // Makes every call of a driver, one by one.
  static void call_each(const std::function<void(const char*)>& after) {
    const auto driver = make_cuda_driver(1);
    after("make_cuda_driver");
    const std::size_t bytes = driver->granularity();
    after("granularity");
    driver->memory_info();
    after("memory_info");
    const std::uintptr_t address = driver->address_reserve(bytes, bytes);
    after("address_reserve");
    const auto handle = driver->create(bytes);
    after("create");
    driver->map(address, bytes, *handle);
    after("map");
    driver->set_access(address, bytes);
    after("set_access");
    driver->is_reachable_from(2);
    after("is_reachable_from");
    driver->set_access_of(2, address, bytes);
    after("set_access_of");
    driver->import_handle(driver->export_handle(*handle), bytes);
    after("import_handle");
    driver->fill(address, bytes, 0, 0);
    after("fill");
    driver->unmap(address, bytes);
    after("unmap");
    driver->release(*handle);
    after("release");
    driver->address_free(address, bytes);
    after("address_free");
    driver->free(driver->malloc(bytes));
    after("free");
    driver->host_register(address, bytes);
    after("host_register");
    driver->host_unregister(address);
    after("host_unregister");
    const std::uint64_t event = driver->event_create();
    after("event_create");
    driver->event_record(event, 0);
    after("event_record");
    driver->event_query(event);
    after("event_query");
    driver->stream_wait(0, event);
    after("stream_wait");
    driver->event_synchronize(event);
    after("event_synchronize");
    driver->event_destroy(event);
    after("event_destroy");
  }
};

TEST_F(CudaDriverTest, MakesOnlyTheContextOfItsDevice) {
  call_each([](const char* call) {
    EXPECT_THAT(contexts, ElementsAre(1)) << call;
    EXPECT_THAT(current, IsEmpty()) << call << " leaves a context current";
  });
  EXPECT_THAT(called_on, Each(1));
}

TEST_F(CudaDriverTest, RestoresTheCurrentContext) {
  current = {2};
  call_each([](const char* call) { EXPECT_THAT(current, ElementsAre(2)) << call; });
  EXPECT_THAT(called_on, Each(1));
}

TEST_F(CudaDriverTest, RestoresTheCurrentContextWhenACallFails) {
  const auto driver = make_cuda_driver(1);
  next_result = cudaErrorUnknown;
  EXPECT_THROW(driver->memory_info(), CudaError);
  EXPECT_THAT(current, IsEmpty());
  EXPECT_THAT(contexts, ElementsAre(1));
}

TEST_F(CudaDriverTest, RefusesUnpinnableMemoryWithoutAnError) {
  const auto driver = make_cuda_driver(1);
  for (const cudaError_t refusal : {cudaErrorMemoryAllocation, cudaErrorNotSupported, cudaErrorNotPermitted}) {
    next_result = refusal;
    EXPECT_FALSE(driver->host_register(0, 4096));
  }
  next_result = cudaErrorUnknown;
  EXPECT_THROW(driver->host_register(0, 4096), CudaError);
}

TEST_F(CudaDriverTest, GivesAccessToAReachablePeer) {
  const auto driver = make_cuda_driver(1);
  EXPECT_TRUE(driver->is_reachable_from(2));
  EXPECT_FALSE(driver->is_reachable_from(0));
  given_access.clear();
  EXPECT_TRUE(driver->set_access(0, 4096));
  EXPECT_TRUE(driver->set_access_of(2, 0, 4096));
  EXPECT_THAT(given_access, ElementsAre(1, 2));
}

TEST_F(CudaDriverTest, ExportsHandlesAsFileDescriptors) {
  const auto driver = make_cuda_driver(1);
  const auto handle = driver->create(4096);
  EXPECT_EQ(requested, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(driver->export_handle(*handle), 41);
  EXPECT_EQ(driver->import_handle(47, 4096), 7u);
}

TEST_F(CudaDriverTest, FallsBackToHandlesThatCannotBeExported) {
  for (const CUresult refusal : {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED}) {
    create_exportable = refusal;
    const auto driver = make_cuda_driver(1);
    EXPECT_TRUE(driver->create(4096));
    EXPECT_EQ(requested, 0);
    EXPECT_EQ(driver->export_handle(1), -1);
  }
  create_exportable = CUDA_SUCCESS;
}

class UnusableDevice : public CudaDriverTest {
 protected:
  ~UnusableDevice() override {
    count_result = cudaSuccess;
    driver_version = 13000;
    capability = 90;
  }
  static std::string error_of_device(int index) {
    try {
      make_cuda_driver(index);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(UnusableDevice, IsBeyondTheLastDevice) {
  EXPECT_EQ(error_of_device(3), "[allocator] cuda:3 cannot be used: the last CUDA device is cuda:2; use cpu or sim:N");
  EXPECT_THAT(contexts, IsEmpty());
}

TEST_F(UnusableDevice, HasADriverThatIsOlderThanTheRuntime) {
  count_result = cudaErrorInsufficientDriver;
  driver_version = 12040;
  EXPECT_EQ(
      cuda_unavailable_reason(),
      "no CUDA device: the driver is for CUDA 12.4, older than the runtime's CUDA 13.0; a newer driver, or a build "
      "with an older toolkit, is needed");
  EXPECT_EQ(error_of_device(0),
            "[allocator] cuda:0 cannot be used: " + cuda_unavailable_reason() + "; use cpu or sim:N");
  driver_version = 0;  // same result as without a driver
  EXPECT_THAT(cuda_unavailable_reason(), ::testing::StartsWith("no CUDA device: "));
  EXPECT_THAT(contexts, IsEmpty());
}

TEST_F(UnusableDevice, IsOlderThanTheKernels) {
  capability = 75;
  EXPECT_EQ(error_of_device(1),
            "[allocator] cuda:1 cannot be used: its compute capability is 7.5, and kernels are compiled "
            "for " POOLGRAD_CUDA_ARCHITECTURES " (CMAKE_CUDA_ARCHITECTURES); use cpu or sim:N");
  EXPECT_THAT(current, IsEmpty());
  capability = 90;
  EXPECT_EQ(error_of_device(1), "no error");
}

TEST_F(UnusableDevice, IsReportedWhereThereIsNoDevice) {
  count_result = cudaErrorNoDevice;
  EXPECT_THAT(cuda_unavailable_reason(), ::testing::StartsWith("no CUDA device: "));
}

}  // namespace
}  // namespace poolgrad::testing
