// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "membound/ndarray.hpp"

// Arithmetic on shapes and strides; no memory is read.
namespace membound::geometry {

using Dims = NDArray::Dims;

std::string shape_text(const Dims& shape);
// Throws InvalidArgument unless there are at most kMaxRank axes, none negative, and few enough
// bytes.
void check_shape(const Dims& shape, DType dtype, const char* op);
std::int64_t size_of(const Dims& shape);
Dims contiguous_strides(const Dims& shape);
// From 0 to rank - 1; negative axes count from the end.
int normalised_axis(std::int64_t axis, int rank, const char* op, const char* argument = "axis");
// The same for several axes, each at most once.
Dims normalised_axes(const Dims& axes, int rank, const char* op, const char* argument = "axis");
// Which axes are in a list of normalised ones.
std::vector<bool> axis_mask(const Dims& axes, int rank);
// The strides of a view of another shape and the same size, or nothing if it needs a copy.
std::optional<Dims> reshaped_strides(const Dims& shape, const Dims& strides, const Dims& wanted);
// Fills in an extent of -1; throws if the sizes differ.
Dims resolved_shape(const Dims& shape, Dims wanted, const char* op);
Dims broadcast_shapes(const Dims& a, const Dims& b, const char* op);
// Strides of an array that is broadcast to a shape; throws if it cannot be.
Dims broadcast_strides(const Dims& shape, const Dims& strides, const Dims& wanted, const char* op);

}  // namespace membound::geometry
