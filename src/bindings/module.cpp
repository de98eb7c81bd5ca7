// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "activation.hpp"
#include "array/array.hpp"
#include "buffer.hpp"
#include "call.hpp"
#include "errors.hpp"
#include "jax_ffi.hpp"
#include "membound/device.hpp"
#include "membound/norm_plan.hpp"
#include "membound/version.hpp"
#include "signature.hpp"
#include "staging.hpp"
#include "torch_ops.hpp"

namespace membound::python {

namespace {

Device device_argument(nb::handle device) {
  if (PyLong_Check(device.ptr()))
    return Device::cuda(integer_as<int>(device.ptr(), {"device_properties", "device"}));
  Device found = device_from_python(device.ptr(), "device_properties");
  if (found.index < 0) found.index = 0;
  return found;
}

std::string status_text(const CudaStatus& status) {
  return "CudaStatus(built_with_cuda=" + std::string(status.built_with_cuda ? "True" : "False") +
         ", device_count=" + std::to_string(status.device_count) + ", message='" + status.message +
         "')";
}

// dtype names to the codes of DType, for membound.arrays.
nb::dict dtype_codes() {
  nb::dict codes;
  for (int code = 0; code <= static_cast<int>(DType::kComplex128); ++code) {
    codes[dtype_name(static_cast<DType>(code))] = code;
  }
  return codes;
}

void bind_devices(nb::module_& module) {
  nb::class_<CudaStatus>(module, "CudaStatus", "What CUDA this build and this machine offer.")
      .def_ro("built_with_cuda", &CudaStatus::built_with_cuda)
      .def_ro("device_count", &CudaStatus::device_count)
      .def_ro("error_code", &CudaStatus::error_code, "0 when at least one device is usable.")
      .def_ro("error_name", &CudaStatus::error_name)
      .def_ro("message", &CudaStatus::message, "Why there is no device, or 'ok'.")
      .def_ro("runtime_version", &CudaStatus::runtime_version, "As CUDA encodes it: 13000.")
      .def_ro("driver_version", &CudaStatus::driver_version, "0 when no driver is installed.")
      .def_ro("architectures", &CudaStatus::architectures, "Compiled for, e.g. '80 90 120'.")
      .def("__repr__", &status_text);
  nb::class_<DeviceProperties>(module, "DeviceProperties", "Facts about one GPU.")
      .def_ro("name", &DeviceProperties::name)
      .def_ro("compute_major", &DeviceProperties::compute_major)
      .def_ro("compute_minor", &DeviceProperties::compute_minor)
      .def_ro("multiprocessors", &DeviceProperties::multiprocessors)
      .def_ro("memory_bytes", &DeviceProperties::memory_bytes)
      .def_ro("l2_bytes", &DeviceProperties::l2_bytes);
  module.def("cuda_status", &cuda_status,
             "What CUDA this build and this machine offer. Never raises.");
  module.def(
      "device_properties",
      [](nb::handle device) { return device_properties(device_argument(device)); },
      nb::arg("device") = "cuda:0",
      nb::sig("def device_properties(device: object = 'cuda:0') -> "
              "DeviceProperties"),
      "Facts about one GPU: 'cuda:1' or 1. Raises CudaError when it is not there.");
  module.def(
      "norm_plan_text",
      [](const std::string& op, std::int64_t rows, std::int64_t cols, int dtype, int compute,
         int multiprocessors) {
        return norm_plan_text(op, rows, cols, static_cast<DType>(dtype), compute, multiprocessors);
      },
      nb::arg("op"), nb::arg("rows"), nb::arg("cols"), nb::arg("dtype"), nb::arg("compute"),
      nb::arg("multiprocessors"),
      "Which kernel a norm runs on a GPU of this compute capability, and its launch, as text. "
      "dtype: "
      "a code of DTYPE_CODES.");
  module.def("cpu_isa", &cpu_isa,
             "The CPU instruction set in use: 'baseline', 'avx2', 'avx512' or 'neon'.");
  module.def("cpu_threads", &cpu_threads, "How many threads a large CPU call may use.");
  module.def(
      "set_cpu_threads",
      [](nb::handle count) {
        set_cpu_threads(integer_as<int>(count.ptr(), {"set_cpu_threads", "count"}));
      },
      nb::arg("count"), nb::sig("def set_cpu_threads(count: int) -> None"),
      "Sets how many threads a large CPU call may use; 0 returns to the default. Results do "
      "not depend on it.");
}

}  // namespace

}  // namespace membound::python

NB_MODULE(_core, module) {
  // Dtypes live as long as the process: nanobind would report them, and what they reach, at exit.
  nanobind::set_leak_warnings(false);
  namespace mp = membound::python;
  module.doc() = "The compiled part of membound. Use the membound package.";
  module.attr("__version__") = MEMBOUND_VERSION_FULL;
  module.attr("DTYPE_CODES") = mp::dtype_codes();
  module.attr("ACTIVATIONS") = mp::activations();
  mp::register_errors(module);
  mp::bind_arrays(module);
  mp::bind_buffer(module);
  mp::bind_devices(module);
  mp::bind_jax_ffi(module);
  mp::bind_staging(module);
  mp::bind_torch_ops(module);
  mp::bind_ops(module);
}
