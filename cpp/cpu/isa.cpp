// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/check.hpp"
#include "membound/device.hpp"

namespace membound::cpu {

namespace {

#define MEMBOUND_KERNEL_TABLE(isa_)                                                               \
  constexpr KernelTable k_##isa_ {                                                                \
    #isa_, isa_::rms_norm, isa_::rms_norm_centred, isa_::rms_norm_gated, isa_::rms_norm_weight,   \
        isa_::rms_norm_quant, isa_::rms_norm_backward, isa_::rms_norm_backward_centred,           \
        isa_::rms_norm_backward_gated, isa_::rms_norm_backward_block,                             \
        isa_::rms_norm_backward_weight, isa_::gated_activation, isa_::gated_activation_backward,  \
        isa_::gated_activation_quant, isa_::rope, isa_::rope_angles, isa_::rope_arrange,          \
        isa_::rope_angle_gradient, isa_::qk_norm_rope, isa_::qk_norm_rope_backward,               \
        isa_::embedding, isa_::embedding_backward, isa_::embedding_backward_zeros, isa_::softmax, \
        isa_::softmax_backward, isa_::cross_entropy, isa_::convert_rows, isa_::multiply_silu,     \
  }

#if defined(__x86_64__)
MEMBOUND_KERNEL_TABLE(baseline);
MEMBOUND_KERNEL_TABLE(avx2);
MEMBOUND_KERNEL_TABLE(avx512);

// __builtin_cpu_supports also checks that the operating system saves the wide registers.
bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#elif defined(__aarch64__)
MEMBOUND_KERNEL_TABLE(neon);
#else
MEMBOUND_KERNEL_TABLE(baseline);
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
  if (runs_avx512()) return {{&k_avx512, &k_avx2, &k_baseline}, 3};
  if (runs_avx2()) return {{&k_avx2, &k_baseline}, 2};
  return {{&k_baseline}, 1};
#elif defined(__aarch64__)
  return {{&k_neon}, 1};
#else
  return {{&k_baseline}, 1};
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
