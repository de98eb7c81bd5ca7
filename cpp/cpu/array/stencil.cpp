// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cpu/array/blocks.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"

// The axis and those behind it are one line, along which neighbouring weights meet elements that
// are `inner` apart. A block of results reads one run of the line for each weight: from memory
// where it is, or through a buffer where the run leaves the line.
namespace membound::cpu {

namespace {

constexpr std::int64_t kBlock = 256, kTaps = kStencilTaps;

template <class T>
class Lines {
 public:
  explicit Lines(const ArrayStencil& problem)
      : problem_(problem),
        line_(problem.result_length * problem.inner),
        line_blocks_((line_ + kBlock - 1) / kBlock) {}

  std::int64_t blocks() const { return problem_.outer * line_blocks_; }

  // Calls body(block, first result, count) for all blocks.
  template <class Body>
  void each(Body body) const {
    constexpr std::int64_t kGrain = (128 << 10) / (kBlock * sizeof(T));
    parallel_for(blocks(), kGrain, [&](std::int64_t first, std::int64_t last) {
      const FloatMode ieee;
      for (std::int64_t block = first; block < last; ++block) {
        const std::int64_t at = block % line_blocks_ * kBlock;
        body(block, block / line_blocks_ * line_ + at, std::min(kBlock, line_ - at));
      }
    });
  }

  // What weight `tap` multiplies for the results of a block.
  const T* run(std::int64_t result, std::int64_t count, std::int64_t tap, T* buffer) const {
    const std::int64_t inner = problem_.inner, at = result % line_;
    const std::int64_t length = problem_.length * inner;
    const T* source = static_cast<const T*>(problem_.source) + result / line_ * length;
    const std::int64_t from = at + (tap + problem_.origin) * inner;
    if (from >= 0 && from + count <= length) return source + from;
    const auto outside = [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t row = (at + i) / inner + tap + problem_.origin;
        const std::int64_t place = array::boundary_index(problem_.boundary, row, problem_.length);
        buffer[i] = place < 0 ? T(0) : source[place * inner + (at + i) % inner];
      }
    };
    const std::int64_t first = std::clamp<std::int64_t>(-from, 0, count);
    const std::int64_t last = std::clamp<std::int64_t>(length - from, first, count);
    outside(0, first);
    std::copy(source + from + first, source + from + last, buffer + first);
    outside(last, count);
    return buffer;
  }

 private:
  const ArrayStencil& problem_;
  const std::int64_t line_, line_blocks_;
};

template <class T>
void apply(const ArrayStencil& problem) {
  const Lines<T> lines(problem);
  lines.each([&](std::int64_t, std::int64_t result, std::int64_t count) {
    T buffers[kTaps][kBlock];
    StencilBlock block{
        problem.dtype, count, 0, {}, nullptr, static_cast<T*>(problem.result) + result, false};
    for (std::int64_t tap = 0; tap < problem.taps; tap += kTaps) {
      block.taps = std::min(kTaps, problem.taps - tap);
      block.weights = static_cast<const T*>(problem.weights) + tap;
      block.accumulates = tap > 0;
      for (std::int64_t i = 0; i < block.taps; ++i)
        block.inputs[i] = lines.run(result, count, tap + i, buffers[i]);
      kernels().array_stencil(block);
    }
  });
}

template <class T>
void dots(const ArrayStencil& problem, T* sums) {
  const Lines<T> lines(problem);
  lines.each([&](std::int64_t block, std::int64_t result, std::int64_t count) {
    const T* dy = static_cast<const T*>(problem.result) + result;
    T buffer[kBlock];
    for (std::int64_t tap = 0; tap < problem.taps; ++tap) {
      const T* x = lines.run(result, count, tap, buffer);
      kernels().array_binary({ElementwiseOp::kMultiply,
                              problem.dtype,
                              count,
                              count,
                              buffer,
                              {x, dy, nullptr},
                              {0, 0, 0}});
      kernels().array_reduce_rows({ElementwiseOp::kAdd, problem.dtype, buffer, 1, 0, count,
                                   sums + tap * lines.blocks() + block});
    }
  });
}

}  // namespace

void array_stencil(const ArrayStencil& problem) {
  problem.dtype == DType::kFloat64 ? apply<double>(problem) : apply<float>(problem);
}
std::int64_t array_stencil_blocks(const ArrayStencil& problem) {
  return Lines<float>(problem).blocks();
}
void array_stencil_dots(const ArrayStencil& problem, void* sums) {
  problem.dtype == DType::kFloat64 ? dots(problem, static_cast<double*>(sums))
                                   : dots(problem, static_cast<float*>(sums));
}

}  // namespace membound::cpu
