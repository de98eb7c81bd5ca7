// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ndarray.hpp"

namespace membound::array {

// Sorted along an axis, NaNs last. Equal elements keep their order, in descending order, too.
MEMBOUND_API NDArray sort(const NDArray& x, int axis = -1, bool descending = false);
MEMBOUND_API NDArray argsort(const NDArray& x, int axis = -1, bool descending = false);

}  // namespace membound::array
