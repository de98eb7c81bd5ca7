// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.hpp"

#include <atomic>
#include <thread>

#include "membound/device.hpp"

namespace membound {

namespace {
std::atomic<int> forced_threads{0};
}

int cpu_threads() {
  const int forced = forced_threads.load(std::memory_order_relaxed);
  return forced > 0 ? forced : static_cast<int>(std::thread::hardware_concurrency());
}

void set_cpu_threads(int count) { forced_threads = count > 0 ? count : 0; }

namespace cpu {
void run_in_parts(std::int64_t count, std::int64_t, RangeFunction function, void* context) {
  function(context, 0, count);
}
}  // namespace cpu

}  // namespace membound
