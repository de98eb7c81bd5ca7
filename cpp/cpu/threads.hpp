// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace membound::cpu {

// Forgets the detected number of threads: a forked child may live under other limits.
void forget_thread_limit() noexcept;

}  // namespace membound::cpu
