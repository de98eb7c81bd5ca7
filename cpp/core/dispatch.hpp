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

// The same for bool, integers, float32 and float64.
template <class Body>
decltype(auto) dispatch_plain(DType dtype, const char* op, Body&& body) {
  switch (dtype) {
    case DType::kBool: return body.template operator()<bool>();
    case DType::kInt8: return body.template operator()<std::int8_t>();
    case DType::kInt16: return body.template operator()<std::int16_t>();
    case DType::kInt32: return body.template operator()<std::int32_t>();
    case DType::kInt64: return body.template operator()<std::int64_t>();
    case DType::kUInt8: return body.template operator()<std::uint8_t>();
    case DType::kUInt16: return body.template operator()<std::uint16_t>();
    case DType::kUInt32: return body.template operator()<std::uint32_t>();
    case DType::kUInt64: return body.template operator()<std::uint64_t>();
    case DType::kFloat32: return body.template operator()<float>();
    case DType::kFloat64: return body.template operator()<double>();
    default: fail_not_floating(dtype, op);
  }
}

}  // namespace membound
