// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax/traced_call.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "core/check.hpp"
#include "jax/rope_options.hpp"

namespace nb = nanobind;

namespace membound::python::jax {

namespace {

// An array that does not exist yet: its shape and dtype code, at an address distinct from others.
TensorView array_of(nb::handle described, int number) {
  const nb::tuple pair = nb::cast<nb::tuple>(described);
  const nb::tuple shape = nb::cast<nb::tuple>(pair[0]);
  TensorView view(reinterpret_cast<void*>(static_cast<std::uintptr_t>(number) << 56),
                  static_cast<DType>(nb::cast<int>(pair[1])), Device::cpu(), {});
  view.rank = static_cast<std::int32_t>(std::min<std::size_t>(shape.size(), kMaxRank + 1));
  std::int64_t stride = 1;
  for (int axis = std::min(view.rank, kMaxRank) - 1; axis >= 0; --axis) {
    view.shape[axis] = nb::cast<std::int64_t>(shape[axis]);
    view.strides[axis] = stride;
    stride *= std::max<std::int64_t>(view.shape[axis], 1);
  }
  return view;
}

// A call as JAX traces it, read as one by XLA is: its arrays, None where there is none, and the
// handler's attributes.
struct TracedCall {
  nb::list operands, results;
  nb::dict attributes;

  using Places = std::initializer_list<MaybeArray*>;
  void read(Places in, Places out) const {
    int number = 0;
    for (const auto& [places, given] : {std::pair(in, operands), {out, results}}) {
      int at = 0;
      for (MaybeArray* place : places) {
        ++number;
        const nb::object described = given[at++];
        if (!described.is_none()) *place = array_of(described, number);
      }
    }
  }
  double number(const char* name) const { return nb::cast<double>(attributes[name]); }
  std::int64_t integer(const char* name) const { return nb::cast<std::int64_t>(attributes[name]); }
  int choice(const char* name) const { return nb::cast<int>(attributes[name]); }
  bool flag(const char* name) const { return choice(name) != 0; }
  std::optional<std::int64_t> maybe_integer(const char* name) const {
    if (!attributes.contains(name)) return std::nullopt;
    return integer(name);
  }
  std::optional<std::vector<std::int64_t>> maybe_integers(const char* name) const {
    if (!attributes.contains(name)) return std::nullopt;
    std::vector<std::int64_t> found;
    for (nb::handle one : attributes[name]) found.push_back(nb::cast<std::int64_t>(one));
    return found;
  }
};

std::int64_t workspace_of(const std::string& op, const TracedCall& call) {
  if (op == "rope") return check(read_rope(call));
  if (op == "rope_backward") return check(read_rope_backward(call));
  if (op == "qk_norm_rope") return check(read_qk_norm_rope(call));
  return check(read_qk_norm_rope_backward(call));
}

// Rounded up so that each element of a batch is aligned.
std::int64_t traced_workspace(const std::string& op, nb::list operands, nb::list results,
                              nb::dict attributes) {
  return (workspace_of(op, {operands, results, attributes}) + 15) / 16 * 16;
}

}  // namespace

void bind_traced_calls(nb::module_& module) {
  module.def("traced_workspace", &traced_workspace, nb::arg("op"), nb::arg("operands"),
             nb::arg("results"), nb::arg("attributes"),
             "Checks a call of a rotation by (shape, dtype code) of its arrays, and returns the "
             "bytes of its workspace on a GPU.");
}

}  // namespace membound::python::jax
