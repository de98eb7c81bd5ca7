// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <type_traits>

#include "membound/error.hpp"

namespace membound {

// Formats like a stream. <sstream> would cost a quarter of the compile time of a unit without
// kernels.
template <class Part>
void append_part(std::string& text, const Part& part) {
  if constexpr (std::is_floating_point_v<Part>) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%g", static_cast<double>(part));
    text += digits;
  } else if constexpr (std::is_integral_v<Part> && !std::is_same_v<Part, char>) {
    text += std::to_string(part);
  } else {
    text += part;
  }
}

// Throws with the text "op: ", followed by the parts.
template <class ErrorType, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const char* op, const Parts&... parts) {
  std::string text = op;
  text += ": ";
  (append_part(text, parts), ...);
  throw ErrorType(text);
}

}  // namespace membound

// Checks an argument: the condition that must hold, the exception, the op, what was expected and
// what was given.
#define MEMBOUND_CHECK(condition, ErrorType, op, ...) \
  do {                                                \
    if (!(condition)) [[unlikely]]                    \
      ::membound::fail<ErrorType>((op), __VA_ARGS__); \
  } while (false)
