// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "membound/error.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"
#include "xla_ffi.hpp"

namespace membound::python::jax {

using MaybeArray = std::optional<TensorView>;

inline const TensorView* pointer(const MaybeArray& array) { return array ? &*array : nullptr; }

// The view of an optional input, as the library's type.
class OptionalView {
 public:
  explicit OptionalView(const MaybeArray& array) : given_(array.has_value()) {
    if (given_) view_ = *array;
  }
  operator const ConstTensorView*() const { return given_ ? &view_ : nullptr; }

 private:
  ConstTensorView view_;
  bool given_;
};

// An array of a call, and whether rows share it: a weight, or a sum over rows.
template <class Given>
struct ArrayOf {
  MaybeArray Given::* array;
  bool is_shared;
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
  // Whether the array is the same for all elements, or absent.
  bool is_common(const MaybeArray& array) const;
};

// One invocation by XLA, decoded on demand.
struct Call {
  const xla::CallFrame& frame;
  Device device;
  StreamView stream;

  // Fills the arrays that are there: bit i of the attributes "operands" and "results" is place i.
  using Places = std::initializer_list<MaybeArray*>;
  void read(Places operands, Places results) const {
    spread(frame.operands, "operands", operands);
    spread(frame.results, "results", results);
  }
  Batch batch() const;  // its extents are those of the frame

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
    return integer(name);
  }
  double number(const char* name) const { return attribute<double>(name, xla::DataType::kF64); }
  std::int64_t integer(const char* name) const {
    return attribute<std::int64_t>(name, xla::DataType::kS64);
  }
  std::optional<std::vector<std::int64_t>> maybe_integers(const char* name) const;
  int choice(const char* name) const { return attribute<std::int32_t>(name, xla::DataType::kS32); }
  bool flag(const char* name) const { return choice(name) != 0; }

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
  const xla::Buffer& buffer(const xla::Buffers& buffers, std::int64_t index) const;
  void spread(const xla::Buffers& buffers, const char* present, Places places) const;
  TensorView view(const xla::Buffers& buffers, std::int64_t index) const;
};

// Runs a call: at once where all of its batch shares what rows share, as batch axes are more rows;
// else an element of the batch after the other.
template <class Given>
void run_batch(const Call& call, Given& given) {
  const Batch batch = call.batch();
  if (batch.axes == 0) return run(given, call.stream);
  bool merges = true;
  for (const auto& [array, is_shared] : Given::kArrays) {
    merges = merges && (!is_shared || batch.is_common(given.*array));
  }
  const std::int64_t count = merges ? 1 : batch.size();
  for (std::int64_t i = 0; i < count; ++i) {
    Given one = given;
    for (const auto& [array, is_shared] : Given::kArrays) {
      if (!(given.*array)) continue;
      one.*array =
          merges && !is_shared ? batch.whole(*(given.*array)) : batch.element(*(given.*array), i);
    }
    run(one, call.stream);
  }
}

}  // namespace membound::python::jax
