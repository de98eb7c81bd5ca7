// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "membound/ndarray.hpp"

// Reading and writing at places that integer arrays name. Negative indices count from the end;
// others beyond it throw OutOfRange, for which the work of a GPU is waited for.
namespace membound::array {

// x[.., i, j, .., :]: the index arrays are broadcast together and stand for as many axes, from
// first_axis on, whose place their common shape takes.
MEMBOUND_API NDArray gather(const NDArray& x, const std::vector<NDArray>& indices, int first_axis);
// Writes values, cast and broadcast, there. Of several for one element the last in C order stays.
MEMBOUND_API void scatter(NDArray& x, const std::vector<NDArray>& indices, int first_axis,
                          const NDArray& values);
MEMBOUND_API NDArray take(const NDArray& x, const NDArray& indices, int axis);
// One index per element: result[i, j] = x[indices[i, j], j] for axis 0.
MEMBOUND_API NDArray take_along_axis(const NDArray& x, const NDArray& indices, int axis);
// The places of nonzero elements, one int64 array per axis. Waits for the count.
MEMBOUND_API std::vector<NDArray> nonzero(const NDArray& x);

}  // namespace membound::array
