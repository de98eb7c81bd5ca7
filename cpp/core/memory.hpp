// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
