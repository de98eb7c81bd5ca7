// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "membound/device.hpp"
#include "membound/stream.hpp"

// What each back end implements for DeviceBuffer, Stream and copy_bytes.
namespace membound::cpu {
// 64-byte aligned. Blocks of 4 MiB and more are 2 MiB aligned and request huge pages. The last two
// freed blocks of 30 to 256 MiB are kept for allocations of their size; the system may take their
// pages back.
void* allocate(std::size_t bytes);
void deallocate(void* data, std::size_t bytes) noexcept;
// Requests huge pages for memory that was allocated but not yet written: page faults are far fewer
// (128 MiB: 58 -> 13.5 ms).
MEMBOUND_API void advise_huge_pages(void* data, std::size_t bytes) noexcept;

// Memory that waits to be allocated again; null: none.
struct FreedBlock {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// During its lifetime, memory that this thread frees is reused for its next allocations of the same
// size. A loop whose iterations allocate alike can then run out of memory in the first one only.
class AllocationCache {
 public:
  explicit AllocationCache(bool wanted);
  ~AllocationCache();
  AllocationCache(const AllocationCache&) = delete;
  AllocationCache& operator=(const AllocationCache&) = delete;

  void* take(std::size_t bytes) noexcept;                 // null if there is none
  bool put_back(void* data, std::size_t bytes) noexcept;  // false if the cache is full

 private:
  std::array<FreedBlock, 8> blocks_;
};
}  // namespace membound::cpu

namespace membound::cuda {
void* allocate(std::size_t bytes, Device device, StreamView stream);
void deallocate(void* data, Device device, StreamView stream) noexcept;
void copy(void* destination, const void* source, std::size_t bytes, Device device,
          StreamView stream);
void* create_stream(Device device);
void destroy_stream(void* handle, Device device) noexcept;
void synchronize(StreamView stream);
}  // namespace membound::cuda
