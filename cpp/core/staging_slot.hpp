// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "membound/device_buffer.hpp"

namespace membound {

// Memory for one chunk in flight: a page-locked host buffer and a GPU buffer of the same size, each
// split into an upload and a download half, and the stream that all its work uses.
struct StagingSlot {
  Device device;
  std::size_t bytes;  // of a half
  StreamView stream;
  DeviceBuffer host_memory;
  DeviceBuffer device_memory;

  char* host_in() const { return host_memory.as<char>(); }
  char* host_out() const { return host_memory.as<char>() + bytes; }
  char* device_in() const { return device_memory.as<char>(); }
  char* device_out() const { return device_memory.as<char>() + bytes; }

  void upload(void* to, std::size_t count) const {
    copy_bytes(to, device, host_in(), host_memory.device(), count, stream);
  }
  void download(const void* from, std::size_t count) const {
    copy_bytes(host_out(), host_memory.device(), from, device, count, stream);
  }
  void wait() const {
    if (device.is_cuda()) stream.synchronize();
  }
};

// A slot borrowed from a cache shared by all threads, and returned by the destructor. If an
// exception unwinds, the destructor waits for queued work and frees the slot instead.
class SlotLease {
 public:
  SlotLease(const char* op, Device device, std::size_t bytes);
  ~SlotLease();
  SlotLease(SlotLease&& other) noexcept;
  SlotLease& operator=(SlotLease&&) = delete;

  const StagingSlot* operator->() const { return &slot_; }

 private:
  StagingSlot slot_;
  bool owner_ = true;
  int exceptions_;  // in flight when the lease began
};

}  // namespace membound
