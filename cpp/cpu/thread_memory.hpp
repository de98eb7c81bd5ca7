// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One area for each thread, for work areas that are too large for a small stack (128 KiB under
// musl). A kernel that runs while its caller keeps a table of angles there uses none itself.
// No std:: header, as kernels include it.
namespace membound::cpu {

inline constexpr long kThreadMemoryBytes = 128 << 10;

void* thread_memory() noexcept;  // aligned to 64 bytes

// The area as count numbers of A.
template <class A, long kCount>
A* thread_array() noexcept {
  static_assert(kCount * long{sizeof(A)} <= kThreadMemoryBytes);
  return static_cast<A*>(thread_memory());
}

}  // namespace membound::cpu
