// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/array/problems.hpp"

namespace membound::cpu {

// kArgMin and kArgMax of array_reduce.
void array_arg_reduce(const ArrayReduction& problem);

}  // namespace membound::cpu
