// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/rms_norm_quant.hpp"

namespace membound {

// Residual addition and rms_norm_quant in one pass: y in its definition is what add_rms_norm writes
// for out, and residual_out gets the sum, as there.
//
// x, residual, residual_out: as in add_rms_norm; the rest as in rms_norm_quant
MEMBOUND_API void add_rms_norm_quant(const ConstTensorView& x, const ConstTensorView& residual,
                                     const ConstTensorView* weight,
                                     const RmsNormQuantOptions& options, const TensorView& out,
                                     const TensorView& residual_out,
                                     const ConstTensorView* static_scale, const TensorView* scale,
                                     StreamView stream);

}  // namespace membound
