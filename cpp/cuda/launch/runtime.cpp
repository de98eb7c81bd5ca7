// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Devices, streams and memory on the CUDA runtime. Kernels are launched in launch.cpp only.
#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "core/check.hpp"
#include "core/memory.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"
#include "cuda/launch/launch.hpp"
#include "membound/cuda_check.hpp"
#include "ops/array/problems.hpp"

namespace membound {

namespace {

std::string describe(cudaError_t error, int driver) {
  if (error == cudaSuccess) return "ok";
  if (error == cudaErrorInsufficientDriver) {
    return driver == 0 ? "no NVIDIA driver is installed"
                       : "the NVIDIA driver is older than this build's CUDA runtime";
  }
  if (error == cudaErrorNoDevice) return "a driver is installed, but no GPU is visible";
  return cudaGetErrorString(error);
}

}  // namespace

void throw_cuda_unavailable(const char* op) {
  const CudaStatus status = cuda_status();
  throw CudaError(status.error_code, status.error_name,
                  std::string(op) + ": CUDA cannot be used: " + status.message);
}

DeviceGuard::DeviceGuard(Device device, const char* op) {
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess) throw_cuda_unavailable(op);
  if (current == device.index) return;
  const cudaError_t error = cudaSetDevice(device.index);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw CudaError(error, cudaGetErrorName(error),
                    std::string(op) + ": there is no usable " + device_name(device));
  }
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

CudaStatus cuda_status() {
  CudaStatus status;
  status.built_with_cuda = true;
  status.architectures = MEMBOUND_CUDA_ARCHITECTURES;
  cudaDriverGetVersion(&status.driver_version);
  cudaRuntimeGetVersion(&status.runtime_version);
  const cudaError_t error = cudaGetDeviceCount(&status.device_count);
  if (error != cudaSuccess) status.device_count = 0;
  cudaGetLastError();
  status.error_code = error;
  status.error_name = cudaGetErrorName(error);
  status.message = describe(error, status.driver_version);
  return status;
}

DeviceProperties device_properties(Device device) {
  check_gpu(device, "device_properties");
  cudaDeviceProp found;
  if (const cudaError_t error = cudaGetDeviceProperties(&found, device.index)) {
    cudaGetLastError();
    throw CudaError(error, cudaGetErrorName(error),
                    "device_properties: there is no usable " + device_name(device));
  }
  DeviceProperties properties;
  properties.name = found.name;
  properties.compute_major = found.major;
  properties.compute_minor = found.minor;
  properties.multiprocessors = found.multiProcessorCount;
  properties.memory_bytes = found.totalGlobalMem;
  properties.l2_bytes = static_cast<std::size_t>(found.l2CacheSize);
  return properties;
}

Device current_cuda_device() {
  int index = 0;
  MEMBOUND_CUDA_CHECK(cudaGetDevice(&index));
  return Device::cuda(index);
}

namespace cuda {

namespace {

cudaStream_t native(StreamView stream) { return static_cast<cudaStream_t>(stream.handle()); }

// A pool of our own for each GPU, which keeps what is freed: the default one gives it back to the
// driver whenever somebody waits, and the next allocation maps it again. The driver takes it from
// the pool if another allocation would fail. Never destroyed: buffers may outlive static objects.
cudaMemPool_t pool_of(std::int32_t device) {
  static std::atomic<cudaMemPool_t> pools[kMaxDevices];
  MEMBOUND_CHECK(device < kMaxDevices, InvalidArgument, "DeviceBuffer",
                 "device index must be below ", kMaxDevices, ", got ", device);
  cudaMemPool_t pool = pools[device].load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  static std::mutex lock;
  const std::lock_guard<std::mutex> locked(lock);
  pool = pools[device].load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  MEMBOUND_CUDA_CHECK(cudaMemPoolCreate(&pool, &properties));
  std::uint64_t kept = UINT64_MAX;
  MEMBOUND_CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept));
  pools[device].store(pool, std::memory_order_release);
  return pool;
}

}  // namespace

void* allocate(std::size_t bytes, Device device, StreamView stream) {
  DeviceGuard guard(device, "DeviceBuffer");
  void* data = nullptr;
  if (device.is_cuda()) {
    MEMBOUND_CUDA_CHECK(
        cudaMallocFromPoolAsync(&data, bytes, pool_of(device.index), native(stream)));
  } else {
    MEMBOUND_CUDA_CHECK(cudaMallocHost(&data, bytes));
  }
  return data;
}

// Destructors call this, possibly while the runtime is unloading, so errors are dropped on purpose.
void deallocate(void* data, Device device, StreamView stream) noexcept {
  const cudaError_t error =
      device.is_cuda() ? cudaFreeAsync(data, native(stream)) : cudaFreeHost(data);
  if (error != cudaSuccess) cudaGetLastError();
}

// Makes the device current, because copying stream-ordered memory of another GPU is an invalid
// argument.
void copy(void* destination, const void* source, std::size_t bytes, Device device,
          StreamView stream) {
  std::optional<DeviceGuard> guard;
  if (device.is_cuda()) guard.emplace(device, "copy_bytes");
  MEMBOUND_CUDA_CHECK(
      cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, native(stream)));
}

void* create_stream(Device device) {
  DeviceGuard guard(device, "Stream");
  cudaStream_t stream = nullptr;
  MEMBOUND_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void destroy_stream(void* handle, Device) noexcept {
  if (cudaStreamDestroy(static_cast<cudaStream_t>(handle)) != cudaSuccess) cudaGetLastError();
}

// One event per device: a wait takes what was recorded last, so both happen under a lock.
void order_streams(StreamView first, StreamView then, Device device) {
  if (first.handle() == then.handle()) return;
  static std::mutex lock;
  static cudaEvent_t events[kMaxDevices];
  const DeviceGuard guard(device, "order_streams");
  const std::lock_guard<std::mutex> locked(lock);
  cudaEvent_t& event = events[device.index];
  if (event == nullptr)
    MEMBOUND_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  MEMBOUND_CUDA_CHECK(cudaEventRecord(event, native(first)));
  MEMBOUND_CUDA_CHECK(cudaStreamWaitEvent(native(then), event, 0));
}

void synchronize(StreamView stream) {
  const cudaError_t error = cudaStreamSynchronize(native(stream));
  const bool no_gpu = error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice;
  if (no_gpu && stream.handle() == nullptr) {  // the CPU's empty stream has nothing pending
    cudaGetLastError();
    return;
  }
  MEMBOUND_CUDA_CHECK(error);
}

}  // namespace cuda

}  // namespace membound
