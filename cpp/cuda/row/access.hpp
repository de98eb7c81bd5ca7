// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace membound::cuda {

// How kernels read and write the rows of an array.
enum class Access {
  kAligned,    // at most two row axes, unit column stride, 16-byte aligned rows of whole vectors
  kUnaligned,  // unit column stride, any alignment and width, by 8-, 4- or 2-byte vectors
  kStrided,    // any column stride, element by element
};

}  // namespace membound::cuda
