// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace membound::cuda {

// What is read beside x: a residual that is added to it, or a gate whose silu multiplies x or the
// result.
enum class FusedInput { kNone, kResidual, kGate };

}  // namespace membound::cuda
