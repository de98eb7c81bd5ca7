// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "core/dispatch.hpp"
#include "cpu/parallel.hpp"
#include "ops/array/problems.hpp"

namespace membound::cpu {

namespace {

// How many elements are less than each limit, or, with kRight, less or equal. Each step halves
// those that are left, without a jump that would be mispredicted; limits do not wait for another.
template <bool kRight, int kLimits, class T>
void count_below(const T* sorted, std::int64_t length, const T* limits, std::int64_t* counts) {
  std::int64_t first[kLimits] = {};
  const auto advance = [&](std::int64_t at, std::int64_t step) {
    for (int k = 0; k < kLimits; ++k) {
      const T element = sorted[first[k] + at];
      first[k] += step & -std::int64_t{kRight ? element <= limits[k] : element < limits[k]};
    }
  };
  for (; length > 1; length -= length / 2) advance(length / 2 - 1, length / 2);
  if (length == 1) advance(0, 1);
  std::copy_n(first, kLimits, counts);
}

template <bool kRight, class T>
void search(const ArraySearch& problem) {
  const T* const sorted = static_cast<const T*>(problem.sorted);
  const T* const wanted = static_cast<const T*>(problem.wanted);
  const std::int64_t length = problem.length;
  std::int64_t* const places = problem.places;
  constexpr std::int64_t kElementsPerPart = 4 << 10, kLimits = 8;
  parallel_for(problem.count, kElementsPerPart, [&](std::int64_t first, std::int64_t last) {
    std::int64_t at = first;
    for (; at + kLimits <= last; at += kLimits)
      count_below<kRight, kLimits>(sorted, length, wanted + at, places + at);
    for (; at < last; ++at) count_below<kRight, 1>(sorted, length, wanted + at, places + at);
    for (at = first; at < last; ++at) {
      if (wanted[at] == wanted[at]) continue;
      places[at] = length;  // NaNs are last
      constexpr T kInfinity = std::numeric_limits<T>::infinity();
      if (!kRight) count_below<true, 1>(sorted, length, &kInfinity, places + at);
    }
  });
}

}  // namespace

void array_search(const ArraySearch& problem) {
  dispatch_plain(problem.dtype, "searchsorted", [&]<class T>() {
    problem.right ? search<true, T>(problem) : search<false, T>(problem);
  });
}

}  // namespace membound::cpu
