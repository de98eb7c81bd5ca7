// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "array.hpp"
#include "core/array/functors.hpp"
#include "membound/device_buffer.hpp"
#include "ops/array/problems.hpp"

// Problems of the CUDA back end of arrays: memory on host and GPU, and how results are compared.
namespace membound_test {

using Extents = std::vector<std::int64_t>;

inline constexpr DType kArrayDTypes[] = {
    DType::kBool,     DType::kInt8,    DType::kInt16,  DType::kInt32,  DType::kInt64,
    DType::kUInt8,    DType::kUInt16,  DType::kUInt32, DType::kUInt64, DType::kFloat16,
    DType::kBFloat16, DType::kFloat32, DType::kFloat64};

inline bool no_gpu() {
  if (cuda_status().device_count > 0) return false;
  MESSAGE("skipped: " << cuda_status().message);
  return true;
}

// The name for messages: doctest prints a char* as a pointer.
inline std::string name_of(DType dtype) { return dtype_name(dtype); }

// Body.operator()<A>() with the type that values of a dtype are computed in.
template <class Body>
void with_arithmetic(DType dtype, Body&& body) {
  if (dtype == DType::kFloat64) return body.template operator()<double>();
  if (is_floating(dtype)) return body.template operator()<float>();
  if (dtype == DType::kBool) return body.template operator()<bool>();
  if (dtype == DType::kInt64) return body.template operator()<std::int64_t>();
  if (dtype == DType::kUInt64) return body.template operator()<std::uint64_t>();
  const bool is_signed = dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32;
  if (is_signed) return body.template operator()<std::int32_t>();
  body.template operator()<std::uint32_t>();
}

template <class A>
A read_item(const char* from, DType dtype) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    return static_cast<A>(value);
  };
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8: return as(std::uint8_t{});
    case DType::kInt8: return as(std::int8_t{});
    case DType::kInt16: return as(std::int16_t{});
    case DType::kInt32: return as(std::int32_t{});
    case DType::kInt64: return as(std::int64_t{});
    case DType::kUInt16: return as(std::uint16_t{});
    case DType::kUInt32: return as(std::uint32_t{});
    case DType::kUInt64: return as(std::uint64_t{});
    default: return static_cast<A>(decode(from, dtype));
  }
}
template <class A>
void write_item(char* to, DType dtype, A value) {
  if (is_floating(dtype)) return encode(static_cast<double>(value), dtype, to);
  if (dtype == DType::kBool) {
    *to = value != A(0);
    return;
  }
  const auto bits = static_cast<std::uint64_t>(value);  // wraps
  std::memcpy(to, &bits, dtype_size(dtype));
}

// A strided array on the GPU, its bytes once more on the host.
class GpuArray {
 public:
  GpuArray(DType dtype, Extents shape, Extents strides, std::int64_t lead, StreamView stream)
      : dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)), stream_(stream) {
    std::int64_t low = lead, high = lead;
    for (std::size_t axis = 0; axis < shape_.size(); ++axis) {
      size_ *= shape_[axis];
      const std::int64_t reach = (shape_[axis] - 1) * strides_[axis];
      (reach < 0 ? low : high) += reach;
    }
    first_ = lead - (low - lead);
    const auto item = dtype_size(dtype);
    host_.assign(static_cast<std::size_t>(high - low + lead + 1) * item, 0);
    device_ = DeviceBuffer(host_.size(), Device::cuda(0), stream);
  }
  GpuArray(DType dtype, const Extents& shape, StreamView stream)
      : GpuArray(dtype, shape, Array::contiguous(shape), 0, stream) {}

  std::int64_t size() const { return size_; }
  DType dtype() const { return dtype_; }
  const Extents& shape() const { return shape_; }
  char* at(std::int64_t index) {
    std::int64_t offset = first_;
    for (std::size_t axis = shape_.size(); axis-- > 0;) {
      offset += index % shape_[axis] * strides_[axis];
      index /= shape_[axis];
    }
    return host_.data() + offset * static_cast<std::int64_t>(dtype_size(dtype_));
  }
  template <class A>
  A get(std::int64_t index) {
    return read_item<A>(at(index), dtype_);
  }
  template <class A>
  void set(std::int64_t index, A value) {
    write_item(at(index), dtype_, value);
  }
  // Small numbers of either sign, where the dtype has signs; floats with fractions.
  void fill(std::uint32_t seed) {
    std::mt19937 engine(seed);
    for (std::int64_t i = 0; i < size_; ++i) {
      const int number = static_cast<int>(engine() % 19) - 9;
      if (is_floating(dtype_)) {
        set(i, number * 0.375);
      } else {
        set(i, static_cast<std::int64_t>(number));
      }
    }
    upload();
  }
  void upload() {
    copy_bytes(device_.data(), Device::cuda(0), host_.data(), Device::cpu(), host_.size(), stream_);
    stream_.synchronize();
  }
  void download() {
    copy_bytes(host_.data(), Device::cpu(), device_.data(), Device::cuda(0), host_.size(), stream_);
    stream_.synchronize();
  }
  void* data() const {
    return device_.as<char>() + first_ * static_cast<std::int64_t>(dtype_size(dtype_));
  }
  // The operand over dimensions axis, axis + 1 ... of the array.
  ArrayOperand operand(std::size_t axis = 0) const {
    ArrayOperand operand;
    operand.data = data();
    operand.dtype = dtype_;
    std::copy(strides_.begin() + static_cast<std::ptrdiff_t>(axis), strides_.end(),
              operand.strides);
    return operand;
  }
  const Extents& strides() const { return strides_; }

 private:
  DType dtype_;
  Extents shape_, strides_;
  StreamView stream_;
  std::int64_t size_ = 1, first_ = 0;
  std::vector<char> host_;
  DeviceBuffer device_;
};

inline ArrayDims dims_of(const Extents& shape) {
  ArrayDims dims;
  dims.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.shape);
  return dims;
}

// The relative error of one rounding and of a function that is a little off, or cancels a little.
inline double tolerance(DType dtype) {
  if (!is_floating(dtype)) return 0;
  return dtype == DType::kFloat64 ? 1e-13 : 2 * std::ldexp(1.0, 2 - format_of(dtype).precision);
}

// `got` beside what was wanted, both as numbers; exact for integers.
template <class A>
bool is_near(A got, A wanted, double relative) {
  if (got == wanted) return true;
  const auto g = static_cast<double>(got), w = static_cast<double>(wanted);
  if (std::isnan(g) || std::isnan(w)) return std::isnan(g) && std::isnan(w);
  return std::abs(g - w) <= relative * std::abs(w);
}

}  // namespace membound_test
