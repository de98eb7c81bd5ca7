// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ndarray.hpp"

namespace membound::array {

// Sorted along an axis, NaNs last. Equal elements keep their order, in descending order, too.
MEMBOUND_API NDArray sort(const NDArray& x, int axis = -1, bool descending = false);
MEMBOUND_API NDArray argsort(const NDArray& x, int axis = -1, bool descending = false);
// int64 places, of the shape of `wanted`, where its elements enter a vector so that it stays
// sorted, NaNs last: before equal elements, or after them if `right`. Both have one dtype.
MEMBOUND_API NDArray searchsorted(const NDArray& sorted, const NDArray& wanted, bool right = false);

}  // namespace membound::array
