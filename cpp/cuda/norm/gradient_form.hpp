// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which form a gradient of a norm takes, by rows, cols and dtype alone.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/norm/rms_norm_config.hpp"

namespace membound::cuda::tuning {

enum class GradientForm {
  kRoles,       // blocks of columns beside blocks of rows; no partial sums
  kPersistent,  // dx and dweight from one read, partial sums added up by a second kernel
};

inline constexpr int kPersistentBlock = 512;
// Up to 16 blocks of 512 threads with two chunks.
constexpr bool has_persistent_form(std::int64_t chunks) {
  return chunks <= kMaxGroups * 2 * kPersistentBlock;
}
// Rows of a gradient, what its form depends on whatever their alignment.
struct GradientRows {
  std::int64_t chunks;
  int dtype_size;
  bool centred;
  bool gated;
  bool whole;  // the last chunk, too: else rows do not all start at a boundary

  bool crowded() const { return centred || gated; }
  // Whether kernels of rows that start anywhere have most of them.
  bool shifted() const { return !whole && dtype_size < 8; }
};
inline GradientRows gradient_rows(std::int64_t cols, int dtype_size, bool centred, bool gated) {
  return {ceil_div(cols, kChunk / dtype_size), dtype_size, centred, gated,
          cols * dtype_size % kChunk == 0};
}

// One launch of two roles where rows are few: what it saves is the second launch, what it costs the
// second read and long sums. Rows up to which it is faster than the persistent form, of RMSNorm and
// of LayerNorm, by the most chunks of a row: where the two met in grids of widths and rows (H200,
// us in roles and persistent: 512 x 8192 10.8 and 14.2, LayerNorm 12.2 and 17.4, 1024 x 8192 19.2
// and 19.9, 512 x 12288 19.0 and 18.9, 96 x 16384 7.5 and 11.0, 384 x 16384 20.0 and 17.0; float32
// 768 x 4096 13.8 and 14.5, 256 x 8192 13.5 and 11.9; with a gate 512 x 2048 9.3 and 9.5, 1024 x
// 2048 16.6 and 12.0, 512 x 4097 67 and 29; H100, up to 256 chunks, 256 x 1024 5.2 and 4.0, 512 x
// 1280 6.7 and 5.5, 256 x 1536 5.0 and 4.7, 384 x 2048 5.4 and 6.0, LayerNorm 512 x 1152 7.8 and
// 6.6, 768 x 1536 10.0 and 10.8).
struct RolesRows {
  std::int64_t chunks;
  std::int64_t norm;
  std::int64_t layer_norm;
};
inline constexpr std::int64_t kAnyChunks = std::numeric_limits<std::int64_t>::max();
inline constexpr RolesRows kRolesOf16Bits[] = {
    {64, 256, 256},   {128, 160, 224},    {160, 208, 384},     {192, 224, 768},
    {256, 448, 896},  {1024, 1024, 1024}, {1280, 640, 768},    {1536, 512, 640},
    {3072, 192, 320}, {4096, 192, 128},   {kAnyChunks, 64, 24}};
inline constexpr RolesRows kRolesOf32Bits[] = {
    {64, 288, 288},   {128, 176, 224},  {160, 208, 384},     {192, 224, 704},
    {256, 304, 832},  {1024, 768, 768}, {1280, 384, 384},    {1536, 320, 320},
    {2048, 128, 128}, {4096, 64, 48},   {kAnyChunks, 16, 16}};
inline constexpr RolesRows kRolesOf64Bits[] = {
    {128, 256, 256}, {640, 512, 512}, {1024, 256, 256}, {2048, 64, 64}, {kAnyChunks, 16, 16}};
// Of odd widths (H200, bfloat16, us in roles and persistent: 512 x 65 3.5 and 4.7, 448 x 300 4.6
// and 5.9, 256 x 513 4.6 and 5.8, 448 x 1001 7.2 and 7.9, 768 x 2049 10.7 and 13.4, 448 x 3073 11.0
// and 13.2, 640 x 5001 16.8 and 17.3, 192 x 8193 16.0 and 17.1, 64 x 12289 12.9 and 11.1).
inline constexpr RolesRows kRolesOfShifted[] = {
    {32, 640, 704},   {64, 768, 832},  {80, 288, 320},  {128, 480, 608}, {160, 576, 768},
    {256, 896, 1024}, {352, 832, 896}, {448, 480, 704}, {640, 640, 768}, {1024, 256, 352},
    {1280, 176, 224}, {1536, 64, 144}, {2048, 48, 112}, {3072, 32, 192}, {kAnyChunks, 16, 16}};
inline constexpr RolesRows kRolesOfGated[] = {
    {32, 240, 240},  {64, 192, 192},   {128, 112, 112}, {256, 448, 448},
    {640, 384, 384}, {1024, 160, 160}, {4096, 64, 64},  {kAnyChunks, 16, 16}};
inline constexpr std::int64_t kRolesOfShiftedGated = 64;  // beyond lanes of a warp

inline std::int64_t roles_rows(const GradientRows& of) {
  const auto among = [&](const auto& bounds) {
    const RolesRows* bound = bounds;
    while (of.chunks > bound->chunks) ++bound;
    return of.centred ? bound->layer_norm : bound->norm;
  };
  if (of.gated) {
    const std::int64_t rows = among(kRolesOfGated);
    return of.shifted() && of.chunks > 32 ? std::min(rows, kRolesOfShiftedGated) : rows;
  }
  if (of.shifted()) return among(kRolesOfShifted);
  if (of.dtype_size == 2) return among(kRolesOf16Bits);
  return of.dtype_size == 4 ? among(kRolesOf32Bits) : among(kRolesOf64Bits);
}
inline bool gradient_in_roles(std::int64_t rows, const GradientRows& of) {
  return !has_persistent_form(of.chunks) || rows <= roles_rows(of);
}

}  // namespace membound::cuda::tuning
