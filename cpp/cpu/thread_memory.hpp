// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One scratch area per thread, for buffers too large for a small stack (128 KiB under musl). A
// kernel whose caller keeps an angle table there must not use it. No std:: header here: kernels
// include this one.
namespace membound::cpu {

inline constexpr long kThreadMemoryBytes = 320 << 10;

void* thread_memory() noexcept;  // aligned to 64 bytes

// The area as kCount numbers of type A.
template <class A, long kCount>
A* thread_array() noexcept {
  static_assert(kCount * long{sizeof(A)} <= kThreadMemoryBytes);
  return static_cast<A*>(thread_memory());
}

}  // namespace membound::cpu
