// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/device_type.hpp"
#include "membound/export.hpp"

namespace membound {

// A borrowed CUDA stream. It cannot be made from an integer or nullptr by accident: the legacy
// default stream must be named explicitly. CPU ops ignore the stream.
class StreamView {
 public:
  // handle: a cudaStream_t. The stream must outlive the work queued on it.
  static constexpr StreamView from_handle(void* handle) noexcept { return StreamView(handle); }
  // What frameworks mean by "the default stream" unless told otherwise.
  static constexpr StreamView legacy_default() noexcept { return StreamView(nullptr); }

  constexpr void* handle() const noexcept { return handle_; }
  MEMBOUND_API void synchronize() const;

 private:
  explicit constexpr StreamView(void* handle) noexcept : handle_(handle) {}
  void* handle_;
};

// An owned non-blocking stream on one device. On the CPU it is empty and does nothing.
class MEMBOUND_API Stream {
 public:
  explicit Stream(Device device);
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamView view() const noexcept { return StreamView::from_handle(handle_); }
  operator StreamView() const noexcept { return view(); }
  Device device() const noexcept { return device_; }
  void synchronize() const { view().synchronize(); }

 private:
  Device device_;
  void* handle_ = nullptr;
};

}  // namespace membound
