// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows.hpp"

#include <cstdio>

namespace membound::cpu {

namespace {

// Many cores, and virtual machines, share a larger cache, and it is slow. A guest of an Intel Xeon
// with 480 MiB, RMSNorm of 16 MiB of bfloat16 through the cache and around it: 2.3 and 1.4 ms into
// memory that is in no cache, 1.4 and 1.2 where it is, 1.3 and 1.7 where the next call reads it.
constexpr std::int64_t kUsefulCacheBytes = 32 << 20;

// Bytes of the last cache that core 0 sees; 16 MiB where the system does not say.
std::int64_t last_cache_bytes() {
  long kibibytes = 0;
  if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
    if (std::fscanf(file, "%ldK", &kibibytes) != 1) kibibytes = 0;
    std::fclose(file);
  }
  return std::int64_t{kibibytes > 0 ? kibibytes : 16 << 10} << 10;
}

}  // namespace

// Non-temporal stores pay from half the last cache on (32 MiB cache: 8 MiB output 1.0 x, 16 MiB
// 1.4 x with a consumer that reads the output at once).
bool pays_to_bypass_cache(std::int64_t bytes) {
  static const std::int64_t threshold = std::min(last_cache_bytes(), kUsefulCacheBytes) / 2;
  return bytes >= threshold;
}

// Rows are asked for where the second cache does not hold them (Zen 4, us without and so, arrays in
// no cache: LayerNorm of 2 x 2 MiB 363 and 246, 2 x 4 MiB 690 and 510; in the last cache 115 and
// 100, 234 and 207; around 1 MiB each within noise, up to 10 % longer with a residual). Then half
// the size pays that does otherwise (float32, LayerNorm 4096 x 768 1620 and 730, read again at once
// 2280 and 1270; RMSNorm 4096 x 1000 2330 and 1150, with a residual 4096 x 256 1050 and 330;
// gradients of bfloat16 4096 x 768 2190 and 960, LayerNorm 2210 and 1090). A gate has more to do
// for each line (4096 x 512 1030 and 1800, gradient 2460 and 2620).
NormMemory norm_memory(std::int64_t matrix_bytes, bool gated) {
  constexpr std::int64_t kAskedAheadFrom = 4 << 20;
  const bool around = pays_to_bypass_cache(gated ? matrix_bytes / 2 : matrix_bytes);
  return {around, gated ? around : matrix_bytes >= kAskedAheadFrom};
}

// Loops that compute a lot wait for memory on Intel, whose prefetchers do not run far enough ahead
// (Xeon, around the cache, GB/s without and with: silu_and_mul 2048 x 14336 bfloat16 5.4 and 15.7,
// float32 17 and 25, rope 16384 x 4096 bfloat16 14.0 and 18.5; 1 and 4 KiB are as good). Those of
// Zen 4 do: rope of 4096 x 4096 float32 took 0.93 of a copy's speed, asked for 4 KiB ahead 0.77.
// Below the size of a second cache it costs without a gain (rope 1 x 4096 float32 0.42 and 0.52
// us).
std::int64_t ask_distance(std::int64_t matrix_bytes) {
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
