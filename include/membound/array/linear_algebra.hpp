// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ndarray.hpp"

namespace membound::array {

// The product of matrices, batched over leading axes, which broadcast. Operands of one axis are a
// row or a column; that axis is not in the result. 16-bit floats accumulate in float32.
MEMBOUND_API NDArray matmul(const NDArray& x1, const NDArray& x2);

}  // namespace membound::array
