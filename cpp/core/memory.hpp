// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "membound/device.hpp"
#include "membound/stream.hpp"

// What each back end implements beneath DeviceBuffer, Stream and copy_bytes.
namespace membound::cpu {
// 64-byte aligned; blocks of 4 MiB and more are aligned to 2 MiB and ask for huge pages.
void* allocate(std::size_t bytes);
void deallocate(void* data, std::size_t bytes) noexcept;
// Ask for huge pages on memory that was just allocated and not yet written (research: a first-touch
// fault of 4 KiB costs 1.6 us in a guest; 58 -> 13.5 ms for 128 MiB).
MEMBOUND_API void advise_huge_pages(void* data, std::size_t bytes) noexcept;

// While it is there, memory that its thread frees serves that thread's next allocations of the same
// size: a loop whose turns allocate alike can fail in its first turn only.
class KeptMemory {
 public:
  explicit KeptMemory(bool wanted);
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  void* take(std::size_t bytes) noexcept;             // null where there is none
  bool keep(void* data, std::size_t bytes) noexcept;  // false where there is no place

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };
  std::array<Block, 8> blocks_{};
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
