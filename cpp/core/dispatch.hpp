// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/numeric.hpp"

namespace membound {

[[noreturn]] void fail_not_floating(DType dtype, const char* op);

// The only switch from a run-time dtype to a type: calls body.operator()<T>() with the storage
// type.
template <class Body>
decltype(auto) dispatch_floating(DType dtype, const char* op, Body&& body) {
  switch (dtype) {
    case DType::kFloat16: return body.template operator()<Float16>();
    case DType::kBFloat16: return body.template operator()<BFloat16>();
    case DType::kFloat32: return body.template operator()<float>();
    case DType::kFloat64: return body.template operator()<double>();
    default: fail_not_floating(dtype, op);
  }
}

}  // namespace membound
