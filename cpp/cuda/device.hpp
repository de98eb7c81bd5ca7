// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace membound::cuda {

int multiprocessors(int device);

// Of the architectures that the kernels were compiled for, the one that the current device runs, as
// in 90 for 9.0: code for an older one may run on a newer device, but has no clusters.
int compiled_architecture();

}  // namespace membound::cuda
