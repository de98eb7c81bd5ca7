// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "membound/device_buffer.hpp"
#include "membound/ndarray.hpp"

namespace membound {

struct ArrayBuffer {
  char* data = nullptr;
  std::size_t bytes = 0;
  bool writable = true;
  DeviceBuffer memory;          // ours, or
  std::shared_ptr<void> owner;  // what keeps the memory of others
};

}  // namespace membound
