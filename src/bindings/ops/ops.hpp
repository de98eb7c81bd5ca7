// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "signature.hpp"

namespace membound::python {

// One line per op; bindings/ops/<op>.cpp defines it.
extern const Op kRmsNorm;
extern const Op kAddRmsNorm;
extern const Op kFusedAddRmsNorm;
extern const Op kRmsNormBackward;
extern const Op kAddRmsNormBackward;

}  // namespace membound::python
