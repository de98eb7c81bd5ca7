// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "jax/call.hpp"
#include "rope.hpp"

// What handlers that turn heads share: options as attributes, and arrays that are not there yet.
namespace membound::python::jax {

// What membound.jax asks for while it traces a call.
void bind_rope(nb::module_& module);
void bind_qk_norm_rope(nb::module_& module);

RopeOptions rope_options_of(const Call& call);
nb::dict rope_options_to_attributes(const RopeOptions& options, std::int64_t rotary_dim);

// The shape and dtype of an array, at an address apart from those of other numbers.
TensorView traced(nb::handle described, int number);
// One of the caller's options, null where it is not given; and all those of rope.
PyObject* traced_option(const nb::dict& options, const char* name);
RopeArguments traced_arguments(const char* op, const nb::dict& given);

// The view of an input that may not be there, as the library takes it.
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
