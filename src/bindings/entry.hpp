// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "call.hpp"

namespace membound::python {

// An argument as the caller wrote it; null if it was not given.
struct NamedArgument {
  const char* name;
  PyObject* value;
};

// The call of a function of membound.jax with the same arguments, of which the first is an array.
inline nb::object call_jax(const ArrayCall& call, const char* op,
                           std::initializer_list<NamedArgument> arguments, NamedArgument result,
                           PyObject* stream) {
  call.check_jax_absent(result.value, result.name, "which cannot be written");
  call.check_jax_absent(stream, "stream", "whose stream XLA picks");
  nb::dict keywords;
  for (const NamedArgument& argument : arguments) {
    if (argument.value != nullptr) keywords[argument.name] = nb::handle(argument.value);
  }
  return nb::module_::import_("membound.jax").attr(op)(**keywords);
}

inline std::optional<std::int64_t> optional_integer(PyObject* value, Site site) {
  if (!given(value)) return std::nullopt;
  return integer_from_python(value, site);
}

}  // namespace membound::python
