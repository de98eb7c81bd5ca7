// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

namespace membound::cpu {

using RangeFunction = void (*)(void* context, std::int64_t first, std::int64_t last);
// Runs function over [0, count) in at most `parts` contiguous ranges in parallel.
void run_in_parts(std::int64_t count, std::int64_t parts, RangeFunction function, void* context);

// Calls body(first, last) over [0, count), on several threads if each gets at least `grain` items;
// the serial case never touches the pool. body must not throw, and its results must not depend on
// how the range is split.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
  if (count < 2 * grain) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
  using Plain = std::remove_reference_t<Body>;
  run_in_parts(
      count, count / grain,
      [](void* context, std::int64_t first, std::int64_t last) {
        (*static_cast<Plain*>(context))(first, last);
      },
      &body);
}

}  // namespace membound::cpu
