// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/vec.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class T>
struct TypeTag {
  using type = T;
};

// Calls body(TypeTag<T>{}) with the type of a dtype, but for 16-bit floats.
template <class Body>
MEMBOUND_ALWAYS_INLINE void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kBool: return body(TypeTag<bool>{});
    case DType::kInt8: return body(TypeTag<std::int8_t>{});
    case DType::kInt16: return body(TypeTag<std::int16_t>{});
    case DType::kInt32: return body(TypeTag<std::int32_t>{});
    case DType::kInt64: return body(TypeTag<std::int64_t>{});
    case DType::kUInt8: return body(TypeTag<std::uint8_t>{});
    case DType::kUInt16: return body(TypeTag<std::uint16_t>{});
    case DType::kUInt32: return body(TypeTag<std::uint32_t>{});
    case DType::kUInt64: return body(TypeTag<std::uint64_t>{});
    case DType::kFloat32: return body(TypeTag<float>{});
    case DType::kFloat64: return body(TypeTag<double>{});
    default: return;
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
