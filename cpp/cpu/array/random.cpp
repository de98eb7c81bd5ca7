// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/array/philox.hpp"
#include "cpu/array/blocks.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"

namespace membound::cpu {

void array_random(const ArrayRandom& problem) {
  const KernelTable& table = kernels();
  const bool real = problem.kind == RandomKind::kUniform || problem.kind == RandomKind::kNormal;
  const philox::Reals reals{problem.kind == RandomKind::kNormal, problem.dtype, problem.low,
                            problem.high};
  const std::int64_t each = real ? philox::per_block(problem.dtype) : 2;
  constexpr std::int64_t kElements = kBlockBytes / 8;
  const std::int64_t parts = (problem.count + kElements - 1) / kElements;
  parallel_for(parts, 8, [&](std::int64_t first, std::int64_t last) {
    const FloatMode ieee;
    BlockMemory memory;
    for (std::int64_t part = first; part < last; ++part) {
      const std::int64_t at = part * kElements;
      const std::int64_t count = std::min(kElements, problem.count - at);
      for (std::int64_t i = 0; i < count; i += each) {
        const auto block = static_cast<std::uint64_t>((at + i) / each);
        const philox::Words words = philox::block(problem.counter + block, problem.seed);
        char* to = memory.bytes + i * 8;
        if (real) {
          philox::reals(reals, words, reinterpret_cast<double*>(to));
        } else {
          philox::integers(problem.lowest, problem.range, words,
                           reinterpret_cast<std::uint64_t*>(to));
        }
      }
      table.array_convert({memory.bytes,
                           static_cast<char*>(problem.result) + at * size_in_bytes(problem.dtype),
                           real ? DType::kFloat64 : DType::kUInt64, problem.dtype, count});
    }
  });
}

}  // namespace membound::cpu
