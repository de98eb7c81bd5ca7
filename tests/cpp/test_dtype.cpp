// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "membound/dtype.hpp"

using namespace membound;

TEST_CASE("dtype: sizes and names") {
  CHECK(dtype_size(DType::kFloat16) == 2);
  CHECK(dtype_size(DType::kComplex128) == 16);
  CHECK(std::string(dtype_name(DType::kBFloat16)) == "bfloat16");
}
