// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace membound::cpu {

// Drops the detected number of threads: a forked child may run under other limits.
void forget_thread_limit() noexcept;

}  // namespace membound::cpu
