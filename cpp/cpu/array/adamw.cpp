// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "cpu/array/blocks.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"

// All parameters are cut into parts of one size, which threads share out whatever parameter they
// belong to; each block of a part is read, updated and written while it is in the L1 cache.
namespace membound::cpu {

namespace {

constexpr std::int64_t kPart = 16 << 10;  // elements: 256 KiB of float32 arrays

struct Part {
  const ArrayAdamW* parameter;
  std::int64_t first, last;
};

std::vector<Part> parts_of(const ArrayAdamW* parameters, std::int64_t count) {
  std::vector<Part> parts;
  for (std::int64_t at = 0; at < count; ++at) {
    const std::int64_t size = parameters[at].dims.size();
    for (std::int64_t first = 0; first < size; first += kPart)
      parts.push_back({&parameters[at], first, std::min(first + kPart, size)});
  }
  return parts;
}

// An array that is updated in place.
class Updated {
 public:
  Updated(const ArrayDims& dims, const ArrayOperand& operand, DType dtype, std::int64_t block)
      : reader_(dims, operand, dtype, block, kernels()),
        writer_(dims, operand, dtype, false, kernels()) {}

  const void* read(std::int64_t first, std::int64_t count) { return reader_.read(first, count); }
  void* begin(std::int64_t first, std::int64_t count) {
    return written_ = writer_.begin(first, count);
  }
  void end(std::int64_t first, std::int64_t count) { writer_.end(first, count, written_); }

 private:
  BlockReader reader_;
  BlockWriter writer_;
  void* written_ = nullptr;
};

void update(const Part& part, const AdamWFactors& factors) {
  const ArrayDims dims = at_least_one(part.parameter->dims);
  const DType dtype = kernel_dtype(part.parameter->param.dtype);
  const std::int64_t block = block_elements(dtype);
  Updated param(dims, part.parameter->param, dtype, block);
  Updated exp_avg(dims, part.parameter->exp_avg, dtype, block);
  Updated exp_avg_sq(dims, part.parameter->exp_avg_sq, dtype, block);
  BlockReader grad(dims, part.parameter->grad, dtype, block, kernels());
  each_block(dims, part.first, part.last, block, true, [&](std::int64_t at, std::int64_t count) {
    kernels().array_adamw(
        {dtype,
         count,
         factors,
         grad.read(at, count),
         {param.read(at, count), exp_avg.read(at, count), exp_avg_sq.read(at, count)},
         {param.begin(at, count), exp_avg.begin(at, count), exp_avg_sq.begin(at, count)}});
    for (Updated* of : {&param, &exp_avg, &exp_avg_sq}) of->end(at, count);
  });
}

}  // namespace

void array_adamw(const ArrayAdamW* parameters, std::int64_t count, const AdamWFactors& factors) {
  const std::vector<Part> parts = parts_of(parameters, count);
  parallel_for(static_cast<std::int64_t>(parts.size()), 1,
               [&](std::int64_t first, std::int64_t last) {
                 const FloatMode ieee;
                 for (std::int64_t at = first; at < last; ++at)
                   update(parts[static_cast<std::size_t>(at)], factors);
               });
}

}  // namespace membound::cpu
