// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/device_buffer.hpp"

#include <cstring>
#include <utility>

#include "core/memory.hpp"

namespace membound {

DeviceBuffer::DeviceBuffer(std::size_t bytes, Device device, StreamView stream)
    : bytes_(bytes), device_(device), stream_(stream) {
  if (bytes == 0) return;
  data_ = device.kind == DeviceKind::kCpu ? cpu::allocate(bytes)
                                          : cuda::allocate(bytes, device, stream);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  if (device_.kind == DeviceKind::kCpu) {
    cpu::deallocate(data_, bytes_);
  } else {
    cuda::deallocate(data_, device_, stream_);
  }
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_),
      stream_(other.stream_) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

void copy_bytes(void* destination, Device destination_device, const void* source,
                Device source_device, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  if (destination_device.kind == DeviceKind::kCpu && source_device.kind == DeviceKind::kCpu) {
    std::memcpy(destination, source, bytes);
  } else {
    const Device device = destination_device.is_cuda() ? destination_device : source_device;
    cuda::copy(destination, source, bytes, device, stream);
  }
}

}  // namespace membound
