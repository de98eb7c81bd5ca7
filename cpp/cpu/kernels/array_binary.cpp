// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/array_blocks.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

void array_binary(const ArrayBlocks& blocks) { run_blocks<2>(blocks); }

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
