// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>

#include "jax_handlers.hpp"
#include "membound/error.hpp"
#include "membound/ops/rms_norm.hpp"
#include "xla_ffi.hpp"

namespace membound::python::jax {

// One invocation by XLA, decoded on demand.
struct Call {
  const xla::CallFrame& frame;
  Device device;
  StreamView stream;

  std::int64_t operands() const { return frame.operands.size; }
  std::int64_t results() const { return frame.results.size; }
  TensorView operand(std::int64_t index) const { return view(frame.operands, index); }
  TensorView result(std::int64_t index) const { return view(frame.results, index); }

  // Nothing if there are fewer operands.
  std::optional<ConstTensorView> maybe_operand(std::int64_t index) const {
    if (index >= operands()) return std::nullopt;
    return operand(index);
  }

  template <class T>
  T attribute(const char* name, xla::DataType dtype) const {
    if (const std::int64_t at = index_of(name); at >= 0) {
      const auto* scalar = static_cast<const xla::Scalar*>(frame.attributes.values[at]);
      if (frame.attributes.types[at] == xla::kScalarAttribute && scalar->dtype == dtype)
        return *static_cast<const T*>(scalar->value);
    }
    throw InvalidArgument(std::string("attribute '") + name + "' is missing or of another type");
  }
  std::optional<std::int64_t> maybe_integer(const char* name) const {
    if (index_of(name) < 0) return std::nullopt;
    return attribute<std::int64_t>(name, xla::DataType::kS64);
  }
  double number(const char* name) const { return attribute<double>(name, xla::DataType::kF64); }
  int integer(const char* name) const { return attribute<std::int32_t>(name, xla::DataType::kS32); }
  bool flag(const char* name) const { return integer(name) != 0; }
  Rounding rounding() const { return flag("rounding") ? Rounding::kBeforeWeight : Rounding::kOnce; }

 private:
  std::int64_t index_of(const char* name) const {
    const xla::Attributes& all = frame.attributes;
    for (std::int64_t i = 0; i < all.size; ++i) {
      const xla::ByteSpan& found = *all.names[i];
      if (found.size == std::strlen(name) && std::memcmp(found.data, name, found.size) == 0)
        return i;
    }
    return -1;
  }
  TensorView view(const xla::Buffers& buffers, std::int64_t index) const;
};

// The leading batch axes that vmap with "expand_dims" adds to every array of a call: results have
// their full extents, operands that are not mapped have an extent of 1.
struct Batch {
  int axes;
  const std::int64_t* extents;  // of a result

  std::int64_t size() const {
    std::int64_t count = 1;
    for (int axis = 0; axis < axes; ++axis) count *= extents[axis];
    return count;
  }
  // The operand with the full batch axes; an operand that is not mapped is broadcast by a stride of
  // 0.
  TensorView whole(TensorView operand) const;
  // The part of an operand or result that belongs to one element of the batch.
  TensorView element(const TensorView& array, std::int64_t index) const;
};

using MaybeArray = std::optional<TensorView>;

inline const TensorView* pointer(const MaybeArray& array) { return array ? &*array : nullptr; }

// The batch axes in front of parameters with so many axes of their own: every array of a call has
// as many.
int batch_axes(std::initializer_list<const MaybeArray*> parameters, int own_axes);

// Whether the array is the same for all elements of a batch, or absent.
bool is_common(const MaybeArray& array, int axes);

// The norm that a handler runs.
struct Form {
  bool centred = false;
  bool added = false;
  bool gated = false;
};

}  // namespace membound::python::jax
