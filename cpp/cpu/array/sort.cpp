// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/dispatch.hpp"
#include "core/numeric.hpp"
#include "cpu/array/strided.hpp"
#include "cpu/parallel.hpp"
#include "membound/device.hpp"
#include "membound/device_buffer.hpp"

// A radix sort of unsigned keys, a digit at a time from the lowest: stable, in time proportional to
// the length. Values become keys of the same order, and back.
namespace membound::cpu {

namespace {

template <class T>
struct KeyOf {
  using type = std::make_unsigned_t<T>;
};
template <>
struct KeyOf<bool> {
  using type = std::uint8_t;
};
template <>
struct KeyOf<Float16> {
  using type = std::uint16_t;
};
template <>
struct KeyOf<BFloat16> {
  using type = std::uint16_t;
};
template <>
struct KeyOf<float> {
  using type = std::uint32_t;
};
template <>
struct KeyOf<double> {
  using type = std::uint64_t;
};

template <class T>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
// The bits of infinity: beyond them, without the sign, are NaNs.
template <class T>
constexpr typename KeyOf<T>::type infinity_bits() {
  if constexpr (std::is_same_v<T, Float16>) return 0x7c00;
  if constexpr (std::is_same_v<T, BFloat16>) return 0x7f80;
  if constexpr (std::is_same_v<T, float>) return 0x7f800000;
  if constexpr (std::is_same_v<T, double>) return 0x7ff0000000000000;
  return 0;
}

template <class T>
struct Order {
  using Key = typename KeyOf<T>::type;
  static constexpr Key kSign = static_cast<Key>(Key{1} << (8 * sizeof(Key) - 1));
  static constexpr Key kLast = static_cast<Key>(~Key{0});

  // Of equal rank for zeros of both signs if `merges_zeros`. NaNs are last.
  static Key key(Key bits, bool descending, bool merges_zeros) {
    if constexpr (kIsFloat<T>) {
      const Key magnitude = bits & static_cast<Key>(~kSign);
      if (magnitude > infinity_bits<T>()) return kLast;
      if (magnitude == 0 && merges_zeros) bits = 0;
      const Key rank = static_cast<Key>((bits & kSign) != 0 ? ~bits : bits | kSign);
      return descending ? static_cast<Key>(~rank) : rank;
    } else {
      const Key rank = std::is_signed_v<T> ? static_cast<Key>(bits ^ kSign) : bits;
      return descending ? static_cast<Key>(~rank) : rank;
    }
  }
  static Key bits(Key key, bool descending) {
    if constexpr (kIsFloat<T>) {
      if (key == kLast) return static_cast<Key>(infinity_bits<T>() | infinity_bits<T>() >> 1);
      const Key rank = descending ? static_cast<Key>(~key) : key;
      return static_cast<Key>((rank & kSign) != 0 ? rank & static_cast<Key>(~kSign) : ~rank);
    } else {
      const Key rank = descending ? static_cast<Key>(~key) : key;
      return std::is_signed_v<T> ? static_cast<Key>(rank ^ kSign) : rank;
    }
  }
};

// Room for one row being sorted: keys twice, and indices twice where they are wanted.
template <class Key>
struct Scratch {
  Key* keys[2];
  std::int64_t* indices[2];
};

template <class Key>
void sort_few(Key* keys, std::int64_t* indices, std::int64_t length) {
  for (std::int64_t at = 1; at < length; ++at) {
    const Key key = keys[at];
    const std::int64_t index = indices != nullptr ? indices[at] : 0;
    std::int64_t to = at;
    for (; to > 0 && keys[to - 1] > key; --to) {
      keys[to] = keys[to - 1];
      if (indices != nullptr) indices[to] = indices[to - 1];
    }
    keys[to] = key;
    if (indices != nullptr) indices[to] = index;
  }
}

// Leaves the result in the first keys and indices. Digits have kBits; Count holds the length.
template <int kBits, class Count, bool kIndexed, class Key>
void sort_by_digits(Scratch<Key>& scratch, std::int64_t length) {
  constexpr int kDigits = (8 * static_cast<int>(sizeof(Key)) + kBits - 1) / kBits;
  constexpr std::size_t kValues = std::size_t{1} << kBits;
  const auto digit_of = [](Key key, int digit) {
    return static_cast<std::size_t>(key >> kBits * digit) & (kValues - 1);
  };
  Count counts[kDigits][kValues] = {};
  for (std::int64_t at = 0; at < length; ++at) {
    const Key key = scratch.keys[0][at];
    for (int digit = 0; digit < kDigits; ++digit) ++counts[digit][digit_of(key, digit)];
  }
  for (int digit = 0; digit < kDigits; ++digit) {
    Count* starts = counts[digit];
    const Key* keys = scratch.keys[0];
    const std::int64_t* indices = scratch.indices[0];
    if (starts[digit_of(keys[0], digit)] == static_cast<Count>(length)) continue;  // all the same
    Count sum = 0;
    for (std::size_t value = 0; value < kValues; ++value) sum += std::exchange(starts[value], sum);
    for (std::int64_t at = 0; at < length; ++at) {
      const Key key = keys[at];
      const Count to = starts[digit_of(key, digit)]++;
      scratch.keys[1][to] = key;
      if constexpr (kIndexed) scratch.indices[1][to] = indices[at];
    }
    std::swap(scratch.keys[0], scratch.keys[1]);
    std::swap(scratch.indices[0], scratch.indices[1]);
  }
}

// Wide digits take fewer passes over the keys, and longer over their table.
template <bool kIndexed, class Key>
void sort_keys(Scratch<Key>& scratch, std::int64_t length) {
  constexpr std::int64_t kFew = 48, kMany = 8192;
  if (length <= kFew) return sort_few(scratch.keys[0], scratch.indices[0], length);
  if (length < kMany || length > std::int64_t{UINT32_MAX} || sizeof(Key) < 4)
    return sort_by_digits<8, std::int64_t, kIndexed>(scratch, length);
  sort_by_digits<11, std::uint32_t, kIndexed>(scratch, length);
}

template <class T>
void sort_row(typename KeyOf<T>::type* values, std::int64_t* result, std::int64_t length,
              bool descending, Scratch<typename KeyOf<T>::type> scratch) {
  const bool is_argsort = result != nullptr;
  for (std::int64_t at = 0; at < length; ++at) {
    scratch.keys[0][at] = Order<T>::key(values[at], descending, is_argsort);
    if (is_argsort) scratch.indices[0][at] = at;
  }
  is_argsort ? sort_keys<true>(scratch, length) : sort_keys<false>(scratch, length);
  if (is_argsort) {
    std::copy_n(scratch.indices[0], length, result);
  } else {
    for (std::int64_t at = 0; at < length; ++at)
      values[at] = Order<T>::bits(scratch.keys[0][at], descending);
  }
}

template <class T>
void sort_rows(const ArraySort& problem) {
  using Key = typename KeyOf<T>::type;
  const bool is_argsort = problem.indices != nullptr;
  const std::int64_t length = problem.length;
  constexpr std::int64_t kElementsPerTask = 8 << 10;
  const std::int64_t most = std::max<std::int64_t>(problem.rows * length / kElementsPerTask, 1);
  const std::int64_t tasks = std::min({problem.rows, most, std::int64_t{cpu_threads()}});
  const std::int64_t index_bytes = is_argsort ? 16 * length : 0;
  const std::int64_t key_bytes = (2 * length * std::int64_t{sizeof(Key)} + 7) / 8 * 8;
  const DeviceBuffer memory(static_cast<std::size_t>(tasks * (index_bytes + key_bytes)),
                            Device::cpu());
  parallel_for(tasks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      char* area = memory.as<char>() + task * (index_bytes + key_bytes);
      auto* indices = reinterpret_cast<std::int64_t*>(area);
      auto* keys = reinterpret_cast<Key*>(area + index_bytes);
      const Scratch<Key> scratch{
          {keys, keys + length},
          {is_argsort ? indices : nullptr, is_argsort ? indices + length : nullptr}};
      for (std::int64_t row = problem.rows * task / tasks; row < problem.rows * (task + 1) / tasks;
           ++row) {
        sort_row<T>(static_cast<Key*>(problem.values) + row * length,
                    is_argsort ? problem.indices + row * length : nullptr, length,
                    problem.descending, scratch);
      }
    }
  });
}

}  // namespace

void array_sort(const ArraySort& problem) {
  if (problem.dtype == DType::kFloat16) return sort_rows<Float16>(problem);
  if (problem.dtype == DType::kBFloat16) return sort_rows<BFloat16>(problem);
  dispatch_plain(problem.dtype, "sort", [&]<class T>() { sort_rows<T>(problem); });
}

}  // namespace membound::cpu
