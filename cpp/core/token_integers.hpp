// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"

namespace membound {

// An int32 or int64 array with one number per token.
struct TokenIntegers {
  const void* data;  // null: none
  bool wide;
  RowLayout tokens;

  // offset: from `tokens`.
  MEMBOUND_HOST_DEVICE std::int64_t at(std::int64_t offset) const {
    return wide ? static_cast<const std::int64_t*>(data)[offset]
                : static_cast<const std::int32_t*>(data)[offset];
  }
};

inline TokenIntegers token_integers(const ConstTensorView& view, const char* op,
                                    const char* argument) {
  return {view.data, view.dtype == DType::kInt64, row_layout(view, view.rank, op, argument)};
}

}  // namespace membound
