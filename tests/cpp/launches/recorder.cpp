// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA runtime that the library calls, and those by which compiled kernels
// register. A new call of the library fails at link time until it is added here.
#include "recorder.hpp"

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>
#include <set>
#include <unordered_map>
#include <utility>

namespace membound_test {

namespace {

// The shared memory that a block has without opting in.
constexpr long kUnasked = 48 << 10;

struct Kernel {
  std::string name;
  std::int64_t launches = 0;
  int asked[kGpuCount] = {};  // bytes of dynamic shared memory
  bool large_clusters[kGpuCount] = {};
};

std::unordered_map<const void*, Kernel>& kernels() {
  static std::unordered_map<const void*, Kernel> kernels;
  return kernels;
}

// CUB chooses among its kernels by itself.
bool is_of_cub(const Kernel& kernel) { return kernel.name.find("N3cub") != std::string::npos; }

int gpu = 0;
std::string problem;
std::string op;
std::int64_t launched = 0;
std::string last;  // mangled
bool waits = false;
std::set<std::string> known_faults;
std::vector<std::string> messages;

// An upper bound of the kernels' static shared memory, as compiled for 9.0.
long of_kernel(const Kernel& kernel) {
  const auto is = [&](const char* name) { return kernel.name.find(name) != std::string::npos; };
  if (is("rms_norm_backward_persistent_kernel")) return 21504;
  if (is("rms_norm_backward_packed_kernel")) return 8448;
  if (is("rms_norm_backward_bulk_kernel")) return 5312;
  return 2560;
}

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}

void fault(const Kernel& kernel, const std::string& what, long value, long most) {
  const std::string kind = what + " on " + kGpus[gpu].name + ": " + kernel.name;
  if (!known_faults.insert(kind).second) return;
  messages.push_back(op + (" " + problem) + " on " + kGpus[gpu].name + ": " + what + " " +
                     std::to_string(value) + ", at most " + std::to_string(most) + ", " +
                     demangled(kernel.name));
}

void look_at(const Kernel& kernel, const cudaLaunchConfig_t& config) {
  const auto at_most = [&](const char* what, long value, long most) {
    if (value > most) fault(kernel, what, value, most);
  };
  const auto shared = static_cast<long>(config.dynamicSmemBytes);
  at_most("threads", config.blockDim.x, 1024);
  at_most("no threads", config.blockDim.x == 0, 0);
  at_most("no blocks", config.gridDim.x == 0, 0);
  at_most("blocks", config.gridDim.x, 0x7fffffff);
  at_most("on another stream", config.stream != static_cast<cudaStream_t>(stream_of_calls()), 0);
  if (shared > 0) at_most("shared memory", shared + of_kernel(kernel), kGpus[gpu].shared_bytes);
  if (shared > kUnasked) at_most("shared memory not asked for", shared, kernel.asked[gpu]);
  const bool clusters = kGpus[gpu].compute >= 90;
  long cluster = 1;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
      cluster = config.attrs[i].val.clusterDim.x;
    } else {
      at_most("overlapped launch", !clusters, 0);
    }
  }
  const long portable = clusters ? 8 : 1;
  at_most("blocks of a cluster", cluster, kernel.large_clusters[gpu] ? 16 : portable);
  at_most("blocks beside clusters", config.gridDim.x % static_cast<unsigned>(cluster), 0);
}

}  // namespace

void use_gpu(int index) { gpu = index; }
void name_problem(std::string name) { problem = std::move(name); }
void name_op(const std::string& name) { op = name; }
void allow_waits(bool allowed) { waits = allowed; }
std::int64_t launches() { return launched; }
std::string last_launched() { return demangled(last); }
std::vector<std::string> take_faults() { return std::exchange(messages, {}); }

std::vector<std::string> never_launched() {
  std::vector<std::string> names;
  for (const auto& [function, kernel] : kernels()) {
    // The empty kernel exists so that its architecture can be queried.
    const bool empty = kernel.name.find("empty_kernel") != std::string::npos;
    if (kernel.launches == 0 && !empty && !is_of_cub(kernel))
      names.push_back(demangled(kernel.name));
  }
  return names;
}

namespace {

cudaLaunchConfig_t pushed;

int attribute(cudaDeviceAttr asked) {
  switch (asked) {
    case cudaDevAttrComputeCapabilityMajor: return kGpus[gpu].compute / 10;
    case cudaDevAttrComputeCapabilityMinor: return kGpus[gpu].compute % 10;
    case cudaDevAttrMultiProcessorCount: return kGpus[gpu].multiprocessors;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return kGpus[gpu].shared_bytes;
    case cudaDevAttrMaxSharedMemoryPerBlock: return kUnasked;
    default: std::abort();  // unknown for these GPUs
  }
}

}  // namespace

}  // namespace membound_test

using namespace membound_test;

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  kernels()[function].name = name;
}
// Launches with <<<>>>, as CUB makes them.
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     CUstream_st* stream) {
  pushed = {};
  pushed.gridDim = grid;
  pushed.blockDim = block;
  pushed.dynamicSmemBytes = shared;
  pushed.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = pushed.gridDim;
  *block = pushed.blockDim;
  *shared = pushed.dynamicSmemBytes;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t stream) {
  __cudaPushCallConfiguration(grid, block, shared, stream);
  return cudaLaunchKernelExC(&pushed, function, arguments);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) {
  Kernel& kernel = kernels().at(function);
  ++kernel.launches;
  ++launched;
  last = kernel.name;
  look_at(kernel, *config);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  *attributes = {};
  // CUB has tuning for the architectures of this build alone; 9.0 is among them.
  attributes->ptxVersion = is_of_cub(kernels().at(function)) ? 90 : kGpus[gpu].compute;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Kernel& kernel = kernels().at(function);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) kernel.asked[gpu] = value;
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
    kernel.large_clusters[gpu] = value != 0 && kGpus[gpu].compute < 120;
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*,
                                           const cudaLaunchConfig_t* config) {
  const int cluster = static_cast<int>(config->attrs[0].val.clusterDim.x);
  *count = kGpus[gpu].multiprocessors / cluster;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr asked, int) {
  *value = attribute(asked);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = gpu;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  gpu = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kGpuCount;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   std::size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
const char* cudaGetErrorString(cudaError_t) { return "no error"; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
// Workspaces: memory that is never accessed.
cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t, cudaMemPool_t, cudaStream_t) {
  *data = reinterpret_cast<void*>(std::uintptr_t{1} << 46);
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = reinterpret_cast<cudaMemPool_t>(64);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaFreeAsync(void*, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMallocHost(void**, std::size_t) { std::abort(); }
cudaError_t cudaFreeHost(void*) { std::abort(); }
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return cudaSuccess; }
// An op on GPU arrays never copies or synchronises, but those that say so.
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  if (!waits) std::abort();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  if (!waits) std::abort();
  return cudaSuccess;
}
// Nor does it create streams or events.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { std::abort(); }
cudaError_t cudaStreamDestroy(cudaStream_t) { std::abort(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { std::abort(); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { std::abort(); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { std::abort(); }

}  // extern "C"
