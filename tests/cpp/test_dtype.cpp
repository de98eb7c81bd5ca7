// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "core/numeric.hpp"
#include "membound/dtype.hpp"

using namespace membound;

TEST_CASE("dtype: sizes and names") {
  for (int i = 0; i <= static_cast<int>(DType::kComplex128); ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(dtype_size(dtype) >= 1);
    CHECK(std::string(dtype_name(dtype)) != "unknown");
  }
  CHECK(dtype_size(DType::kBFloat16) == 2);
  CHECK(dtype_size(DType::kFloat64) == 8);
  CHECK(std::string(dtype_name(DType::kFloat16)) == "float16");
  CHECK(std::string(dtype_name(static_cast<DType>(200))) == "unknown");
}

TEST_CASE("dtype: what ops compute on, and in what they sum") {
  CHECK(is_floating(DType::kFloat16));
  CHECK(is_floating(DType::kFloat64));
  CHECK_FALSE(is_floating(DType::kFloat8E4M3));
  CHECK_FALSE(is_floating(DType::kInt32));
  CHECK(accumulate_dtype(DType::kBFloat16) == DType::kFloat32);
  CHECK(accumulate_dtype(DType::kFloat64) == DType::kFloat64);
  CHECK(kDTypeOf<BFloat16> == DType::kBFloat16);
  CHECK(kDTypeOf<accumulate_t<Float16>> == DType::kFloat32);
}
