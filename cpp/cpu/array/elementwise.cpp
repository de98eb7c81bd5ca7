// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "cpu/array/blocks.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"

namespace membound::cpu {

namespace {

constexpr std::int64_t kBytesPerPart = 128 << 10;

// The result of a comparison is bool, of the others the dtype of the arithmetic.
DType computed_dtype(const ArrayElementwise& problem) {
  return problem.result.dtype == DType::kBool ? DType::kBool : kernel_dtype(problem.dtype);
}

class Loop {
 public:
  explicit Loop(const ArrayElementwise& problem)
      : problem_(problem),
        dims_(at_least_one(problem.dims)),
        table_(kernels()),
        dtype_(kernel_dtype(problem.dtype)),
        block_(block_size()) {}

  void run() const {
    std::int64_t bytes = size_in_bytes(problem_.result.dtype);
    for (int i = 0; i < problem_.operand_count; ++i)
      bytes += size_in_bytes(problem_.operands[i].dtype);
    const std::int64_t grain = std::max<std::int64_t>(kBytesPerPart / bytes / 64 * 64, 64);
    parallel_for(dims_.size(), grain,
                 [&](std::int64_t first, std::int64_t last) { run_part(first, last); });
  }

 private:
  std::int64_t block_size() const {
    std::int64_t size = std::max(size_in_bytes(dtype_), size_in_bytes(problem_.result.dtype));
    for (int i = 0; i < problem_.operand_count; ++i)
      size = std::max(size, size_in_bytes(problem_.operands[i].dtype));
    return kBlockBytes / size;
  }
  void call(const ArrayBlocks& blocks) const {
    switch (problem_.operand_count) {
      case 1: return table_.array_unary(blocks);
      case 2: return table_.array_binary(blocks);
      default: return table_.array_ternary(blocks);
    }
  }

  void run_part(std::int64_t first, std::int64_t last) const {
    const FloatMode ieee;
    std::optional<BlockReader> readers[3];
    BlockWriter writer(dims_, problem_.result, computed_dtype(problem_), false, table_);
    const bool is_where = problem_.op == ElementwiseOp::kWhere;
    bool direct = writer.is_direct(), by_rows = false;
    for (int i = 0; i < problem_.operand_count; ++i) {
      readers[i].emplace(dims_, problem_.operands[i], is_where && i == 0 ? DType::kBool : dtype_,
                         block_, table_);
      direct &= readers[i]->is_constant() || readers[i]->is_direct();
    }
    by_rows = !direct;
    ArrayBlocks blocks{problem_.op, dtype_, 0, block_, nullptr, {}, {}};
    each_block(dims_, first, last, direct ? last - first : block_, by_rows,
               [&](std::int64_t at, std::int64_t count) {
                 blocks.count = count;
                 blocks.result = writer.begin(at, count);
                 for (int i = 0; i < problem_.operand_count; ++i) {
                   blocks.inputs[i] = readers[i]->read(at, count);
                   blocks.advance[i] = readers[i]->is_constant() ? 0 : block_;
                 }
                 call(blocks);
                 writer.end(at, count, blocks.result);
               });
  }

  const ArrayElementwise& problem_;
  const ArrayDims dims_;
  const KernelTable& table_;
  const DType dtype_;
  const std::int64_t block_;
};

}  // namespace

void array_elementwise(const ArrayElementwise& problem) { Loop(problem).run(); }

}  // namespace membound::cpu
