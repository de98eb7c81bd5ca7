// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/tensor_view.hpp"

// What calls of embedding from Python and from torch's dispatcher have in common.
namespace membound::python {

// The id that padding_idx means: a negative one counts from the end of a whole table.
std::int64_t padding_id(const char* op, std::int64_t padding_idx, std::int64_t vocab,
                        std::int64_t vocab_start);
void check_embedding_weight(const TensorView& weight);

// The shape and dtype of the rows that ids name, which is refused where the library would refuse
// the result. Its strides are not set.
TensorView embedding_rows(const ConstTensorView& ids, const TensorView& weight, DType dtype);

}  // namespace membound::python
