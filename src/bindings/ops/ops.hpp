// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "signature.hpp"

namespace membound::python {

// One line per op, defined in bindings/ops/<op>.cpp; the aliases in bindings/norm_aliases.cpp.
extern const Op kRmsNorm;
extern const Op kAddRmsNorm;
extern const Op kRmsNormBackward;
extern const Op kAddRmsNormBackward;
extern const Op kLayerNorm;
extern const Op kAddLayerNorm;
extern const Op kLayerNormBackward;
extern const Op kAddLayerNormBackward;
extern const Op kRmsNormGated;
extern const Op kRmsNormGatedBackward;
extern const Op kRmsNormQuant;
extern const Op kAddRmsNormQuant;
extern const Op kGemmaRmsNorm;
extern const Op kFusedAddRmsNorm;
extern const Op kGemmaFusedAddRmsNorm;

}  // namespace membound::python
