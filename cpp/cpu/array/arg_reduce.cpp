// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/dispatch.hpp"
#include "cpu/array/blocks.hpp"
#include "cpu/array/reduce.hpp"
#include "cpu/pairwise.hpp"
#include "cpu/parallel.hpp"
#include "ops/array/operands.hpp"

namespace membound::cpu {

namespace {

template <class T>
bool is_nan(T value) {
  return value != value;
}

// Where the first extreme value of a part is, or its first NaN.
template <class T>
struct Found {
  T value;
  std::int64_t index;

  // Whether a later part's value replaces this one.
  bool loses_to(T other, bool smallest) const {
    if (is_nan(value)) return false;
    return is_nan(other) || (smallest ? other < value : other > value);
  }
};

template <class T>
class ArgReduction {
 public:
  explicit ArgReduction(const ArrayReduction& problem)
      : problem_(problem),
        smallest_(problem.op == ReduceOp::kArgMin),
        outputs_(problem.kept.size()),
        count_(problem.reduced.size()),
        chunks_((count_ + kChunk - 1) / kChunk),
        dtype_(kernel_dtype(problem.source.dtype)),
        source_(problem.source),
        found_(static_cast<std::size_t>(chunks_ * outputs_)) {
    dims_ = problem.kept;
    for (int axis = 0; axis < problem.reduced.rank; ++axis) {
      dims_.shape[dims_.rank] = problem.reduced.shape[axis];
      source_.strides[dims_.rank++] = problem.reduced_strides[axis];
    }
    dims_ = at_least_one(dims_);
  }

  void run() {
    const std::int64_t grain = std::max<std::int64_t>(2 * kChunk / count_, 1);
    parallel_for(chunks_ * outputs_, grain, [&](std::int64_t first, std::int64_t last) {
      BlockReader reader(dims_, source_, dtype_, kTreeBlock, kernels());
      for (std::int64_t at = first; at < last; ++at) {
        const std::int64_t begin = at % chunks_ * kChunk;
        Found<T>& found = found_[static_cast<std::size_t>(at)];
        found = search(reader, at / chunks_, begin, std::min(begin + kChunk, count_));
        if (chunks_ == 1) found.index += place_in_block(reader, at, found);
      }
    });
    parallel_for(outputs_, chunks_ > 1 ? 16 : 16 << 10, [&](std::int64_t first, std::int64_t last) {
      BlockReader reader(dims_, source_, dtype_, kTreeBlock, kernels());
      for (std::int64_t output = first; output < last; ++output) {
        Found<T> best = best_of_chunks(output);
        if (chunks_ > 1) best.index += place_in_block(reader, output, best);
        scatter_elements(kept_, problem_.result, output, 1, &best.index);
      }
    });
  }

 private:
  static constexpr std::int64_t kDirectBlock = (16 << 10) / sizeof(T);  // stays in the L1 cache

  static std::int64_t block_of(const BlockReader& reader) {
    return reader.is_direct() ? kDirectBlock : kTreeBlock;
  }
  // The extreme value of a chunk, and where its block begins.
  Found<T> search(BlockReader& reader, std::int64_t output, std::int64_t first,
                  std::int64_t last) const {
    const std::int64_t block = block_of(reader);
    Found<T> best{T(), -1};
    for (std::int64_t at = first; at < last; at += block) {
      const std::int64_t count = std::min(block, last - at);
      T extreme;
      kernels().array_reduce_rows({smallest_ ? ElementwiseOp::kMinimum : ElementwiseOp::kMaximum,
                                   dtype_, reader.read(output * count_ + at, count), 1, 0, count,
                                   &extreme});
      if (best.index < 0 || best.loses_to(extreme, smallest_)) best = {extreme, at};
    }
    return best;
  }
  std::int64_t place_in_block(BlockReader& reader, std::int64_t output, Found<T> best) const {
    const std::int64_t count = std::min(block_of(reader), count_ - best.index);
    const void* values = reader.read(output * count_ + best.index, count);
    return place_of(best.value, static_cast<const T*>(values), count);
  }
  // Where the first of the values is that equals the extreme one, or is a NaN as it is.
  std::int64_t place_of(T extreme, const T* values, std::int64_t count) const {
    constexpr std::int64_t kStep = 64, kAtOnce = 4 * kStep;
    T repeated[kStep];
    std::fill_n(repeated, kStep, extreme);
    bool matches[kAtOnce];
    const DType dtype = dtype_ == DType::kBool ? DType::kUInt8 : unsigned_of(dtype_);
    for (std::int64_t at = 0;; at += kAtOnce) {
      const std::int64_t left = std::min(kAtOnce, count - at);
      ArrayBlocks compare{
          ElementwiseOp::kEqual, dtype, left, kStep, matches, {values + at, repeated, nullptr},
          {kStep, 0, 0}};
      if (is_nan(extreme)) {
        compare.op = ElementwiseOp::kNotEqual;
        compare.inputs[1] = values + at;
        compare.advance[1] = kStep;
      }
      kernels().array_binary(compare);
      const void* first = std::memchr(matches, 1, static_cast<std::size_t>(left));
      if (first != nullptr) return at + (static_cast<const bool*>(first) - matches);
    }
  }
  Found<T> best_of_chunks(std::int64_t output) const {
    const Found<T>* parts = &found_[static_cast<std::size_t>(output * chunks_)];
    Found<T> best = parts[0];
    for (std::int64_t chunk = 1; chunk < chunks_; ++chunk) {
      if (best.loses_to(parts[chunk].value, smallest_)) best = parts[chunk];
    }
    return best;
  }

  const ArrayReduction& problem_;
  const bool smallest_;
  const std::int64_t outputs_, count_, chunks_;
  const DType dtype_;
  ArrayOperand source_;
  ArrayDims dims_, kept_ = at_least_one(problem_.kept);
  std::vector<Found<T>> found_;
};

}  // namespace

void array_arg_reduce(const ArrayReduction& problem) {
  dispatch_plain(kernel_dtype(problem.source.dtype), "argmax",
                 [&]<class T>() { ArgReduction<T>(problem).run(); });
}

}  // namespace membound::cpu
