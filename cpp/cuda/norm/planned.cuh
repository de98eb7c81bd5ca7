// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/dispatch.hpp"

namespace membound::cuda {

// The table of a unit's kernels: calls body.operator()<T, variant, kernel>() for the plan's.
template <auto kUnit, const auto& kVariants, class Plan, class Body>
void launch_planned(const Plan& plan, DType dtype, const char* op, Body body) {
  using Kernel = decltype(plan.kernel);
  constexpr int kKernels = static_cast<int>(Kernel::kCount);
  constexpr int kAll = kKernels * static_cast<int>(std::size(kVariants));
  const auto try_kernel = [&]<class T, int kAt>() {
    constexpr auto kVariant = kVariants[kAt / kKernels];
    constexpr auto kKernel = static_cast<Kernel>(kAt % kKernels);
    if constexpr (unit_of(kKernel, kVariant) == kUnit && has_kernel(kKernel, kVariant, sizeof(T))) {
      if (plan.kernel != kKernel || plan.variant != kVariant) return false;
      body.template operator()<T, kVariant, kKernel>();
      return true;
    }
    return false;
  };
  dispatch_floating(dtype, op, [&]<class T>() {
    const auto try_all = [&]<int... kAt>(std::integer_sequence<int, kAt...>) {
      return (try_kernel.template operator()<T, kAt>() || ...);
    };
    if (!try_all(std::make_integer_sequence<int, kAll>()))
      throw std::logic_error(std::string(op) + ": the plan names a kernel that does not exist");
  });
}

}  // namespace membound::cuda
