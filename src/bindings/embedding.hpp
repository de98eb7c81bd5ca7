// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/tensor_view.hpp"

// Shared by calls of embedding from Python and from torch's dispatcher.
namespace membound::python {

// Resolves padding_idx: a negative one counts from the end of a whole table.
std::int64_t padding_id(const char* op, std::int64_t padding_idx, std::int64_t vocab,
                        std::int64_t vocab_start);
void check_embedding_weight(const TensorView& weight);

// The shape and dtype of the result; throws if the library would refuse it. Strides are not set.
TensorView embedding_rows(const ConstTensorView& ids, const TensorView& weight, DType dtype);

}  // namespace membound::python
