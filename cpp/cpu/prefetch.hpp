// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/vec.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

constexpr std::int64_t kLine = 64;  // bytes

// Prefetches bytes [first, last) of a row. kLocality as __builtin_prefetch takes it.
template <int kLocality>
MEMBOUND_ALWAYS_INLINE void prefetch_bytes(const void* row, std::int64_t first, std::int64_t last) {
  for (std::int64_t byte = first; byte < last; byte += kLine) {
    __builtin_prefetch(static_cast<const char*>(row) + byte, 0, kLocality);
  }
}

// Cache hints for a row: non-temporal stores, and the distance of prefetch_ahead.
struct CacheHints {
  bool non_temporal;
  std::int64_t prefetch_distance;  // bytes; see prefetch_ahead
};

// Prefetches `bytes` bytes that lie `distance` bytes after `at`, for arrays that a kernel reads
// sequentially. 0 turns it off.
MEMBOUND_ALWAYS_INLINE void prefetch_ahead(const void* at, std::int64_t bytes,
                                           std::int64_t distance) {
  if (distance != 0) prefetch_bytes<3>(at, distance, distance + bytes);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
