// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ndarray.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/array/buffer.hpp"
#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/layout.hpp"
#include "core/validate.hpp"
#include "membound/array/copy.hpp"

namespace membound {

using geometry::shape_text;

NDArray::NDArray() : shape_{0}, strides_{1} {}

NDArray::NDArray(std::shared_ptr<ArrayBuffer> buffer, DType dtype, Device device, Dims shape,
                 Dims strides, std::int64_t offset)
    : buffer_(std::move(buffer)),
      dtype_(dtype),
      device_(device),
      offset_(offset),
      shape_(std::move(shape)),
      strides_(std::move(strides)) {}

NDArray NDArray::with(Dims shape, Dims strides, std::int64_t offset) const {
  return NDArray(buffer_, dtype_, device_, std::move(shape), std::move(strides), offset);
}

NDArray NDArray::empty(Dims shape, DType dtype, Device device) {
  geometry::check_shape(shape, dtype, "empty");
  auto buffer = std::make_shared<ArrayBuffer>();
  buffer->bytes = static_cast<std::size_t>(geometry::size_of(shape)) * dtype_size(dtype);
  buffer->memory = DeviceBuffer(buffer->bytes, device, array_stream(device));
  buffer->data = buffer->memory.as<char>();
  Dims strides = geometry::contiguous_strides(shape);
  return NDArray(std::move(buffer), dtype, device, std::move(shape), std::move(strides), 0);
}

NDArray NDArray::full(Dims shape, Scalar value, DType dtype, Device device) {
  NDArray result = empty(std::move(shape), dtype, device);
  array::fill(result, value);
  return result;
}
NDArray NDArray::zeros(Dims shape, DType dtype, Device device) {
  return full(std::move(shape), 0, dtype, device);
}
NDArray NDArray::ones(Dims shape, DType dtype, Device device) {
  return full(std::move(shape), 1, dtype, device);
}

NDArray NDArray::wrap(const TensorView& view, std::shared_ptr<void> owner, bool writable) {
  check_view(view, "wrap", "view");
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  MEMBOUND_CHECK(reinterpret_cast<std::uintptr_t>(view.data) % std::min<std::int64_t>(size, 8) == 0,
                 InvalidArgument, "wrap", "argument 'view' must start at a multiple of its ", size,
                 "-byte element size, got an unaligned pointer");
  auto buffer = std::make_shared<ArrayBuffer>();
  buffer->writable = writable;
  buffer->owner = std::move(owner);
  buffer->data = static_cast<char*>(view.data);
  std::int64_t offset = 0;
  if (view.size() > 0) {
    const ByteSpan span = byte_span(view);
    buffer->data = const_cast<char*>(span.first);
    buffer->bytes = static_cast<std::size_t>(span.last - span.first);
    offset = (static_cast<const char*>(view.data) - span.first) / size;
  }
  return NDArray(std::move(buffer), view.dtype, view.device,
                 Dims(view.shape, view.shape + view.rank),
                 Dims(view.strides, view.strides + view.rank), offset);
}

std::int64_t NDArray::size() const noexcept {
  std::int64_t count = 1;
  for (std::int64_t extent : shape_) count *= extent;
  return count;
}

void* NDArray::data() const noexcept {
  if (buffer_ == nullptr || buffer_->data == nullptr) return nullptr;
  return buffer_->data + offset_ * static_cast<std::int64_t>(dtype_size(dtype_));
}

bool NDArray::writable() const noexcept { return buffer_ == nullptr || buffer_->writable; }

bool NDArray::is_contiguous() const noexcept {
  std::int64_t expected = 1;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    if (shape_[axis] == 0) return true;
    if (shape_[axis] != 1 && strides_[axis] != expected) return false;
    expected *= shape_[axis];
  }
  return true;
}

TensorView NDArray::view() const {
  TensorView result;
  result.data = data();
  result.dtype = dtype_;
  result.device = device_;
  result.rank = rank();
  std::copy(shape_.begin(), shape_.end(), result.shape);
  std::copy(strides_.begin(), strides_.end(), result.strides);
  return result;
}

bool NDArray::can_reshape(const Dims& shape) const {
  const Dims wanted = geometry::resolved_shape(shape_, shape, "reshape");
  return geometry::reshaped_strides(shape_, strides_, wanted).has_value();
}

NDArray NDArray::reshape(Dims shape) const {
  Dims wanted = geometry::resolved_shape(shape_, std::move(shape), "reshape");
  std::optional<Dims> strides = geometry::reshaped_strides(shape_, strides_, wanted);
  MEMBOUND_CHECK(strides.has_value(), InvalidArgument, "reshape", "no view of shape ",
                 shape_text(shape_), " and strides ", shape_text(strides_), " has shape ",
                 shape_text(wanted), "; copy it first, or use reshape_copy");
  return with(std::move(wanted), std::move(*strides), offset_);
}

NDArray NDArray::permute_dims(const Dims& axes) const {
  const Dims order = geometry::normalised_axes(axes, rank(), "permute_dims", "axes");
  MEMBOUND_CHECK(order.size() == shape_.size(), InvalidArgument, "permute_dims",
                 "argument 'axes' must name each of the ", rank(), " axes, got ", shape_text(axes));
  Dims shape, strides;
  for (std::int64_t axis : order) {
    shape.push_back(shape_[static_cast<std::size_t>(axis)]);
    strides.push_back(strides_[static_cast<std::size_t>(axis)]);
  }
  return with(std::move(shape), std::move(strides), offset_);
}

NDArray NDArray::matrix_transpose() const {
  MEMBOUND_CHECK(rank() >= 2, InvalidArgument, "matrix_transpose",
                 "argument 'x' must have at least 2 axes, got shape ", shape_text(shape_));
  NDArray result = *this;
  const std::size_t last = shape_.size() - 1;
  std::swap(result.shape_[last], result.shape_[last - 1]);
  std::swap(result.strides_[last], result.strides_[last - 1]);
  return result;
}

NDArray NDArray::moveaxis(int from, int to) const {
  const int source = geometry::normalised_axis(from, rank(), "moveaxis", "source");
  const int destination = geometry::normalised_axis(to, rank(), "moveaxis", "destination");
  Dims order;
  for (int axis = 0; axis < rank(); ++axis) {
    if (axis != source) order.push_back(axis);
  }
  order.insert(order.begin() + destination, source);
  return permute_dims(order);
}

namespace {

// The first place, the number of places and the step of a slice of `extent` elements.
struct Range {
  std::int64_t first, count, step;
};
Range range_of(const Slice& slice, std::int64_t extent) {
  MEMBOUND_CHECK(slice.step != 0, InvalidArgument, "index", "the step of a slice must not be 0");
  const bool down = slice.step < 0;
  const std::int64_t lowest = down ? -1 : 0, highest = down ? extent - 1 : extent;
  const auto place = [&](std::optional<std::int64_t> given, std::int64_t otherwise) {
    if (!given) return otherwise;
    return std::clamp(*given < 0 ? *given + extent : *given, lowest, highest);
  };
  const std::int64_t start = place(slice.start, down ? highest : lowest);
  const std::int64_t stop = place(slice.stop, down ? lowest : highest);
  const std::int64_t distance = down ? start - stop : stop - start;
  if (distance <= 0) return {0, 0, slice.step};
  const std::uint64_t stride =
      down ? 0 - static_cast<std::uint64_t>(slice.step) : static_cast<std::uint64_t>(slice.step);
  return {start, static_cast<std::int64_t>((static_cast<std::uint64_t>(distance) - 1) / stride) + 1,
          slice.step};
}

}  // namespace

NDArray NDArray::index(const std::vector<Index>& places) const {
  int taken = 0, ellipses = 0;
  for (const Index& place : places) {
    taken += place.kind == Index::Kind::kInteger || place.kind == Index::Kind::kSlice;
    ellipses += place.kind == Index::Kind::kEllipsis;
  }
  MEMBOUND_CHECK(taken <= rank(), OutOfRange, "index", "an array of shape ", shape_text(shape_),
                 " takes at most ", rank(), " indices, got ", taken);
  MEMBOUND_CHECK(ellipses <= 1, OutOfRange, "index", "an index has at most one ellipsis, got ",
                 ellipses);
  Dims shape, strides;
  std::int64_t offset = offset_;
  std::size_t axis = 0;
  const auto keep = [&](int count) {
    for (; count > 0; --count, ++axis) {
      shape.push_back(shape_[axis]);
      strides.push_back(strides_[axis]);
    }
  };
  for (const Index& place : places) {
    switch (place.kind) {
      case Index::Kind::kNewAxis:
        shape.push_back(1);
        strides.push_back(0);
        break;
      case Index::Kind::kEllipsis: keep(rank() - taken); break;
      case Index::Kind::kInteger: {
        const std::int64_t extent = shape_[axis];
        MEMBOUND_CHECK(place.integer >= -extent && place.integer < extent, OutOfRange, "index",
                       "index ", place.integer, " is out of range for axis ", axis, " of ", extent,
                       " elements");
        offset += (place.integer + (place.integer < 0 ? extent : 0)) * strides_[axis++];
        break;
      }
      case Index::Kind::kSlice: {
        const Range range = range_of(place.slice, shape_[axis]);
        offset += range.first * strides_[axis];
        shape.push_back(range.count);
        strides.push_back(range.count > 1 ? strides_[axis] * range.step : strides_[axis]);
        ++axis;
        break;
      }
    }
  }
  keep(rank() - static_cast<int>(axis));
  MEMBOUND_CHECK(shape.size() <= kMaxRank, InvalidArgument, "index", "a view has at most ",
                 kMaxRank, " axes, got ", shape.size());
  return with(std::move(shape), std::move(strides), offset);
}

NDArray NDArray::slice(int axis, Slice range) const {
  std::vector<Index> places(
      static_cast<std::size_t>(geometry::normalised_axis(axis, rank(), "slice")), Slice{});
  places.emplace_back(range);
  return index(places);
}

NDArray NDArray::broadcast_to(const Dims& shape) const {
  geometry::check_shape(shape, dtype_, "broadcast_to");
  return with(shape, geometry::broadcast_strides(shape_, strides_, shape, "broadcast_to"), offset_);
}

NDArray NDArray::squeeze(const Dims& axes) const {
  const Dims dropped = geometry::normalised_axes(axes, rank(), "squeeze");
  const std::vector<bool> is_dropped = geometry::axis_mask(dropped, rank());
  Dims shape, strides;
  for (std::size_t axis = 0; axis < shape_.size(); ++axis) {
    MEMBOUND_CHECK(!is_dropped[axis] || shape_[axis] == 1, InvalidArgument, "squeeze",
                   "argument 'axis' must name axes of 1 element, got axis ", axis, " of shape ",
                   shape_text(shape_));
    if (is_dropped[axis]) continue;
    shape.push_back(shape_[axis]);
    strides.push_back(strides_[axis]);
  }
  return with(std::move(shape), std::move(strides), offset_);
}

NDArray NDArray::expand_dims(int axis) const {
  MEMBOUND_CHECK(rank() < kMaxRank, InvalidArgument, "expand_dims", "a view has at most ", kMaxRank,
                 " axes");
  const int place = geometry::normalised_axis(axis, rank() + 1, "expand_dims");
  NDArray result = *this;
  result.shape_.insert(result.shape_.begin() + place, 1);
  result.strides_.insert(result.strides_.begin() + place, 0);
  return result;
}

NDArray NDArray::flip(const Dims& axes) const {
  NDArray result = *this;
  for (std::int64_t axis : geometry::normalised_axes(axes, rank(), "flip")) {
    const auto at = static_cast<std::size_t>(axis);
    if (shape_[at] > 1) result.offset_ += (shape_[at] - 1) * strides_[at];
    result.strides_[at] = -strides_[at];
  }
  return result;
}
NDArray NDArray::flip() const {
  Dims axes;
  for (int axis = 0; axis < rank(); ++axis) axes.push_back(axis);
  return flip(axes);
}

NDArray NDArray::diagonal(std::int64_t offset) const {
  MEMBOUND_CHECK(rank() >= 2, InvalidArgument, "diagonal",
                 "argument 'x' must have at least 2 axes, got shape ", shape_text(shape_));
  NDArray result = *this;
  const std::size_t last = shape_.size() - 1;
  const std::int64_t row = std::max<std::int64_t>(-offset, 0),
                     col = std::max<std::int64_t>(offset, 0);
  const std::int64_t count =
      std::max<std::int64_t>(std::min(shape_[last - 1] - row, shape_[last] - col), 0);
  if (count > 0) result.offset_ += row * strides_[last - 1] + col * strides_[last];
  result.shape_.pop_back();
  result.strides_.pop_back();
  result.shape_.back() = count;
  result.strides_.back() = strides_[last - 1] + strides_[last];
  return result;
}

NDArray NDArray::as_strided(Dims shape, Dims strides, std::int64_t offset) const {
  constexpr const char* kOp = "as_strided";
  geometry::check_shape(shape, dtype_, kOp);
  MEMBOUND_CHECK(shape.size() == strides.size(), InvalidArgument, kOp,
                 "argument 'strides' must have one entry per axis of ", shape_text(shape), ", got ",
                 shape_text(strides));
  const auto elements =
      static_cast<std::int64_t>((buffer_ ? buffer_->bytes : 0) / dtype_size(dtype_));
  if (geometry::size_of(shape) > 0) {
    double lowest = static_cast<double>(offset), highest = lowest;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const double reach =
          static_cast<double>(shape[axis] - 1) * static_cast<double>(strides[axis]);
      (reach < 0 ? lowest : highest) += reach;
    }
    MEMBOUND_CHECK(lowest >= 0 && highest < static_cast<double>(elements), InvalidArgument, kOp,
                   "shape ", shape_text(shape), ", strides ", shape_text(strides), " and offset ",
                   offset, " must stay inside the buffer of ", elements, " elements");
  }
  return with(std::move(shape), std::move(strides), offset);
}

NDArray NDArray::copy() const {
  NDArray result = empty(shape_, dtype_, device_);
  array::copy_into(result, *this);
  return result;
}
NDArray NDArray::contiguous() const { return is_contiguous() ? *this : copy(); }
NDArray NDArray::astype(DType dtype) const {
  if (dtype == dtype_) return *this;
  NDArray result = empty(shape_, dtype, device_);
  array::copy_into(result, *this);
  return result;
}
NDArray NDArray::to(Device device) const {
  if (device == device_) return *this;
  NDArray result = empty(shape_, dtype_, device);
  array::copy_into(result, *this);
  return result;
}
void NDArray::assign(const NDArray& source) { array::copy_into(*this, source); }
void NDArray::fill(Scalar value) { array::fill(*this, value); }

}  // namespace membound
