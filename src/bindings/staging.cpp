// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/staging.hpp"

#include "staging.hpp"

namespace nb = nanobind;

namespace membound::python {

void bind_staging(nb::module_& module) {
  nb::class_<StagingOptions>(module, "StagingOptions",
                             "How NumPy arrays travel through a GPU and back (device=\"cuda\"): in "
                             "chunks, several at once.")
      .def(nb::init<>())
      .def_rw("slot_bytes", &StagingOptions::slot_bytes, "Bytes of a chunk, each way.")
      .def_rw("slots_per_thread", &StagingOptions::slots_per_thread,
              "Chunks that one thread keeps in flight.")
      .def_rw("threads", &StagingOptions::threads,
              "Threads that copy; 0: as many as CPU calls use.")
      .def_rw("cached_bytes", &StagingOptions::cached_bytes,
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
