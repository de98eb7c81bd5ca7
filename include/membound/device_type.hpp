// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A device's kind and index, without the queries of device.hpp, for headers that every unit
// includes.
#include <cstdint>

namespace membound {

enum class DeviceKind : std::uint8_t {
  kCpu,
  kCuda,
  kCudaHost,  // page-locked host memory: ops treat it as the CPU, copies to a GPU are asynchronous
};

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::int32_t index = 0;

  static constexpr Device cpu() noexcept { return {DeviceKind::kCpu, 0}; }
  static constexpr Device cuda(std::int32_t index = 0) noexcept {
    return {DeviceKind::kCuda, index};
  }
  static constexpr Device cuda_host() noexcept { return {DeviceKind::kCudaHost, 0}; }

  constexpr bool is_cuda() const noexcept { return kind == DeviceKind::kCuda; }
  friend constexpr bool operator==(Device a, Device b) noexcept {
    return a.is_cuda() == b.is_cuda() && (!a.is_cuda() || a.index == b.index);
  }
  friend constexpr bool operator!=(Device a, Device b) noexcept { return !(a == b); }
};

}  // namespace membound
