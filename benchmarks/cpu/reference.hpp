// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// What the ops are measured beside: memory moved by the widest vectors that the CPU has, whatever
// MEMBOUND_CPU_ISA says, with plain stores or around the cache.
namespace membound_bench {

// bytes: a multiple of 256 in all of them.
void copy(void* to, const void* from, std::size_t bytes, bool around_cache);
// to = a + 3 b in float32.
void triad(void* to, const void* a, const void* b, std::size_t bytes, bool around_cache);

}  // namespace membound_bench
