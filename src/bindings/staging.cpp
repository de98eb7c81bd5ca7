// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/staging.hpp"

#include <string>
#include <type_traits>
#include <utility>

#include "call.hpp"
#include "staging.hpp"

namespace nb = nanobind;

namespace membound::python {

namespace {

// A numeric option. Assignment reports a wrong type; set_staging_options checks the bounds.
template <auto kMember>
void add_number(nb::class_<StagingOptions>& options, const char* name, const char* text) {
  using Number = std::remove_reference_t<decltype(std::declval<StagingOptions&>().*kMember)>;
  const std::string assign = "def " + std::string(name) + "(self, arg: int, /) -> None";
  options.def_prop_rw(
      name, [](const StagingOptions& one) { return one.*kMember; },
      [name](StagingOptions& one, nb::handle value) {
        one.*kMember = integer_as<Number>(value.ptr(), {"StagingOptions", name});
      },
      nb::for_setter(nb::sig(assign.c_str())), text);
}

}  // namespace

void bind_staging(nb::module_& module) {
  nb::class_<StagingOptions> options(
      module, "StagingOptions",
      "How NumPy arrays travel through a GPU and back (device=\"cuda\"): in "
      "chunks, several at once.");
  options.def(nb::init<>());
  add_number<&StagingOptions::slot_bytes>(options, "slot_bytes", "Bytes of a chunk, each way.");
  add_number<&StagingOptions::slots_per_thread>(options, "slots_per_thread",
                                                "Chunks that one thread keeps in flight.");
  add_number<&StagingOptions::threads>(options, "threads",
                                       "Threads that copy; 0: as many as CPU calls use.");
  add_number<&StagingOptions::cached_bytes>(options, "cached_bytes",
                                            "Page-locked memory kept between calls.");
  module.def("staging_options", &staging_options, "The options in use.");
  module.def("set_staging_options", &set_staging_options, nb::arg("options"),
             "Sets the options for later calls.");
  module.def("cached_staging_bytes", &cached_staging_bytes,
             "Page-locked bytes kept between calls; a GPU keeps as many.");
  module.def("release_staging", &release_staging,
             "Frees the page-locked memory kept between calls, and the GPU's share.");
}

}  // namespace membound::python
