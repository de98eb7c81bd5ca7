// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include "arrays.hpp"

namespace membound_test {

// Values on both sides of every threshold of the tuning, and between thresholds.
inline constexpr std::int64_t kRows[] = {1,    2,    8,    64,    200,    264,
                                         1000, 2048, 8192, 65536, 524288, std::int64_t{1} << 33};
inline constexpr std::int64_t kCols[] = {
    1,     8,     17,    64,    96,    127,   128,    256,    257,    300,    384,    512,    640,
    768,   1000,  1024,  1025,  1280,  1536,  2048,   2304,   2560,   3072,   4095,   4096,   4097,
    5000,  5120,  6144,  8192,  8193,  10240, 10241,  12288,  16000,  16384,  16385,  20480,  24577,
    32768, 32769, 49152, 65536, 65537, 98304, 131072, 131073, 262144, 262145, 600000, 1 << 21};

inline void look_for_faults() {
  for (const std::string& fault : take_faults()) FAIL_CHECK(fault);
}

}  // namespace membound_test
