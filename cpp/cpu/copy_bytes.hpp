// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/row.hpp"

// Copies of rows as raw bytes.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// Up to this size a call of memcpy costs more than the copy itself.
constexpr std::int64_t kInlineBytes = 512;
// Narrower rows use cached stores.
constexpr std::int64_t kMinNonTemporalBytes = 1024;

// Rows of up to kInlineBytes.
MEMBOUND_ALWAYS_INLINE void copy_narrow(const char* from, char* to, std::int64_t bytes) {
  if (bytes < kVectorBytes) return copy_few_bytes(from, to, bytes);
  const std::int64_t last = bytes - kVectorBytes;  // the last vector overlaps the one before it
  for (std::int64_t at = 0; at < last; at += kVectorBytes) store(to + at, load<F32>(from + at));
  store(to + last, load<F32>(from + last));
}

// Copies a row. Non-temporal stores need an aligned vector, so the unaligned head goes through
// memcpy.
[[gnu::noinline]] void copy_bytes(const char* from, char* to, std::int64_t bytes,
                                  bool non_temporal) {
  if (bytes <= kInlineBytes) return copy_narrow(from, to, bytes);
  if (!non_temporal || bytes < kMinNonTemporalBytes) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  constexpr std::int64_t kVector = kVectorBytes;
  const std::int64_t misalignment = reinterpret_cast<std::uintptr_t>(to) % kVector;
  std::int64_t at = misalignment ? kVector - misalignment : 0;
  at = at < bytes ? at : bytes;
  __builtin_memcpy(to, from, at);
  for (; at + 4 * kVector <= bytes; at += 4 * kVector) {
    F32 vectors[4];
    for (int i = 0; i < 4; ++i) vectors[i] = load<F32>(from + at + i * kVector);
    for (int i = 0; i < 4; ++i) stream(to + at + i * kVector, vectors[i]);
  }
  for (; at + kVector <= bytes; at += kVector) stream(to + at, load<F32>(from + at));
  __builtin_memcpy(to + at, from + at, bytes - at);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
