// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace membound::cpu {

// IEEE arithmetic within a scope: round to nearest, keep subnormals, no traps. A caller may run
// with other settings (torch.set_flush_denormal, -ffast-math start-up code) that pool threads would
// not share. The destructor restores the caller's mode; a mode that is right already costs nothing.
class FloatMode {
 public:
  FloatMode() : before_(get()) {
    if (changes()) set(kIeee);
  }
  ~FloatMode() {
    if (changes()) set(before_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  static constexpr Word kIeee = 0x1f80;   // all exceptions masked
  static constexpr Word kFlags = 0x003f;  // sticky exception flags, which do not affect results
  static Word get() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kIeee = 0;
  static constexpr Word kFlags = 0;
  static Word get() { return __builtin_aarch64_get_fpcr64(); }
  static void set(Word word) { __builtin_aarch64_set_fpcr64(word); }
#else
  using Word = std::uint32_t;
  static constexpr Word kIeee = 0;
  static constexpr Word kFlags = 0;
  static Word get() { return kIeee; }
  static void set(Word) {}
#endif
  bool changes() const { return (before_ & ~kFlags) != kIeee; }

  Word before_;
};

}  // namespace membound::cpu
