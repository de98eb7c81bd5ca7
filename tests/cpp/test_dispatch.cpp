// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "core/dispatch.hpp"
#include "membound/error.hpp"

using namespace membound;

TEST_CASE("dispatch: every floating dtype reaches its storage type, the rest an error") {
  for (int i = 0; i <= static_cast<int>(DType::kComplex128); ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto which = [&] {
      return dispatch_floating(dtype, "op", []<class T>() { return kDTypeOf<T>; });
    };
    if (is_floating(dtype)) {
      CHECK(which() == dtype);
    } else {
      CHECK_THROWS_AS(which(), TypeMismatch);
    }
  }
}
