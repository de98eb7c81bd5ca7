// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>

#include "membound/error.hpp"

namespace membound {

// "rms_norm: argument 'out' ...": the parts are streamed one after the other.
template <class ErrorType, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << op << ": ";
  (text << ... << parts);
  throw ErrorType(text.str());
}

}  // namespace membound

// Reads as a sentence: what must hold, which exception, the op, what was expected and what came.
#define MEMBOUND_CHECK(condition, ErrorType, op, ...) \
  do {                                                \
    if (!(condition)) [[unlikely]]                    \
      ::membound::fail<ErrorType>((op), __VA_ARGS__); \
  } while (false)
