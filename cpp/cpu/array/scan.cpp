// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cpu/array/blocks.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "ops/array/operands.hpp"

namespace membound::cpu {

namespace {

DType total_dtype(DType dtype) {
  return is_floating(dtype) ? accumulate_dtype(dtype) : DType::kUInt64;
}

class Scan {
 public:
  explicit Scan(const ArrayScan& problem)
      : problem_(problem),
        rows_(at_least_one(problem.rows)),
        table_(kernels()),
        dtype_(total_dtype(problem.source.dtype)),
        size_(size_in_bytes(dtype_)),
        last_(rows_.rank - 1) {
    if (problem.rows.rank == 0) problem_.result.strides[0] = problem_.source.strides[0] = 0;
    // Sums wrap: both have the same bits.
    for (ArrayOperand* operand : {&problem_.source, &problem_.result})
      if (dtype_ == unsigned_of(operand->dtype)) operand->dtype = dtype_;
  }

  // Neighbouring rows together where their elements lie beside each other; else row by row.
  void run() const {
    const std::int64_t work = std::max<std::int64_t>(problem_.length, 1);
    const bool together =
        problem_.source.strides[last_] == 1 && problem_.result.strides[last_] == 1;
    const std::int64_t width = together ? std::min(rows_.shape[last_], kBlockBytes / 8) : 1;
    const std::int64_t strips = (rows_.shape[last_] + width - 1) / width;
    const std::int64_t outer = rows_.size() / rows_.shape[last_];
    parallel_for(outer * strips, std::max<std::int64_t>((64 << 10) / work / width, 1),
                 [&](std::int64_t first, std::int64_t last) {
                   const FloatMode ieee;
                   for (std::int64_t at = first; at < last; ++at) {
                     const std::int64_t row = at % strips * width;
                     const std::int64_t count = std::min(width, rows_.shape[last_] - row);
                     const Place place = place_of(at / strips, row);
                     count > 1 ? scan_strip(place, count) : scan_row(place);
                   }
                 });
  }

 private:
  struct Place {
    const char* source;
    char* result;
  };
  Place place_of(std::int64_t outer, std::int64_t row) const {
    std::int64_t from = row * problem_.source.strides[last_];
    std::int64_t to = row * problem_.result.strides[last_];
    for (int axis = last_ - 1; axis >= 0; outer /= rows_.shape[axis--]) {
      const std::int64_t at = outer % rows_.shape[axis];
      from += at * problem_.source.strides[axis];
      to += at * problem_.result.strides[axis];
    }
    return {static_cast<const char*>(problem_.source.data) + from * source_bytes(),
            static_cast<char*>(problem_.result.data) + to * result_bytes()};
  }
  std::int64_t source_bytes() const { return size_in_bytes(problem_.source.dtype); }
  std::int64_t result_bytes() const { return size_in_bytes(problem_.result.dtype); }
  bool sums() const { return problem_.op == ScanOp::kSum; }

  // `count` copies of 0 or 1.
  void begin(char* totals, std::int64_t count) const {
    const bool one = !sums();
    table_.array_convert({&one, totals, DType::kBool, dtype_, 1});
    for (std::int64_t i = 1; i < count; ++i)
      std::memcpy(totals + i * size_, totals, static_cast<std::size_t>(size_));
  }
  void write(const char* totals, char* to, std::int64_t count) const {
    table_.array_convert({totals, to, dtype_, problem_.result.dtype, count});
  }

  void scan_strip(Place place, std::int64_t count) const {
    BlockMemory totals, values;
    const std::int64_t from_step = problem_.source_stride * source_bytes();
    const std::int64_t to_step = problem_.result_stride * result_bytes();
    begin(totals.bytes, count);
    if (problem_.include_initial) {
      write(totals.bytes, place.result, count);
      place.result += to_step;
    }
    const ArrayBlocks add{sums() ? ElementwiseOp::kAdd : ElementwiseOp::kMultiply,
                          dtype_,
                          count,
                          count,
                          totals.bytes,
                          {totals.bytes, values.bytes, nullptr},
                          {0, 0, 0}};
    for (std::int64_t i = 0; i < problem_.length; ++i) {
      // The first element as it is: 0 + -0.0 would lose its sign.
      char* to = i == 0 ? totals.bytes : values.bytes;
      table_.array_convert({place.source, to, problem_.source.dtype, dtype_, count});
      if (i > 0) table_.array_binary(add);
      write(totals.bytes, place.result, count);
      place.source += from_step;
      place.result += to_step;
    }
  }

  void scan_row(Place place) const {
    ArrayDims dims;
    dims.rank = 1;
    dims.shape[0] = problem_.length;
    ArrayOperand source = problem_.source;
    source.data = const_cast<char*>(place.source);
    source.strides[0] = problem_.source_stride;
    ArrayOperand result = problem_.result;
    result.data = place.result;
    result.strides[0] = problem_.result_stride;
    if (problem_.include_initial) {
      BlockMemory initial;
      begin(initial.bytes, 1);
      write(initial.bytes, place.result, 1);
      result.data = place.result + problem_.result_stride * result_bytes();
    }
    switch (dtype_ == DType::kUInt64 ? 0 : size_) {
      case 0: return scan_values<std::uint64_t>(dims, source, result);
      case 4: return scan_values<float>(dims, source, result);
      default: return scan_values<double>(dims, source, result);
    }
  }
  template <class T>
  void scan_values(const ArrayDims& dims, const ArrayOperand& source,
                   const ArrayOperand& result) const {
    const std::int64_t block = kBlockBytes / 8, length = dims.shape[0];
    BlockReader reader(dims, source, dtype_, block, table_);
    BlockWriter writer(dims, result, dtype_, false, table_);
    T total{};
    for (std::int64_t at = 0; at < length; at += block) {
      const std::int64_t count = std::min(block, length - at);
      T* to = static_cast<T*>(writer.begin(at, count));
      const T* x = static_cast<const T*>(reader.read(at, count));
      // The first element as it is: 0 + -0.0 would lose its sign.
      const std::int64_t begin = at == 0 ? 1 : 0;
      if (at == 0) to[0] = total = x[0];
      if (sums()) {
        for (std::int64_t i = begin; i < count; ++i) to[i] = total = total + x[i];
      } else {
        for (std::int64_t i = begin; i < count; ++i) to[i] = total = total * x[i];
      }
      writer.end(at, count, to);
    }
  }

  ArrayScan problem_;
  const ArrayDims rows_;
  const KernelTable& table_;
  const DType dtype_;
  const std::int64_t size_;
  const int last_;
};

}  // namespace

void array_scan(const ArrayScan& problem) { Scan(problem).run(); }

}  // namespace membound::cpu
