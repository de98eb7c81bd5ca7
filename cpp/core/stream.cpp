// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/stream.hpp"

#include <utility>

#include "core/check.hpp"
#include "core/memory.hpp"
#include "membound/stream_pool.hpp"

namespace membound {

void StreamView::synchronize() const { cuda::synchronize(*this); }

Stream::Stream(Device device)
    : device_(device), handle_(device.is_cuda() ? cuda::create_stream(device) : nullptr) {}

Stream::~Stream() {
  if (handle_ != nullptr) cuda::destroy_stream(handle_, device_);
}

Stream::Stream(Stream&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

StreamPool::StreamPool(Device device, std::size_t size) {
  MEMBOUND_CHECK(size >= 1, InvalidArgument, "StreamPool",
                 "argument 'size' must be at least 1, got 0");
  streams_.reserve(size);
  for (std::size_t i = 0; i < size; ++i) streams_.emplace_back(device);
}

void StreamPool::synchronize() const {
  for (const Stream& stream : streams_) {
    if (stream.device().is_cuda()) stream.synchronize();
  }
}

}  // namespace membound
