// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/device_buffer.hpp"

namespace membound::cuda {

// A stable sort of 64-bit keys with the 32-bit places that they came from.
class RadixSort {
 public:
  RadixSort(std::int64_t count, const char* op, StreamView stream);

  // Before run() what is sorted, after it the result. run() may exchange the buffers.
  std::uint64_t* keys() const { return keys_[current_].as<std::uint64_t>(); }
  std::uint32_t* places() const { return places_[current_].as<std::uint32_t>(); }
  // Sorts by the lowest `bits` of the keys.
  void run(int bits);

 private:
  std::int64_t count_;
  StreamView stream_;
  int current_ = 0;
  DeviceBuffer keys_[2], places_[2];
};

}  // namespace membound::cuda
