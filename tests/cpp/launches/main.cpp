// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "recorder.hpp"

// A run of all cases also requires that each kernel was launched: an unreachable kernel must not
// ship.
int main(int argc, char** argv) {
  const int result = doctest::Context(argc, argv).run();
  if (argc > 1 || result != 0) return result;
  const auto never = membound_test::never_launched();
  for (const std::string& name : never) std::printf("never launched: %s\n", name.c_str());
  std::printf("%lld launches\n", static_cast<long long>(membound_test::launches()));
  return never.empty() ? 0 : 1;
}
