// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ndarray.hpp"

// Random numbers from Philox4x32-10: element i depends on seed, counter and i alone, so that they
// are the same on CPU and GPU. A call uses up random_blocks(size, ..) counts.
namespace membound::array {

struct RandomState {
  std::uint64_t seed = 0, counter = 0;
};
// How far a call moves the counter.
MEMBOUND_API std::uint64_t random_blocks(std::int64_t size, DType dtype);

// From low up to high, without it.
MEMBOUND_API NDArray random_uniform(RandomState state, NDArray::Dims shape, DType dtype,
                                    Device device = Device::cpu(), double low = 0, double high = 1);
MEMBOUND_API NDArray random_normal(RandomState state, NDArray::Dims shape, DType dtype,
                                   Device device = Device::cpu(), double mean = 0,
                                   double deviation = 1);
// Integers from lowest on; range 0 stands for 2^64.
MEMBOUND_API NDArray random_integers(RandomState state, NDArray::Dims shape, DType dtype,
                                     Device device, std::int64_t lowest, std::uint64_t range);
// 64 random bits, uint64.
MEMBOUND_API NDArray random_bits(RandomState state, NDArray::Dims shape,
                                 Device device = Device::cpu());

}  // namespace membound::array
