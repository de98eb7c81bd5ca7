// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ndarray.hpp"

namespace membound::array {

// Writes source, cast and broadcast, to the elements of destination. Memory that both share is read
// first. Between devices the copy goes through a contiguous one.
MEMBOUND_API void copy_into(NDArray& destination, const NDArray& source);
MEMBOUND_API void fill(NDArray& destination, Scalar value);
// As reshape; copies if no view has that shape.
MEMBOUND_API NDArray reshape_copy(const NDArray& x, NDArray::Dims shape);

MEMBOUND_API NDArray arange(Scalar start, Scalar stop, Scalar step, DType dtype,
                            Device device = Device::cpu());
MEMBOUND_API NDArray linspace(double start, double stop, std::int64_t count, DType dtype,
                              Device device = Device::cpu(), bool endpoint = true);

}  // namespace membound::array
