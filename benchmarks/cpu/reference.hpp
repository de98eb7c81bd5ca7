// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// The references: memory moved with the widest vectors of the CPU, independently of
// MEMBOUND_CPU_ISA, by plain or non-temporal stores.
namespace membound_bench {

// bytes: a multiple of 256 for every reference.
void copy(void* to, const void* from, std::size_t bytes, bool non_temporal);
// to = a + 3 b in float32.
void triad(void* to, const void* a, const void* b, std::size_t bytes, bool non_temporal);

}  // namespace membound_bench
