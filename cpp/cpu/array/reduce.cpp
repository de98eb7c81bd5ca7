// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/array/reduce.hpp"

#include <algorithm>
#include <cstdlib>

#include "cpu/array/blocks.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/pairwise.hpp"
#include "cpu/parallel.hpp"
#include "cpu/thread_memory.hpp"
#include "membound/device_buffer.hpp"
#include "ops/array/operands.hpp"

namespace membound::cpu {

namespace {

ElementwiseOp pair_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd: return ElementwiseOp::kMultiply;
    case ReduceOp::kMin:
    case ReduceOp::kAll: return ElementwiseOp::kMinimum;
    case ReduceOp::kMax:
    case ReduceOp::kAny: return ElementwiseOp::kMaximum;
    default: return ElementwiseOp::kAdd;
  }
}

// In which values are taken together.
DType total_dtype(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::kAny:
    case ReduceOp::kAll: return is_integer(dtype) ? unsigned_of(dtype) : DType::kBool;
    case ReduceOp::kMin:
    case ReduceOp::kMax: return kernel_dtype(dtype);
    default: return is_floating(dtype) ? accumulate_dtype(dtype) : DType::kUInt64;
  }
}

// Kernels of pairs see bool as the bytes that it is.
DType pair_dtype(DType dtype) { return dtype == DType::kBool ? DType::kUInt8 : dtype; }

// Adds contiguous runs of totals: a = a + b.
struct PairKernel {
  const KernelTable& table;
  ElementwiseOp op;
  DType dtype;

  void apply(void* a, const void* b, std::int64_t count) const {
    table.array_binary({op, dtype, count, count, a, {a, b, nullptr}, {0, 0, 0}});
  }
};

class Reduction {
 public:
  explicit Reduction(const ArrayReduction& problem)
      : problem_(problem),
        kept_(at_least_one(problem.kept)),
        reduced_(at_least_one(problem.reduced)),
        table_(kernels()),
        dtype_(total_dtype(problem.op, problem.source.dtype)),
        size_(size_in_bytes(dtype_)),
        pair_{table_, pair_op(problem.op), pair_dtype(dtype_)},
        outputs_(kept_.size()),
        count_(reduced_.size()),
        chunks_((count_ + kChunk - 1) / kChunk) {
    // Sums wrap, and zeros are zeros: both have the same bits.
    if (dtype_ == unsigned_of(problem.source.dtype)) problem_.source.dtype = dtype_;
    if (problem.kept.rank == 0) problem_.source.strides[0] = 0;
    if (problem.reduced.rank == 0) problem_.reduced_strides[0] = 1;
  }

  void run() {
    totals_ = DeviceBuffer(
        static_cast<std::size_t>(std::max<std::int64_t>(chunks_, 1) * outputs_ * size_),
        Device::cpu());
    if (count_ == 0) {
      fill_identity();
    } else {
      reduces_columns() ? reduce_columns() : reduce_rows();
      merge_chunks();
    }
    finish();
  }

 private:
  bool is_deviation() const { return problem_.op == ReduceOp::kSquaredDeviations; }
  // Outputs that lie beside each other are computed beside each other.
  bool reduces_columns() const {
    const std::int64_t step = std::abs(problem_.reduced_strides[reduced_.rank - 1]);
    return problem_.source.strides[kept_.rank - 1] == 1 && kept_.shape[kept_.rank - 1] > 1 &&
           (step != 1 || count_ == 1);
  }
  char* total(std::int64_t chunk, std::int64_t output) const {
    return totals_.as<char>() + (chunk * outputs_ + output) * size_;
  }
  const char* element(std::int64_t offset) const {
    return static_cast<const char*>(problem_.source.data) +
           offset * size_in_bytes(problem_.source.dtype);
  }

  // --- rows: each output's elements, gathered where they are not contiguous ---

  void reduce_rows() {
    const std::int64_t each = std::min(count_, kChunk);
    const std::int64_t grain = std::max<std::int64_t>((64 << 10) / each, 1);
    parallel_for(chunks_ * outputs_, grain, [&](std::int64_t first, std::int64_t last) {
      const FloatMode ieee;
      for (std::int64_t at = first; at < last;) {
        const std::int64_t chunk = at / outputs_, output = at % outputs_;
        const std::int64_t outputs = std::min(last - at, outputs_ - output);
        reduce_row_range(chunk, output, outputs);
        at += outputs;
      }
    });
  }

  bool is_direct() const {
    return problem_.source.dtype == dtype_ && !is_deviation() &&
           is_dense(reduced_, problem_.reduced_strides);
  }

  void reduce_row_range(std::int64_t chunk, std::int64_t output, std::int64_t outputs) {
    const std::int64_t first = chunk * kChunk, count = std::min(kChunk, count_ - first);
    if (!is_direct()) {
      RowReader reader(*this);
      for (std::int64_t at = output; at < output + outputs; ++at)
        reader.reduce(at, first, count, total(chunk, at));
      return;
    }
    const std::int64_t stride = problem_.source.strides[kept_.rank - 1];
    each_run(kept_, problem_.source.strides, output, outputs,
             [&](std::int64_t offset, std::int64_t run) {
               table_.array_reduce_rows({pair_.op, dtype_, element(offset + first), run, stride,
                                         count, total(chunk, output)});
               output += run;
             });
  }

  // Elements of one output as contiguous values, block by block.
  class RowReader {
   public:
    explicit RowReader(const Reduction& reduction)
        : of_(reduction), dims_(reduction.kept_), source_(reduction.problem_.source) {
      for (int axis = 0; axis < of_.reduced_.rank; ++axis) {
        dims_.shape[dims_.rank] = of_.reduced_.shape[axis];
        source_.strides[dims_.rank++] = of_.problem_.reduced_strides[axis];
      }
      centre_ = of_.problem_.centre;
      // Extremes may be taken in any order.
      if (of_.pair_.op == ElementwiseOp::kMinimum || of_.pair_.op == ElementwiseOp::kMaximum)
        block_ = kBlockBytes / std::max(of_.size_, in_one_row() ? 1 : size_in_bytes(source_.dtype));
    }
    void reduce(std::int64_t output, std::int64_t first, std::int64_t count, char* total) {
      PairwiseCounter counter;
      alignas(8) char stack[kTreeLevels][8];
      int depth = 0;
      for (std::int64_t at = 0; at < count; at += block_) {
        char value[8];
        read_block(output, first + at, std::min(block_, count - at), value);
        for (int merges = counter.merges_of_next(); merges > 0; --merges)
          take_in(stack[--depth], value);
        std::memcpy(stack[depth++], value, 8);
      }
      for (--depth; depth > 0; --depth) take_in(stack[depth - 1], stack[depth]);
      std::memcpy(total, stack[0], static_cast<std::size_t>(of_.size_));
    }

   private:
    bool in_one_row() const {
      return of_.reduced_.rank == 1 && of_.problem_.reduced_strides[0] == 1;
    }
    // value = earlier + value, in the place of `value` or, at the end, of the earlier one.
    void take_in(char* earlier, char* value) {
      of_.pair_.apply(earlier, value, 1);
      std::memmove(value, earlier, 8);
    }
    void read_block(std::int64_t output, std::int64_t first, std::int64_t count, char* value) {
      const std::int64_t place = output * of_.count_ + first;
      const void* values = gathered_.bytes;
      if (in_one_row()) {
        values = of_.element(offset_of(dims_, source_.strides, place));
      } else {
        gather_elements(dims_, source_, place, count, gathered_.bytes);
      }
      if (source_.dtype == DType::kBool && of_.pair_.op == ElementwiseOp::kAdd) {
        static_assert(kTreeBlock < 1 << 16);
        std::uint16_t trues = 0;
        for (std::int64_t i = 0; i < count; ++i)
          trues = static_cast<std::uint16_t>(trues + static_cast<const char*>(values)[i]);
        const std::uint64_t total = trues;
        std::memcpy(value, &total, sizeof(total));
        return;
      }
      if (source_.dtype != of_.dtype_) {
        of_.table_.array_convert({values, values_.bytes, source_.dtype, of_.dtype_, count});
        values = values_.bytes;
      }
      if (of_.is_deviation()) values = of_.deviations(values, output, count, values_.bytes);
      of_.table_.array_reduce_rows({of_.pair_.op, of_.dtype_, values, 1, 0, count, value});
    }

    const Reduction& of_;
    ArrayDims dims_;
    ArrayOperand source_, centre_;
    std::int64_t block_ = kTreeBlock;
    BlockMemory values_, gathered_;
  };

  // (values - centre)^2 for elements of one output.
  const void* deviations(const void* values, std::int64_t output, std::int64_t count,
                         void* results) const {
    alignas(64) char centre[kBlockBytes];
    gather_elements(kept_, problem_.centre, output, 1, centre);
    with_bytes(size_, [&]<class T>(T value) {
      std::memcpy(&value, centre, sizeof(T));
      std::fill_n(reinterpret_cast<T*>(centre), count, value);
    });
    square_distances(values, centre, 0, results, 1, count);
    return results;
  }
  void square_distances(const void* values, const void* centre, std::int64_t, void* results,
                        std::int64_t rows, std::int64_t count) const {
    table_.array_binary({ElementwiseOp::kSubtract,
                         dtype_,
                         rows * count,
                         count,
                         results,
                         {values, centre, nullptr},
                         {count, 0, 0}});
    table_.array_unary({ElementwiseOp::kSquare,
                        dtype_,
                        rows * count,
                        rows * count,
                        results,
                        {results, nullptr, nullptr},
                        {0, 0, 0}});
  }

  // --- columns: neighbouring outputs together, row by row ---

  static constexpr std::int64_t kTileBytes = 4096;

  void reduce_columns() {
    const std::int64_t columns = kept_.shape[kept_.rank - 1];
    const std::int64_t tile = kTileBytes / size_;
    const std::int64_t tiles = (columns + tile - 1) / tile, outer = outputs_ / columns;
    const std::int64_t each = std::min(count_, kChunk) * std::min(tile, columns);
    const std::int64_t grain = std::max<std::int64_t>((64 << 10) / each, 1);
    parallel_for(chunks_ * outer * tiles, grain, [&](std::int64_t first, std::int64_t last) {
      const FloatMode ieee;
      for (std::int64_t at = first; at < last; ++at) {
        const std::int64_t column = at % tiles * tile, chunk = at / tiles / outer;
        const std::int64_t output = at / tiles % outer * columns + column;
        ColumnTile(*this, output, std::min(tile, columns - column)).reduce(chunk);
      }
    });
  }

  // Up to kTileBytes of neighbouring outputs. The tree of one output, for all of them: a stack of
  // rows of totals, with one lane of a block pushed at a time.
  class ColumnTile {
   public:
    ColumnTile(const Reduction& reduction, std::int64_t output, std::int64_t columns)
        : of_(reduction), output_(output), columns_(columns), row_bytes_(columns * of_.size_) {
      each_run(of_.kept_, of_.problem_.source.strides, output, 1,
               [&](std::int64_t offset, std::int64_t) { offset_ = offset; });
      rows_ = thread_array<char, kThreadMemoryBytes>();
      stack_ = rows_ + kLaneRows * kTileBytes;
      if (of_.is_deviation())
        gather_elements(of_.kept_, of_.problem_.centre, output, columns, centre_.bytes);
    }

    void reduce(std::int64_t chunk) {
      const std::int64_t first = chunk * kChunk, last = std::min(first + kChunk, of_.count_);
      PairwiseCounter counter;
      for (std::int64_t block = first; block < last; block += kTreeBlock) {
        const std::int64_t rows = std::min(kTreeBlock, last - block);
        if (is_narrow()) {
          push_narrow(block, rows);
        } else {
          find_rows(block, rows);
          push_lanes(0, 1);
        }
        for (int merges = counter.merges_of_next(); merges > 0; --merges) merge();
      }
      while (depth_ > 1) merge();
      std::memcpy(of_.total(chunk, output_), stack_, static_cast<std::size_t>(row_bytes_));
    }

   private:
    static constexpr std::int64_t kLaneRows = kTreeBlock / kTreeLanes;

    // Short rows that follow one another: kTreeLanes of them are one row of all lanes, which stay
    // in the L1 cache.
    bool is_narrow() const {
      return of_.reduced_.rank == 1 && of_.problem_.reduced_strides[0] == columns_ &&
             row_bytes_ * kTreeLanes <= 4 * kTileBytes;
    }
    void push_narrow(std::int64_t first, std::int64_t count) {
      char* const lanes = top(depth_++);
      for (std::int64_t row = 0; row < count; row += kTreeLanes) {
        const std::int64_t rows = std::min(kTreeLanes, count - row);
        const void* values = of_.element(offset_ + (first + row) * columns_);
        if (converts()) {
          of_.table_.array_convert(
              {values, rows_, of_.problem_.source.dtype, of_.dtype_, rows * columns_});
          values = finish_values(rows);
        }
        if (row == 0) {
          std::memcpy(lanes, values, static_cast<std::size_t>(rows * row_bytes_));
        } else {
          of_.pair_.apply(lanes, values, rows * columns_);
        }
      }
      const std::int64_t filled = std::min(count, kTreeLanes);
      for (std::int64_t half = kTreeLanes / 2; half > 0; half /= 2) {
        const std::int64_t pairs = std::min(half, filled - half);
        if (pairs > 0) of_.pair_.apply(lanes, lanes + half * row_bytes_, pairs * columns_);
      }
    }

    void find_rows(std::int64_t first, std::int64_t count) {
      const std::int64_t stride = of_.problem_.reduced_strides[of_.reduced_.rank - 1];
      row_count_ = 0;
      each_run(of_.reduced_, of_.problem_.reduced_strides, first, count,
               [&](std::int64_t offset, std::int64_t run) {
                 for (std::int64_t i = 0; i < run; ++i)
                   row_offsets_[row_count_++] = offset_ + offset + i * stride;
               });
    }
    // Lanes `lane`, lane + step, ... of the rows found, taken together; two rows have one order.
    void push_lanes(std::int64_t lane, std::int64_t step) {
      if (step == kTreeLanes || lane + 2 * step >= row_count_) return push_rows(lane, step);
      push_lanes(lane, 2 * step);
      if (lane + step >= row_count_) return;
      push_lanes(lane + step, 2 * step);
      merge();
    }
    void push_rows(std::int64_t first, std::int64_t step) {
      ArrayColumns all{of_.pair_.op, of_.pair_.dtype, {}, 0, columns_, top(depth_++)};
      for (std::int64_t row = first; row < row_count_; row += step)
        all.rows[all.row_count++] = of_.element(row_offsets_[row]);
      if (converts()) {
        for (std::int64_t row = 0; row < all.row_count; ++row) {
          char* const values = rows_ + row * row_bytes_;
          of_.table_.array_convert(
              {all.rows[row], values, of_.problem_.source.dtype, of_.dtype_, columns_});
          all.rows[row] = values;
        }
        finish_values(all.row_count);
      }
      of_.table_.array_reduce_columns(all);
    }
    bool converts() const { return of_.problem_.source.dtype != of_.dtype_ || of_.is_deviation(); }
    // Of converted rows.
    const void* finish_values(std::int64_t rows) const {
      if (of_.is_deviation()) of_.square_distances(rows_, centre_.bytes, 0, rows_, rows, columns_);
      return rows_;
    }
    char* top(std::int64_t depth) const { return stack_ + depth * row_bytes_; }
    void merge() {
      --depth_;
      of_.pair_.apply(top(depth_ - 1), top(depth_), columns_);
    }

    const Reduction& of_;
    const std::int64_t output_, columns_, row_bytes_;
    std::int64_t offset_ = 0, row_count_ = 0, depth_ = 0;
    std::int64_t row_offsets_[kTreeBlock];
    char *rows_, *stack_;
    BlockMemory centre_;
  };

  // --- the rest ---

  void merge_chunks() {
    PairwiseCounter counter;
    int depth = 0;
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
      char* place = total(chunk, 0);
      for (int merges = counter.merges_of_next(); merges > 0; --merges) {
        pair_.apply(total(--depth, 0), place, outputs_);
        place = total(depth, 0);
      }
      if (place != total(depth, 0))
        std::memcpy(total(depth, 0), place, static_cast<std::size_t>(outputs_ * size_));
      ++depth;
    }
    for (--depth; depth > 0; --depth) pair_.apply(total(depth - 1, 0), total(depth, 0), outputs_);
  }

  void fill_identity() {
    const bool one = problem_.op == ReduceOp::kProd || problem_.op == ReduceOp::kAll;
    ArrayCopy fill;
    fill.dims.rank = 1;
    fill.dims.shape[0] = outputs_;
    fill.result.data = totals_.data();
    fill.result.dtype = dtype_;
    fill.result.strides[0] = 1;
    fill.source.dtype = DType::kBool;
    fill.source.scalar[0] = one;
    fill.source.strides[0] = 0;
    array_copy(fill);
  }

  void finish() {
    ArrayElementwise divide;
    ArrayOperand totals;
    totals.data = totals_.data();
    totals.dtype = dtype_;
    std::int64_t stride = 1;
    for (int axis = problem_.kept.rank - 1; axis >= 0; stride *= problem_.kept.shape[axis--])
      totals.strides[axis] = stride;
    if (problem_.divisor == 1) {
      ArrayCopy copy;
      copy.dims = problem_.kept;
      copy.result = problem_.result;
      copy.source = totals;
      return array_copy(copy);
    }
    divide.op = ElementwiseOp::kDivide;
    divide.operand_count = 2;
    divide.dtype = dtype_;
    divide.dims = problem_.kept;
    divide.result = problem_.result;
    divide.operands[0] = totals;
    ArrayOperand& divisor = divide.operands[1];
    divisor.dtype = DType::kFloat64;
    std::memcpy(divisor.scalar, &problem_.divisor, sizeof(double));
    std::fill_n(divisor.strides, kMaxRank, 0);
    array_elementwise(divide);
  }

  ArrayReduction problem_;
  const ArrayDims kept_, reduced_;
  const KernelTable& table_;
  const DType dtype_;
  const std::int64_t size_;
  const PairKernel pair_;
  const std::int64_t outputs_, count_, chunks_;
  DeviceBuffer totals_;
};

}  // namespace

void array_reduce(const ArrayReduction& problem) {
  switch (problem.op) {
    case ReduceOp::kArgMin:
    case ReduceOp::kArgMax: return array_arg_reduce(problem);
    default: return Reduction(problem).run();
  }
}

}  // namespace membound::cpu
