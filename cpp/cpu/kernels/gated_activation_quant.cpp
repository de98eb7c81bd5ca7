// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/gated_activation_quant.hpp"

#include "cpu/gate_row.hpp"
#include "cpu/widen.hpp"

// Widens 16-bit gates and ups to float32, so that the activation is not rounded before
// quantisation. The kernels of gated_activation and rms_norm_quant do the rest.
namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

template <class T>
void widen_rows(const GatedActivationQuantRows& rows) {
  const Strided<const T> from{static_cast<const T*>(rows.from), rows.row_stride, rows.col_stride};
  if (!from.is_strided()) {
    for (std::int64_t row = 0; row < rows.rows; ++row)
      widen(from.row(row), rows.cols, rows.to + row * rows.to_row_stride);
    return;
  }
  const TileSize size = tile_size<T>(rows.cols, from.is_transposed());
  each_tile(rows.rows, rows.cols, size, [&](auto row, auto count, auto col, auto cols) {
    T copy[kBlock<T>];
    gather_tile(from, row, count, col, cols, copy);
    for (std::int64_t r = 0; r < count; ++r)
      widen(copy + r * cols, cols, rows.to + (row + r) * rows.to_row_stride + col);
  });
}

}  // namespace

void gated_activation_quant(const GatedActivationQuantRows& rows) {
  if (rows.dtype == DType::kFloat16) return widen_rows<Float16>(rows);
  widen_rows<BFloat16>(rows);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
