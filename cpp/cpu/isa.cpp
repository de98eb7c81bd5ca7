// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/check.hpp"
#include "membound/device.hpp"

namespace membound::cpu {

#define MEMBOUND_ADDRESS(name_, ...) name_,
#define MEMBOUND_KERNEL_TABLE(isa_)                                        \
  namespace isa_ {                                                         \
  constexpr KernelTable kTable{#isa_, MEMBOUND_KERNELS(MEMBOUND_ADDRESS)}; \
  }

#if defined(__x86_64__)
MEMBOUND_KERNEL_TABLE(baseline)
MEMBOUND_KERNEL_TABLE(avx2)
MEMBOUND_KERNEL_TABLE(avx512)
#elif defined(__aarch64__)
MEMBOUND_KERNEL_TABLE(neon)
#else
MEMBOUND_KERNEL_TABLE(baseline)
#endif
#undef MEMBOUND_KERNEL_TABLE
#undef MEMBOUND_ADDRESS

namespace {

#if defined(__x86_64__)
// __builtin_cpu_supports also checks that the operating system saves the wide registers.
bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const KernelTable& choose() {
  const KernelTables supported = supported_kernels();
  const char* wanted = std::getenv("MEMBOUND_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return *supported.tables[0];
  std::string names;
  for (int i = 0; i < supported.count; ++i) {
    if (std::string_view(wanted) == supported.tables[i]->isa) return *supported.tables[i];
    names += (i ? ", " : "") + std::string(supported.tables[i]->isa);
  }
  fail<InvalidArgument>("cpu_isa", "environment variable MEMBOUND_CPU_ISA must be one of ", names,
                        " on this CPU, got '", wanted, "'");
}

}  // namespace

KernelTables supported_kernels() {
#if defined(__x86_64__)
  if (runs_avx512()) return {{&avx512::kTable, &avx2::kTable, &baseline::kTable}, 3};
  if (runs_avx2()) return {{&avx2::kTable, &baseline::kTable}, 2};
  return {{&baseline::kTable}, 1};
#elif defined(__aarch64__)
  return {{&neon::kTable}, 1};
#else
  return {{&baseline::kTable}, 1};
#endif
}

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace membound::cpu

namespace membound {
const char* cpu_isa() { return cpu::kernels().isa; }
}  // namespace membound
