// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/sincos.hpp"
#include "membound/dtype.hpp"

// Random numbers, by the same operations on CPU and GPU (there without contraction to FMA, which
// would change bits). `static` as in core/sincos.hpp.
namespace membound::philox {

struct Words {
  std::uint32_t word[4];
};

// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
static inline MEMBOUND_HOST_DEVICE Words block(std::uint64_t counter, std::uint64_t seed) {
  Words x{{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}};
  std::uint32_t first_key = static_cast<std::uint32_t>(seed);
  std::uint32_t second_key = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53} * x.word[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57} * x.word[2];
    x = {{static_cast<std::uint32_t>(second >> 32) ^ x.word[1] ^ first_key,
          static_cast<std::uint32_t>(second),
          static_cast<std::uint32_t>(first >> 32) ^ x.word[3] ^ second_key,
          static_cast<std::uint32_t>(first)}};
    first_key += 0x9E3779B9u;
    second_key += 0xBB67AE85u;
  }
  return x;
}

// Elements that share a block: 4 of up to 32 bits, which use a word each, else 2.
static inline MEMBOUND_HOST_DEVICE int per_block(DType dtype) {
  const bool is_narrow =
      dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32;
  return is_narrow ? 4 : 2;
}

static inline MEMBOUND_HOST_DEVICE std::uint64_t long_word(const Words& words, int which) {
  return words.word[2 * which] | static_cast<std::uint64_t>(words.word[2 * which + 1]) << 32;
}

// Element `which` of a block in [0, 1), as many bits as the dtype holds.
static inline MEMBOUND_HOST_DEVICE double unit(const Words& words, int which, DType dtype) {
  if (per_block(dtype) == 2) return static_cast<double>(long_word(words, which) >> 11) * 0x1p-53;
  const int digits = dtype == DType::kFloat32 ? 24 : dtype == DType::kFloat16 ? 11 : 8;
  const double scale = dtype == DType::kFloat32   ? 0x1p-24
                       : dtype == DType::kFloat16 ? 0x1p-11
                                                  : 0x1p-8;
  return (words.word[which] >> (32 - digits)) * scale;
}

// The logarithm of a normal number within 1 ulp; see cpu/logarithm.hpp.
static inline MEMBOUND_HOST_DEVICE double log_of(double x) {
  constexpr std::uint64_t kOne = 0x3ff0000000000000, kRootOfHalf = 0x3fe6a09e667f3bcd;
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  const std::uint64_t shifted = number_bits<std::uint64_t>(x) + (kOne - kRootOfHalf);
  const double n = static_cast<double>(static_cast<std::int64_t>(shifted >> 52) - 1023);
  const double f = number_bits<double>((shifted & kMantissa) + kRootOfHalf) - 1;
  const double s = f / (2 + f), z = s * s;
  double sum = 0x1.39fdcceb4bb45p-3 + z * 0x1.2b5f68a50d903p-3;
  sum = 0x1.7462b91b8df65p-3 + z * sum;
  sum = 0x1.c71c62d5e53e0p-3 + z * sum;
  sum = 0x1.2492492dfd86cp-2 + z * sum;
  sum = 0x1.9999999995273p-2 + z * sum;
  sum = 0x1.5555555555558p-1 + z * sum;
  return n * 0x1.62e42fefa38p-1 + (f - (s * (f - z * sum) - n * 0x1.ef35793c7673p-45));
}

// Elements 2 * pair and 2 * pair + 1 of the normal distribution (Box and Muller).
static inline MEMBOUND_HOST_DEVICE void normal_pair(const Words& words, int pair, DType dtype,
                                                    double& first, double& second) {
  constexpr double kTwoPi = 0x1.921fb54442d18p+2;
  double radius, turn;
  if (per_block(dtype) == 2) {
    radius = static_cast<double>((long_word(words, 0) >> 11) + 1) * 0x1p-53;
    turn = static_cast<double>(long_word(words, 1) >> 11) * 0x1p-53;
  } else {
    radius = (static_cast<double>(words.word[2 * pair]) + 1) * 0x1p-32;
    turn = static_cast<double>(words.word[2 * pair + 1]) * 0x1p-32;
  }
  const double minus_twice_log = -2 * log_of(radius);
#if defined(__CUDA_ARCH__)
  const double distance = ::sqrt(minus_twice_log);
#else
  const double distance = __builtin_sqrt(minus_twice_log);
#endif
  double sine, cosine;
  sincos_of(turn * kTwoPi, sine, cosine);
  first = distance * cosine;
  second = distance * sine;
}

// 0 to range - 1; a range of 0 stands for 2^64. Bias is below range / 2^64.
static inline MEMBOUND_HOST_DEVICE std::uint64_t below(std::uint64_t bits, std::uint64_t range) {
  if (range == 0) return bits;
#if defined(__CUDA_ARCH__)
  return __umul64hi(bits, range);
#else
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * range) >> 64);
#endif
}

// What a call asks for: of uniform numbers the bounds, of normal ones mean and deviation.
struct Reals {
  bool normal;
  DType dtype;
  double low, high;
};
// The elements of one block.
static inline MEMBOUND_HOST_DEVICE void reals(const Reals& wanted, const Words& words,
                                              double* values) {
  const int count = per_block(wanted.dtype);
  for (int pair = 0; wanted.normal && pair < count / 2; ++pair) {
    normal_pair(words, pair, wanted.dtype, values[2 * pair], values[2 * pair + 1]);
    for (int i = 2 * pair; i < 2 * pair + 2; ++i) values[i] = wanted.low + wanted.high * values[i];
  }
  for (int i = 0; !wanted.normal && i < count; ++i) {
    values[i] = wanted.low + unit(words, i, wanted.dtype) * (wanted.high - wanted.low);
    if (wanted.dtype != DType::kFloat64) values[i] = static_cast<float>(values[i]);
    if (values[i] >= wanted.high) values[i] = wanted.low;  // rounded up
  }
}

// Both elements of a block, from `lowest` on.
static inline MEMBOUND_HOST_DEVICE void integers(std::int64_t lowest, std::uint64_t range,
                                                 const Words& words, std::uint64_t* values) {
  for (int i = 0; i < 2; ++i)
    values[i] = static_cast<std::uint64_t>(lowest) + below(long_word(words, i), range);
}

}  // namespace membound::philox
