// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "membound/device.hpp"
#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

// A number of any dtype: true, 3 or 0.5. As an operand of an array it takes the array's dtype.
struct Scalar {
  enum class Kind : std::uint8_t { kBool, kInteger, kUnsigned, kFloating };
  Kind kind;
  union {
    std::int64_t integer;   // kBool: 0 or 1
    std::uint64_t natural;  // kUnsigned: beyond int64
    double real;
  };

  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  constexpr Scalar(T value) noexcept : kind(Kind::kInteger), integer(0) {
    if constexpr (std::is_same_v<T, bool>) {
      kind = Kind::kBool;
      integer = value;
    } else if constexpr (std::is_floating_point_v<T>) {
      kind = Kind::kFloating;
      real = static_cast<double>(value);
    } else if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
      kind = Kind::kUnsigned;
      natural = value;
    } else {
      integer = static_cast<std::int64_t>(value);
    }
  }
};

// A range of an axis, as Python's slice: negative places count from the end, steps may be negative.
struct Slice {
  std::optional<std::int64_t> start, stop;
  std::int64_t step = 1;
};

// One place of an index: an integer, a Slice, newaxis or ellipsis.
struct Index {
  enum class Kind : std::uint8_t { kInteger, kSlice, kNewAxis, kEllipsis };
  Kind kind;
  std::int64_t integer = 0;
  Slice slice{};

  constexpr Index(std::int64_t place) noexcept : kind(Kind::kInteger), integer(place) {}
  constexpr Index(int place) noexcept : Index(std::int64_t{place}) {}
  constexpr Index(Slice range) noexcept : kind(Kind::kSlice), slice(range) {}
  constexpr Index(Kind kind_) noexcept : kind(kind_) {}
};
inline constexpr Index kNewAxis{Index::Kind::kNewAxis};
inline constexpr Index kEllipsis{Index::Kind::kEllipsis};

// Memory that arrays share; it knows how to free itself.
struct ArrayBuffer;

// An owning, typed, strided array on a device. Copying an NDArray shares its memory, and so do all
// functions below that say "view"; copies are named acts. Strides count elements and may be zero or
// negative. Work on a GPU is queued on the library's stream of that GPU (array_stream).
class MEMBOUND_API NDArray {
 public:
  using Dims = std::vector<std::int64_t>;

  NDArray();  // shape (0,), float32
  // Uninitialised, C-contiguous.
  static NDArray empty(Dims shape, DType dtype, Device device = Device::cpu());
  static NDArray full(Dims shape, Scalar value, DType dtype, Device device = Device::cpu());
  static NDArray zeros(Dims shape, DType dtype, Device device = Device::cpu());
  static NDArray ones(Dims shape, DType dtype, Device device = Device::cpu());
  // Memory of others; `owner` is kept as long as any view of it.
  static NDArray wrap(const TensorView& view, std::shared_ptr<void> owner, bool writable = true);
  // C-contiguous from values, copied.
  template <class T>
  static NDArray from(const T* values, Dims shape, Device device = Device::cpu());
  template <class T>
  static NDArray from(std::initializer_list<T> values, Device device = Device::cpu()) {
    return from(values.begin(), {static_cast<std::int64_t>(values.size())}, device);
  }

  DType dtype() const noexcept { return dtype_; }
  Device device() const noexcept { return device_; }
  int rank() const noexcept { return static_cast<int>(shape_.size()); }
  const Dims& shape() const noexcept { return shape_; }
  const Dims& strides() const noexcept { return strides_; }
  std::int64_t size() const noexcept;
  std::int64_t bytes() const noexcept {
    return size() * static_cast<std::int64_t>(dtype_size(dtype_));
  }
  std::int64_t offset() const noexcept { return offset_; }  // elements from the buffer's start
  void* data() const noexcept;                              // element 0; null if size is 0
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data());
  }
  bool writable() const noexcept;
  bool is_contiguous() const noexcept;  // in C order
  const std::shared_ptr<ArrayBuffer>& buffer() const noexcept { return buffer_; }
  // For the ops of membound.
  TensorView view() const;
  operator TensorView() const { return view(); }
  operator ConstTensorView() const { return view(); }

  // Views. One extent of reshape may be -1. reshape throws InvalidArgument where a copy would be
  // needed; array::reshape_copy makes it.
  NDArray reshape(Dims shape) const;
  bool can_reshape(const Dims& shape) const;
  NDArray permute_dims(const Dims& axes) const;
  NDArray matrix_transpose() const;  // of the last two axes
  NDArray moveaxis(int from, int to) const;
  NDArray index(const std::vector<Index>& places) const;
  NDArray index(std::initializer_list<Index> places) const {
    return index(std::vector<Index>(places));
  }
  NDArray slice(int axis, Slice range) const;
  NDArray broadcast_to(const Dims& shape) const;
  NDArray squeeze(const Dims& axes) const;
  NDArray expand_dims(int axis) const;
  NDArray flip(const Dims& axes) const;
  NDArray flip() const;
  NDArray diagonal(std::int64_t offset = 0) const;  // of the last two axes
  // Any geometry inside the buffer; offset counts elements from its start.
  NDArray as_strided(Dims shape, Dims strides, std::int64_t offset) const;

  // Copies.
  NDArray copy() const;                // C-contiguous
  NDArray contiguous() const;          // itself if it is C-contiguous
  NDArray astype(DType dtype) const;   // itself if it has that dtype
  NDArray to(Device device) const;     // itself if it is there; waits where it ends on the CPU
  Scalar item() const;                 // of one element; waits
  void assign(const NDArray& source);  // casts and broadcasts; overlapping memory is read first
  void fill(Scalar value);

 private:
  friend struct NDArrayAccess;
  NDArray(std::shared_ptr<ArrayBuffer> buffer, DType dtype, Device device, Dims shape, Dims strides,
          std::int64_t offset);
  NDArray with(Dims shape, Dims strides, std::int64_t offset) const;

  std::shared_ptr<ArrayBuffer> buffer_;
  DType dtype_ = DType::kFloat32;
  Device device_;
  std::int64_t offset_ = 0;
  Dims shape_, strides_;
};

// The stream on which arrays of a GPU work, one per GPU, non-blocking; on the CPU it is ignored.
MEMBOUND_API StreamView array_stream(Device device);

// The dtype of C++ numbers.
template <class T>
struct ArrayDType;
#define MEMBOUND_ARRAY_DTYPE(type_, dtype_)       \
  template <>                                     \
  struct ArrayDType<type_> {                      \
    static constexpr DType value = DType::dtype_; \
  };
MEMBOUND_ARRAY_DTYPE(bool, kBool)
MEMBOUND_ARRAY_DTYPE(std::int8_t, kInt8)
MEMBOUND_ARRAY_DTYPE(std::int16_t, kInt16)
MEMBOUND_ARRAY_DTYPE(std::int32_t, kInt32)
MEMBOUND_ARRAY_DTYPE(std::int64_t, kInt64)
MEMBOUND_ARRAY_DTYPE(std::uint8_t, kUInt8)
MEMBOUND_ARRAY_DTYPE(std::uint16_t, kUInt16)
MEMBOUND_ARRAY_DTYPE(std::uint32_t, kUInt32)
MEMBOUND_ARRAY_DTYPE(std::uint64_t, kUInt64)
MEMBOUND_ARRAY_DTYPE(float, kFloat32)
MEMBOUND_ARRAY_DTYPE(double, kFloat64)
#undef MEMBOUND_ARRAY_DTYPE

template <class T>
NDArray NDArray::from(const T* values, Dims shape, Device device) {
  auto source = std::shared_ptr<void>(const_cast<T*>(values), [](void*) {});
  TensorView flat(source.get(), ArrayDType<T>::value, Device::cpu(), {1});
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  flat.shape[0] = count;
  return wrap(flat, std::move(source), false).copy().reshape(std::move(shape)).to(device);
}

}  // namespace membound
