// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "membound/dtype.hpp"
#include "membound/export.hpp"

namespace membound {

// Which kernel a norm or its gradient runs on a GPU, and how it is launched, as lines of text. op:
// a function of the norms, e.g. "add_rms_norm" or "layer_norm_backward". The arrays are contiguous,
// of rows x cols (at least 1 each) and one floating dtype, with parameters and without options.
// compute: the compute capability, 90 for 9.0. No GPU is asked. Throws InvalidArgument.
MEMBOUND_API std::string norm_plan_text(const std::string& op, std::int64_t rows, std::int64_t cols,
                                        DType dtype, int compute, int multiprocessors);

}  // namespace membound
