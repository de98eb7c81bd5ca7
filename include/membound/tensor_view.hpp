// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

#include "membound/device_type.hpp"
#include "membound/dtype.hpp"

namespace membound {

// The most axes a view can have (NumPy and torch stop at 64).
inline constexpr int kMaxRank = 64;

// A strided array owned by somebody else. Strides count elements and may be zero or negative.
// Pointer is void* (TensorView, for outputs) or const void* (ConstTensorView, for inputs).
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::kFloat32;
  Device device;
  std::int32_t rank = 0;
  std::int64_t shape[kMaxRank];
  std::int64_t strides[kMaxRank];

  BasicTensorView() noexcept {}  // shape and strides stay unset beyond rank
  // A C-contiguous array. Axes past kMaxRank are not taken: rank becomes kMaxRank + 1, which every
  // op refuses.
  BasicTensorView(Pointer data_, DType dtype_, Device device_,
                  std::initializer_list<std::int64_t> shape_) noexcept
      : data(data_), dtype(dtype_), device(device_) {
    if (shape_.size() > kMaxRank) {
      rank = kMaxRank + 1;
      return;
    }
    for (std::int64_t extent : shape_) shape[rank++] = extent;
    std::int64_t stride = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      strides[axis] = stride;
      stride *= shape[axis];
    }
  }
  // The same view from another pointer type: TensorView -> ConstTensorView.
  template <class Other>
  BasicTensorView(const BasicTensorView<Other>& other) noexcept {
    assign(other);
  }
  BasicTensorView(const BasicTensorView& other) noexcept { assign(other); }
  BasicTensorView& operator=(const BasicTensorView& other) noexcept {
    assign(other);
    return *this;
  }

  std::int64_t size() const noexcept {
    std::int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= shape[axis];
    return count;
  }

 private:
  // Copies only the axes in use: a view is a kilobyte, of which a matrix needs four numbers.
  template <class Other>
  void assign(const BasicTensorView<Other>& other) noexcept {
    data = other.data;
    dtype = other.dtype;
    device = other.device;
    rank = other.rank;
    for (int axis = 0; axis < rank && axis < kMaxRank; ++axis) {
      shape[axis] = other.shape[axis];
      strides[axis] = other.strides[axis];
    }
  }
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

}  // namespace membound
