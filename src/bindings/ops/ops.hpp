// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "signature.hpp"

namespace membound::python {

// One line per op, defined in bindings/ops/<op>.cpp; the aliases in bindings/*_aliases.cpp
// and bindings/activation_relu2.cpp.
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
extern const Op kRope;
extern const Op kRopeBackward;
extern const Op kQkNormRope;
extern const Op kQkNormRopeBackward;
extern const Op kEmbedding;
extern const Op kEmbeddingBackward;
extern const Op kCrossEntropy;
extern const Op kCrossEntropyBackward;
extern const Op kSoftmax;
extern const Op kSoftmaxBackward;
extern const Op kGemmaRmsNorm;
extern const Op kFusedAddRmsNorm;
extern const Op kGemmaFusedAddRmsNorm;
extern const Op kGatedActivation;
extern const Op kGatedActivationBackward;
extern const Op kGatedActivationQuant;
extern const Op kSiluAndMulQuant;
extern const Op kSiluAndMul;
extern const Op kSiluAndMulBackward;
extern const Op kGeluAndMul;
extern const Op kGeluAndMulBackward;
extern const Op kGeluTanhAndMul;
extern const Op kGeluTanhAndMulBackward;
extern const Op kSigmoidAndMul;
extern const Op kSigmoidAndMulBackward;
extern const Op kRelu2;
extern const Op kRelu2Backward;

}  // namespace membound::python
