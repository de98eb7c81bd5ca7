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
  kSpecialised,  // blocks of columns beside blocks of rows; no partial sums
  kPersistent,   // dx and dweight from one read, partial sums added up by a second kernel
};

inline constexpr int kPersistentBlock = 512;
// Up to 16 blocks of 512 threads with two vectors.
constexpr bool has_persistent_form(std::int64_t vectors) {
  return vectors <= kMaxGroups * 2 * kPersistentBlock;
}
// Rows of a gradient, what its form depends on whatever their alignment.
struct GradientRows {
  std::int64_t vectors;
  int dtype_size;
  bool centred;
  bool gated;
  bool whole;  // the last vector, too: else rows do not all start at a boundary

  bool has_bias_or_gate() const { return centred || gated; }
  // Whether kernels of rows that start anywhere have most of them.
  bool unaligned() const { return !whole && dtype_size < 8; }
};
inline GradientRows gradient_rows(std::int64_t cols, int dtype_size, bool centred, bool gated) {
  return {ceil_div(cols, kVector / dtype_size), dtype_size, centred, gated,
          cols * dtype_size % kVector == 0};
}

// One launch of two roles where rows are few: what it saves is the second launch, what it costs the
// second read and long sums. Rows up to which it is faster than the persistent form, of RMSNorm and
// of LayerNorm, by the most vectors of a row: where the two met in grids of widths and rows (H200,
// us in roles and persistent: 512 x 8192 10.8 and 14.2, LayerNorm 12.2 and 17.4, 1024 x 8192 19.2
// and 19.9, 512 x 12288 19.0 and 18.9, 96 x 16384 7.5 and 11.0, 384 x 16384 20.0 and 17.0; float32
// 768 x 4096 13.8 and 14.5, 256 x 8192 13.5 and 11.9; with a gate 512 x 2048 9.3 and 9.5, 1024 x
// 2048 16.6 and 12.0, 512 x 4097 67 and 29; H100, up to 256 vectors, 256 x 1024 5.2 and 4.0, 512 x
// 1280 6.7 and 5.5, 256 x 1536 5.0 and 4.7, 384 x 2048 5.4 and 6.0, LayerNorm 512 x 1152 7.8 and
// 6.6, 768 x 1536 10.0 and 10.8).
struct SpecialisedRows {
  std::int64_t vectors;
  std::int64_t norm;
  std::int64_t layer_norm;
};
inline constexpr std::int64_t kStridedVectors = std::numeric_limits<std::int64_t>::max();
inline constexpr SpecialisedRows kSpecialisedOf16Bits[] = {
    {64, 256, 256},   {128, 160, 224},    {160, 208, 384},          {192, 224, 768},
    {256, 448, 896},  {1024, 1024, 1024}, {1280, 640, 768},         {1536, 512, 640},
    {3072, 192, 320}, {4096, 192, 128},   {kStridedVectors, 64, 24}};
inline constexpr SpecialisedRows kSpecialisedOf32Bits[] = {
    {64, 288, 288},   {128, 176, 224},  {160, 208, 384},          {192, 224, 704},
    {256, 304, 832},  {1024, 768, 768}, {1280, 384, 384},         {1536, 320, 320},
    {2048, 128, 128}, {4096, 64, 48},   {kStridedVectors, 16, 16}};
inline constexpr SpecialisedRows kSpecialisedOf64Bits[] = {
    {128, 256, 256}, {640, 512, 512}, {1024, 256, 256}, {2048, 64, 64}, {kStridedVectors, 16, 16}};
// Of odd widths (H200, bfloat16, us in roles and persistent: 512 x 65 3.5 and 4.7, 448 x 300 4.6
// and 5.9, 256 x 513 4.6 and 5.8, 448 x 1001 7.2 and 7.9, 768 x 2049 10.7 and 13.4, 448 x 3073 11.0
// and 13.2, 640 x 5001 16.8 and 17.3, 192 x 8193 16.0 and 17.1, 64 x 12289 12.9 and 11.1).
inline constexpr SpecialisedRows kSpecialisedOfUnaligned[] = {
    {32, 640, 704},   {64, 768, 832},  {80, 288, 320},  {128, 480, 608}, {160, 576, 768},
    {256, 896, 1024}, {352, 832, 896}, {448, 480, 704}, {640, 640, 768}, {1024, 256, 352},
    {1280, 176, 224}, {1536, 64, 144}, {2048, 48, 112}, {3072, 32, 192}, {kStridedVectors, 16, 16}};
inline constexpr SpecialisedRows kSpecialisedOfGated[] = {
    {32, 240, 240},  {64, 192, 192},   {128, 112, 112}, {256, 448, 448},
    {640, 384, 384}, {1024, 160, 160}, {4096, 64, 64},  {kStridedVectors, 16, 16}};
inline constexpr std::int64_t kSpecialisedOfUnalignedGated = 64;  // beyond lanes of a warp

inline std::int64_t specialised_rows(const GradientRows& of) {
  const auto among = [&](const auto& bounds) {
    const SpecialisedRows* bound = bounds;
    while (of.vectors > bound->vectors) ++bound;
    return of.centred ? bound->layer_norm : bound->norm;
  };
  if (of.gated) {
    const std::int64_t rows = among(kSpecialisedOfGated);
    return of.unaligned() && of.vectors > 32 ? std::min(rows, kSpecialisedOfUnalignedGated) : rows;
  }
  if (of.unaligned()) return among(kSpecialisedOfUnaligned);
  if (of.dtype_size == 2) return among(kSpecialisedOf16Bits);
  return of.dtype_size == 4 ? among(kSpecialisedOf32Bits) : among(kSpecialisedOf64Bits);
}
inline bool block_specialised_gradient(std::int64_t rows, const GradientRows& of) {
  return !has_persistent_form(of.vectors) || rows <= specialised_rows(of);
}

}  // namespace membound::cuda::tuning
