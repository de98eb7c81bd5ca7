// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "membound/device.hpp"

// CTest treats exit code 77 as "skipped": this CPU lacks the instruction set of MEMBOUND_CPU_ISA.
int main(int argc, char** argv) {
  try {
    membound::cpu_isa();
  } catch (const std::exception& error) {
    std::printf("skipped: %s\n", error.what());
    return std::getenv("MEMBOUND_TEST_SKIP_ISA") != nullptr ? 77 : 1;
  }
  return doctest::Context(argc, argv).run();
}
