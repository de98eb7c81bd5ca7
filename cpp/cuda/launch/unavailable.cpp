// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// CPU-only build: stubs of the few runtime symbols, so that no op needs its own.
#include "core/memory.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

void throw_cuda_unavailable(const char* op) {
  throw CudaError(0, "MemboundBuiltWithoutCuda",
                  std::string(op) +
                      ": this membound was built without CUDA; install a CUDA build, "
                      "or build with nvcc on the PATH (see `python -m membound info`)");
}

DeviceGuard::DeviceGuard(Device, const char*) {}
DeviceGuard::~DeviceGuard() = default;

CudaStatus cuda_status() {
  CudaStatus status;
  status.error_name = "MemboundBuiltWithoutCuda";
  status.message = "this membound was built without CUDA";
  return status;
}

DeviceProperties device_properties(Device device) {
  check_gpu(device, "device_properties");
  throw_cuda_unavailable("device_properties");
}

Device current_cuda_device() { return Device::cuda(); }  // the op will report that there is none

namespace cuda {
void* allocate(std::size_t, Device, StreamView) { throw_cuda_unavailable("DeviceBuffer"); }
void deallocate(void*, Device, StreamView) noexcept {}
void copy(void*, const void*, std::size_t, Device, StreamView) {
  throw_cuda_unavailable("copy_bytes");
}
void* create_stream(Device) { throw_cuda_unavailable("Stream"); }
void destroy_stream(void*, Device) noexcept {}
void synchronize(StreamView) {}  // CPU ops have finished when they return
}  // namespace cuda

}  // namespace membound
