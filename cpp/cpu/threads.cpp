// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "core/check.hpp"
#include "cpu/thread_memory.hpp"
#include "membound/device.hpp"

namespace membound {

namespace {

std::atomic<int> forced_threads{0};
std::atomic<int> detected_threads{0};  // 0: not detected yet

int allowed_cores() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Cores that one cgroup folder grants; infinity without a limit.
double quota_of(const std::string& folder, bool version_2) {
  double quota = -1, period = 0;
  if (version_2) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000" leaves quota at 0
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

// The smallest quota from the process's cgroup up to the root of the mount. A container may show
// the host's path while its own limit is at the root, so the root is always checked.
double cgroup_cores() {
  double cores = INFINITY;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    // "0::/path" is version 2; version 1 names its controllers: "4:cpu,cpuacct:/path".
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    const bool version_2 = second == first + 1;
    bool is_cpu = version_2;
    for (std::string name; std::getline(controllers, name, ',');) is_cpu |= name == "cpu";
    if (!is_cpu) continue;
    const std::string root = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    std::string path = line.substr(second + 1);
    for (;;) {
      cores = std::min(cores, quota_of(root + path, version_2));
      const auto slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return cores;
}

int detect() {
  int threads = allowed_cores();
  const double quota = cgroup_cores();
  if (quota < threads) threads = static_cast<int>(std::ceil(quota));
  // OpenMP's list has one number per nesting level; the first one counts.
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const long wanted = std::strtol(text, nullptr, 10);
    if (wanted > 0 && wanted < threads) threads = static_cast<int>(wanted);
  }
  return std::max(threads, 1);
}

}  // namespace

int cpu_threads() {
  if (const int forced = forced_threads.load(std::memory_order_relaxed)) return forced;
  int threads = detected_threads.load(std::memory_order_relaxed);
  if (threads == 0) detected_threads = threads = detect();
  return threads;
}

void set_cpu_threads(int count) {
  MEMBOUND_CHECK(count >= 0 && count <= 1024, InvalidArgument, "set_cpu_threads",
                 "argument 'count' must be 0 (the default) to 1024, got ", count);
  forced_threads = count;
}

namespace cpu {
void forget_thread_limit() noexcept { detected_threads = 0; }

void* thread_memory() noexcept {
  alignas(64) thread_local unsigned char memory[kThreadMemoryBytes];
  return memory;
}
}  // namespace cpu

}  // namespace membound
