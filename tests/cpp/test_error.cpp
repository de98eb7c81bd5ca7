// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "core/check.hpp"
#include "membound/error.hpp"

using namespace membound;

TEST_CASE("error: every type is an Error and a std::runtime_error") {
  CHECK_THROWS_AS(throw InvalidArgument("a"), Error);
  CHECK_THROWS_AS(throw TypeMismatch("a"), Error);
  CHECK_THROWS_AS(throw OutOfMemory("a"), std::runtime_error);
  const CudaError error(100, "cudaErrorNoDevice", "rms_norm: no device");
  CHECK(error.code() == 100);
  CHECK(error.name() == "cudaErrorNoDevice");
  CHECK(std::string(error.what()) == "rms_norm: no device");
}

TEST_CASE("error: a failed check names the op and streams its parts") {
  const int got = 3;
  CHECK_NOTHROW([&] { MEMBOUND_CHECK(got == 3, InvalidArgument, "op", "unseen"); }());
  CHECK_THROWS_WITH_AS(
      [&] { MEMBOUND_CHECK(got == 2, InvalidArgument, "op", "expected ", 2, ", got ", got); }(),
      "op: expected 2, got 3", InvalidArgument);
}
