// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The form of a norm's gradient, chosen by rows, cols and dtype alone.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/norm/rms_norm_config.hpp"

namespace membound::cuda::tuning {

enum class GradientForm {
  kSpecialised,  // column blocks and row blocks in one launch; no partial sums
  kPersistent,   // dx and dweight from one read; a second kernel adds up partial sums
};

inline constexpr int kPersistentBlock = 512;
// Up to 16 blocks of 512 threads with two vectors each.
constexpr bool has_persistent_form(std::int64_t vectors) {
  return vectors <= kMaxGroups * 2 * kPersistentBlock;
}
// A gradient's rows: what its form depends on, whatever their alignment.
struct GradientRows {
  std::int64_t vectors;
  int dtype_size;
  bool centred;
  bool gated;
  bool whole;  // the last vector is full; if not, rows are not all 16-byte aligned

  bool has_bias_or_gate() const { return centred || gated; }
  // True if most rows of this width go to the unaligned kernels.
  bool unaligned() const { return !whole && dtype_size < 8; }
};
inline GradientRows gradient_rows(std::int64_t cols, int dtype_size, bool centred, bool gated) {
  return {ceil_div(cols, kVector / dtype_size), dtype_size, centred, gated,
          cols * dtype_size % kVector == 0};
}

// Rows up to which the block-specialised form is faster, for RMSNorm and LayerNorm; an entry covers
// rows of up to `vectors` vectors. The form saves the second launch and pays with a second read and
// long column sums (bfloat16 512 x 8192: 10.8 us, persistent 14.2; 384 x 16384: 20.0, persistent
// 17.0).
struct SpecialisedRows {
  std::int64_t vectors;
  std::int64_t norm;
  std::int64_t layer_norm;
};
inline constexpr std::int64_t kAnyVectors = std::numeric_limits<std::int64_t>::max();
inline constexpr SpecialisedRows kSpecialisedOf16Bits[] = {
    {64, 256, 256},   {128, 160, 224},    {160, 208, 384},      {192, 224, 768},
    {256, 448, 896},  {1024, 1024, 1024}, {1280, 640, 768},     {1536, 512, 640},
    {3072, 192, 320}, {4096, 192, 128},   {kAnyVectors, 64, 24}};
inline constexpr SpecialisedRows kSpecialisedOf32Bits[] = {
    {64, 288, 288},   {128, 176, 224},  {160, 208, 384},      {192, 224, 704},
    {256, 304, 832},  {1024, 768, 768}, {1280, 384, 384},     {1536, 320, 320},
    {2048, 128, 128}, {4096, 64, 48},   {kAnyVectors, 16, 16}};
inline constexpr SpecialisedRows kSpecialisedOf64Bits[] = {
    {128, 256, 256}, {640, 512, 512}, {1024, 256, 256}, {2048, 64, 64}, {kAnyVectors, 16, 16}};
// Odd widths, whose rows are mostly unaligned (bfloat16 64 x 301: 3.5 us, persistent 6.1; 384 x
// 301: 12.8, persistent 6.5).
inline constexpr SpecialisedRows kSpecialisedOfUnaligned[] = {
    {32, 112, 128},  {64, 160, 160},  {128, 80, 96},   {768, 224, 256},      {1280, 144, 160},
    {1536, 64, 144}, {2048, 48, 112}, {3072, 32, 192}, {kAnyVectors, 16, 16}};
inline constexpr SpecialisedRows kSpecialisedOfGated[] = {
    {32, 240, 240},  {64, 192, 192},   {128, 112, 112}, {256, 448, 448},
    {640, 384, 384}, {1024, 160, 160}, {4096, 64, 64},  {kAnyVectors, 16, 16}};
inline constexpr std::int64_t kSpecialisedOfUnalignedGated = 64;  // for rows wider than a warp

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
