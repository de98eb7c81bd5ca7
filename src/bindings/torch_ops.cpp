// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The kernels through which torch's dispatcher calls our ops without Python, as compiled graphs do.
// A Python function would take three times as long.
#include "torch_ops.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/check.hpp"
#include "torch/builtin.hpp"
#include "torch/eager.hpp"
#include "torch/recording.hpp"

namespace nb = nanobind;

namespace membound::python {

namespace {

using torch::Kernel;
using torch::Kernels;

// One entry per op.
const Kernels& kernels() {
  static const Kernels all = [] {
    Kernels made;
    torch::add_norm_kernels(made);
    torch::add_norm_backward_kernels(made);
    torch::add_norm_quant_kernels(made);
    torch::add_activation_kernels(made);
    torch::add_rope_kernels(made);
    torch::add_qk_norm_rope_kernels(made);
    torch::add_embedding_kernels(made);
    torch::add_cross_entropy_kernels(made);
    torch::add_entry_kernels(made);
    return made;
  }();
  return all;
}

const Kernel* find_kernel(const std::string& name) {
  const auto found = std::find_if(kernels().begin(), kernels().end(),
                                  [&](const Kernel& kernel) { return name == kernel.name; });
  return found == kernels().end() ? nullptr : &*found;
}

// Whether torch accepted the kernel for a back end. The library object is never freed, as its
// destruction would unregister the kernels.
bool implement(const std::string& op, const Kernel& kernel, const char* key,
               shim::LibraryHandle& library) {
  const shim::Functions& all = *shim::functions;
  if (library == nullptr && all.new_library("membound", key, "membound/_core", 0, &library) != 0) {
    return false;
  }
  return all.implement(library, op.c_str(), kernel.run, shim::kMadeFor) == 0;
}

// The back ends for which a kernel was registered.
std::vector<std::string> implement_torch_operator(const std::string& op, const std::string& name,
                                                  const std::string& types) {
  static shim::LibraryHandle cpu = nullptr, cuda = nullptr;
  const Kernel* kernel = find_kernel(name);
  if (kernel == nullptr || shim::find_functions() == nullptr) return {};
  const std::string expected = kernel->types();
  MEMBOUND_CHECK(types == expected, TypeMismatch, op.c_str(), "the kernel '", name, "' takes ",
                 expected, ", the operator has ", types);
  std::vector<std::string> keys;
  if (implement(op, *kernel, "CPU", cpu)) keys.emplace_back("CPU");
  if (shim::functions->cuda_stream != nullptr && implement(op, *kernel, "CUDA", cuda)) {
    keys.emplace_back("CUDA");
  }
  return keys;
}

// None if the operator has no kernel here.
nb::object torch_builtin(const std::string& name, nb::handle torch_operator) {
  const Kernel* kernel = find_kernel(name);
  if (kernel == nullptr || shim::find_functions() == nullptr) return nb::none();
  return torch::builtin_of(*kernel, torch_operator);
}

std::vector<std::string> torch_kernels() {
  std::vector<std::string> names;
  for (const Kernel& kernel : kernels()) names.emplace_back(kernel.name);
  return names;
}

}  // namespace

void bind_torch_ops(nb::module_& module) {
  module.def("implement_torch_operator", &implement_torch_operator, nb::arg("op"),
             nb::arg("kernel"), nb::arg("types"),
             "Gives membound::op of torch's registry the kernel of that name, and returns for "
             "which back ends: none where there is no such kernel, or the torch that is loaded is "
             "too old. types is that of the operator's schema: 'Tensor, float -> 1'.");
  module.def("torch_builtin", &torch_builtin, nb::arg("kernel"), nb::arg("operator"),
             "What calls the kernel of that name without torch's dispatcher, on the arguments of "
             "the operator in their order. What it cannot take goes to the operator. None where "
             "there is no such kernel, or the torch that is loaded has no way to it.");
  module.def(
      "implement_torch_function",
      [](nb::handle function, nb::object forward, nb::object backward, nb::object by_operator,
         int tensors, int differentiable, std::vector<int> saved, std::vector<int> gradients_of) {
        torch::implement_function(
            function, {std::move(forward), std::move(backward), std::move(by_operator), tensors,
                       differentiable, std::move(saved), std::move(gradients_of)});
      },
      nb::arg("function"), nb::arg("forward"), nb::arg("backward"), nb::arg("by_operator"),
      nb::kw_only(), nb::arg("tensors"), nb::arg("differentiable"), nb::arg("saved"),
      nb::arg("gradients_of"),
      "Gives a torch.autograd.Function its forward(context, *tensors, options), and a backward. "
      "forward(*tensors, *options) runs the call, backward(*grads, *saved, *options, wanted) its "
      "gradients, by_operator the same where that has to be an operator; saved are indices among "
      "tensors, options and results, gradients_of has for each tensor the index of its gradient "
      "or -1.");
  module.def("torch_eager_call", &torch::make_eager_call, nb::arg("apply"), nb::kw_only(),
             nb::arg("plain"), nb::arg("tensors"),
             "What calls apply(*tensors, options) on the arguments of an operator, or returns "
             "NotImplemented where it has to be one: tensors are not of the plain types, or "
             "something traces, transforms or watches calls.");
  module.def(
      "record_torch_calls", &torch::record_calls, nb::arg("op"), nb::arg("function"), nb::kw_only(),
      nb::arg("plain"), nb::arg("outside"),
      "Lets function take the calls of that op in which a tensor of the plain types requires "
      "grad and no keyword is one of those outside, unless a mode watches.");
  module.def("torch_kernels", &torch_kernels, "The names of the kernels.");
}

}  // namespace membound::python
