// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "membound/device_buffer.hpp"

namespace membound {

// Memory for one chunk in flight: page-locked on the host and its twin on the GPU, each with a half
// for what goes up and a half for what comes down, and the stream that all of it runs on.
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

// A slot borrowed from the cache that all threads share. It goes back with the lease; where an
// exception ends the lease, the lease first waits for what is queued and then frees the slot.
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
  int exceptions_;  // that were under way when the lease began
};

}  // namespace membound
