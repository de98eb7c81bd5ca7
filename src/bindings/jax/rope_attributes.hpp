// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "jax/call.hpp"
#include "rope.hpp"

// Shared by handlers of rotations: options as attributes, and arrays that do not exist yet.
namespace membound::python::jax {

// The checks that membound.jax calls while it traces.
void bind_rope(nb::module_& module);
void bind_qk_norm_rope(nb::module_& module);

RopeOptions rope_options_of(const Call& call);
nb::dict rope_options_to_attributes(const RopeOptions& options, std::int64_t rotary_dim);

// The shape and dtype of an array, at an address that is distinct for each number.
TensorView traced(nb::handle described, int number);
// One of the caller's options, null if not given; and all options of rope.
PyObject* traced_option(const nb::dict& options, const char* name);
RopeArguments traced_arguments(const char* op, const nb::dict& given);

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

}  // namespace membound::python::jax
