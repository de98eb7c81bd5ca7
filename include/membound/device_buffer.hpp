// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "membound/device.hpp"
#include "membound/export.hpp"
#include "membound/stream.hpp"

namespace membound {

// Uninitialised bytes on a device, freed with the object. On a GPU, allocation and release are
// ordered on the stream (cudaMallocAsync); host memory is 64-byte aligned, and large blocks request
// huge pages. Move-only: copying device memory needs a stream, so it is explicit (copy_bytes).
class MEMBOUND_API DeviceBuffer {
 public:
  DeviceBuffer() noexcept = default;
  // Throws OutOfMemory, or CudaError when the device is not there. 0 bytes is legal: data() is
  // null.
  DeviceBuffer(std::size_t bytes, Device device, StreamView stream = StreamView::legacy_default());
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const noexcept { return bytes_; }
  Device device() const noexcept { return device_; }
  StreamView stream() const noexcept { return stream_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  StreamView stream_ = StreamView::legacy_default();
};

// Copies bytes between any two devices, in order on the stream. From or to pageable host memory
// CUDA stages the bytes and may block; with DeviceKind::kCudaHost memory it does not.
MEMBOUND_API void copy_bytes(void* destination, Device destination_device, const void* source,
                             Device source_device, std::size_t bytes, StreamView stream);

}  // namespace membound
