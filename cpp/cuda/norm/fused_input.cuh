// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace membound::cuda {

// The second input that a kernel reads with x: a residual that is added to x, or a gate whose silu
// multiplies x or the result.
enum class FusedInput { kNone, kResidual, kGate };

}  // namespace membound::cuda
