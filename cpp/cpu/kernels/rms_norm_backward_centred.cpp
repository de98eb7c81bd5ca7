// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_backward_kernel.hpp"

// The gradients of centred rows (layer_norm_backward). dweight and dbias are computed together: one
// alone is hardly cheaper, and this saves instantiations.
namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

template <class T, bool kDot, bool kColumns, bool kAdd>
void run(const RmsNormBackwardRows& rows) {
  Kernel<Sums<T, kDot, kColumns, /*kRoundFirst=*/false, /*kCentred=*/true>, kAdd>{rows}.run();
}

template <class T>
void run_wanted(const RmsNormBackwardRows& rows) {
  const bool columns = rows.weight_sum != nullptr;
  if (rows.dx == nullptr) return run<T, false, true, false>(rows);
  if (rows.dsum != nullptr) {
    return columns ? run<T, true, true, true>(rows) : run<T, true, false, true>(rows);
  }
  columns ? run<T, true, true, false>(rows) : run<T, true, false, false>(rows);
}

}  // namespace

void rms_norm_backward_centred(const RmsNormBackwardRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run_wanted<Float16>(rows);
    case DType::kBFloat16: return run_wanted<BFloat16>(rows);
    case DType::kFloat32: return run_wanted<float>(rows);
    default: return run_wanted<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
