// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows.hpp"

#include <cstdio>

namespace membound::cpu {

namespace {

// A larger last-level cache is shared by many cores, and slow, so no more than 32 MiB of it count
// (a Xeon with 480 MiB, RMSNorm of 16 MiB into uncached memory by non-temporal stores: 2.3 -> 1.4
// ms).
constexpr std::int64_t kUsefulCacheBytes = 32 << 20;

// The size of the last-level cache of core 0; 16 MiB if the system does not tell.
std::int64_t last_cache_bytes() {
  long kibibytes = 0;
  if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
    if (std::fscanf(file, "%ldK", &kibibytes) != 1) kibibytes = 0;
    std::fclose(file);
  }
  return std::int64_t{kibibytes > 0 ? kibibytes : 16 << 10} << 10;
}

}  // namespace

// Non-temporal stores pay off from half of the last-level cache on, even if a consumer reads the
// output at once.
bool pays_to_bypass_cache(std::int64_t bytes) {
  static const std::int64_t threshold = std::min(last_cache_bytes(), kUsefulCacheBytes) / 2;
  return bytes >= threshold;
}

// Norms prefetch rows if L2 does not hold the matrices (1.3 to 1.5 times as fast from memory), and
// then non-temporal stores pay off at half the usual size. A gate has more arithmetic per cache
// line, so it keeps the usual threshold for both.
NormMemory norm_memory(std::int64_t matrix_bytes, bool gated) {
  constexpr std::int64_t kPrefetchFromBytes = 4 << 20;
  const bool bypass = pays_to_bypass_cache(gated ? matrix_bytes / 2 : matrix_bytes);
  return {bypass, gated ? bypass : matrix_bytes >= kPrefetchFromBytes};
}

// On Intel, compute-heavy loops wait for memory: the hardware prefetcher does not run far enough
// ahead (silu_and_mul in bfloat16, non-temporal: 5.4 -> 15.7 GB/s with prefetch). Zen 4 gets slower
// by it. Below the size of an L2 cache it costs and gains nothing.
std::int64_t prefetch_distance(std::int64_t matrix_bytes) {
#if defined(__x86_64__)
  static const bool waits = __builtin_cpu_is("intel");
  constexpr std::int64_t kDistance = 2048, kFrom = 2 << 20;
  return waits && matrix_bytes >= kFrom ? kDistance : 0;
#else
  static_cast<void>(matrix_bytes);
  return 0;
#endif
}

WeightSource ones(WeightSource none) {
  static constexpr float kOne = 1;
  return {&kOne, DType::kFloat32, 0, none.cols, 0.0, none.x_dtype};
}

PreparedWeight prepare_weight(const WeightSource& weight, bool widen, const KernelTable& table) {
  if (weight.data == nullptr) return {nullptr, WeightForm::kNone, {}};
  if (is_native(weight) && !widen) return {weight.data, WeightForm::kNative, {}};
  DeviceBuffer storage(static_cast<std::size_t>(weight.cols + kPreparedPadding) *
                           dtype_size(accumulate_dtype(weight.x_dtype)),
                       Device::cpu());
  table.rms_norm_weight({weight.data, weight.dtype, weight.stride, weight.cols, weight.offset,
                         weight.x_dtype, storage.data()});
  const void* data = storage.data();
  return {data, WeightForm::kPrepared, std::move(storage)};
}

}  // namespace membound::cpu
