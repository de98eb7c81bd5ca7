// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "membound/device.hpp"
#include "membound/tensor_view.hpp"

// Arrays for tests: any dtype, any strides, values as double. The conversions are simple and
// independent of the library's.
namespace membound_test {

using namespace membound;

// Precision in bits, and the exponent of the smallest normal number.
struct Format {
  int precision;
  int lowest;
  double largest;
};
inline Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return {11, -14, 65504.0};
    case DType::kBFloat16: return {8, -126, 0x1.fep127};
    case DType::kFloat32: return {24, -126, 0x1.fffffep127};
    default: return {53, -1022, 0x1.fffffffffffffp1023};
  }
}

// The ulp of a value.
inline double ulp(double value, DType dtype) {
  const Format format = format_of(dtype);
  const int exponent = value == 0 ? format.lowest : std::max(std::ilogb(value), format.lowest);
  return std::ldexp(1.0, std::max(exponent - format.precision + 1, -1074));
}

// To the nearest value of the dtype, ties to even.
inline double rounded(double value, DType dtype) {
  if (!std::isfinite(value) || value == 0 || dtype == DType::kFloat64) return value;
  const double unit = ulp(value, dtype);
  const double result = std::nearbyint(value / unit) * unit;
  return std::abs(result) > format_of(dtype).largest ? std::copysign(INFINITY, value) : result;
}

inline void encode(double value, DType dtype, char* to) {
  value = rounded(value, dtype);
  if (dtype == DType::kFloat64) {
    std::memcpy(to, &value, 8);
    return;
  }
  const float single = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &single, 4);
  std::uint16_t half = static_cast<std::uint16_t>(bits >> 16);
  if (dtype == DType::kFloat32) {
    std::memcpy(to, &bits, 4);
    return;
  }
  if (dtype == DType::kFloat16) {
    const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const double magnitude = std::abs(value);
    if (std::isnan(value)) {
      half = 0x7e00;
    } else if (std::isinf(value)) {
      half = 0x7c00;
    } else if (magnitude < 0x1p-14) {
      half = static_cast<std::uint16_t>(magnitude * 0x1p24);
    } else {
      const int exponent = std::ilogb(magnitude);
      half = static_cast<std::uint16_t>(
          ((exponent + 15) << 10) +
          static_cast<int>((std::ldexp(magnitude, -exponent) - 1) * 1024));
    }
    half |= sign;
  }
  std::memcpy(to, &half, 2);
}

inline double decode(const char* from, DType dtype) {
  if (dtype == DType::kFloat64) {
    double value;
    std::memcpy(&value, from, 8);
    return value;
  }
  std::uint32_t bits = 0;
  if (dtype == DType::kFloat16) {
    std::uint16_t half;
    std::memcpy(&half, from, 2);
    const int exponent = half >> 10 & 31;
    const double fraction = half & 1023;
    double value = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                   : exponent == 0 ? std::ldexp(fraction, -24)
                                   : std::ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -value : value;
  }
  std::memcpy(reinterpret_cast<char*>(&bits) + (dtype == DType::kBFloat16 ? 2 : 0), from,
              dtype == DType::kBFloat16 ? 2 : 4);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Storage that starts `lead` elements after a 64-byte boundary, and a view of it.
class Array {
 public:
  using Extents = std::vector<std::int64_t>;

  Array(DType dtype, Extents shape, Extents strides, std::int64_t lead = 0)
      : dtype_(dtype),
        element_(static_cast<std::int64_t>(dtype_size(dtype))),
        shape_(std::move(shape)),
        strides_(std::move(strides)),
        contiguous_(strides_ == contiguous(shape_)) {
    for (std::int64_t extent : shape_) size_ *= extent;
    if (size_ > UINT32_MAX) throw std::length_error("an array of a test has at most 2^32 elements");
    std::int64_t low = 0, high = 0;
    for (std::size_t axis = 0; axis < shape_.size(); ++axis) {
      const std::int64_t reach = (shape_[axis] - 1) * strides_[axis];
      (reach < 0 ? low : high) += reach;
    }
    // The storage has no spare bytes, so that the sanitizer detects any access beyond it.
    bytes_ = static_cast<std::size_t>((lead + high - low + 1) * element_);
    block_ = static_cast<char*>(::operator new(bytes_, std::align_val_t{64}));
    std::memset(block_, 0x5a, bytes_);
    first_ = block_ + (lead - low) * element_;
  }
  Array(DType dtype, Extents shape) : Array(dtype, shape, contiguous(shape)) {}
  ~Array() { ::operator delete(block_, std::align_val_t{64}); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  static Extents contiguous(const Extents& shape) {
    Extents strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) strides[axis] = stride;
    return strides;
  }

  std::int64_t size() const { return size_; }
  // Element `index` in C order of the shape. A 32-bit division takes a third of a 64-bit one.
  char* at(std::int64_t index) const {
    if (contiguous_) return first_ + index * element_;
    auto rest = static_cast<std::uint32_t>(index);
    std::int64_t offset = 0;
    for (std::size_t axis = shape_.size(); axis-- > 0;) {
      const auto extent = static_cast<std::uint32_t>(shape_[axis]);
      offset += rest % extent * strides_[axis];
      rest /= extent;
    }
    return first_ + offset * element_;
  }
  double get(std::int64_t index) const { return decode(at(index), dtype_); }
  void set(std::int64_t index, double value) { encode(value, dtype_, at(index)); }

  TensorView view() const {
    TensorView view(first_, dtype_, Device::cpu(), {});
    view.rank = static_cast<std::int32_t>(shape_.size());
    std::copy(shape_.begin(), shape_.end(), view.shape);
    std::copy(strides_.begin(), strides_.end(), view.strides);
    return view;
  }
  DType dtype() const { return dtype_; }
  const Extents& shape() const { return shape_; }

  void fill_normal(std::uint32_t seed, double scale = 1.0) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < size(); ++i) set(i, normal(engine) * scale);
  }
  void copy_from(const Array& other) {
    const std::int64_t step = together(other);
    for (std::int64_t i = 0; i < size_; i += step) {
      std::memcpy(at(i), other.at(i), static_cast<std::size_t>(step * element_));
    }
  }
  // Index of the first element whose bits differ, or -1.
  std::int64_t first_difference(const Array& other) const {
    const auto differ = [&](std::int64_t i, std::int64_t count) {
      return std::memcmp(at(i), other.at(i), static_cast<std::size_t>(count * element_)) != 0;
    };
    const std::int64_t step = together(other);
    for (std::int64_t i = 0; i < size_; i += step) {
      if (!differ(i, step)) continue;
      while (!differ(i, 1)) ++i;
      return i;
    }
    return -1;
  }

 private:
  // How many elements are contiguous in both: those of a row, or one.
  std::int64_t together(const Array& other) const {
    const bool rows = !shape_.empty() && !other.shape_.empty() &&
                      shape_.back() == other.shape_.back() && strides_.back() == 1 &&
                      other.strides_.back() == 1;
    return rows ? std::max<std::int64_t>(shape_.back(), 1) : 1;
  }

  DType dtype_;
  std::int64_t element_;
  Extents shape_, strides_;
  bool contiguous_;
  std::int64_t size_ = 1;
  std::size_t bytes_ = 0;
  char* block_ = nullptr;
  char* first_ = nullptr;
};

inline constexpr DType kFloating[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                      DType::kFloat64};

// Every test prints its seed when it fails; MEMBOUND_TEST_SEED repeats a run.
inline std::uint32_t test_seed() {
  const char* text = std::getenv("MEMBOUND_TEST_SEED");
  return text != nullptr ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)) : 20240607u;
}

}  // namespace membound_test
