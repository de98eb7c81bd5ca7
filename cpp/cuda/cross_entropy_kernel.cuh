// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/softmax_power.cuh"
#include "cuda/tuning/cross_entropy.hpp"
#include "ops/cross_entropy.hpp"

namespace membound::cuda {

struct CrossEntropyParams {
  CrossEntropyProblem problem;
  tuning::SoftmaxConfig config;
  PartArray logits, dlogits;
  bool aligned, staged;
  bool capped;
  std::uint32_t absent;  // 32 bits of elements that are -infinity
};

// softcap * tanh(x / softcap), and its slope.
template <class A>
struct CappedLogit {
  A value, slope;
};
// With e = exp(-2 |u|) tanh is (1 - e) / (1 + e), and its slope 4 e / (1 + e)^2. Out of line: few
// models cap, and code is long.
template <class A>
__device__ __noinline__ CappedLogit<A> capped_logit(A x, A cap) {
  const A u = x / cap, less = expm1(-2 * (u < 0 ? -u : u));  // e - 1
  const A value = -less / (2 + less), slope = 4 * (1 + less) / ((2 + less) * (2 + less));
  return {cap * (u < 0 ? -value : value), slope};
}

// A logit, and what the gradient of it is multiplied by.
template <class T>
__device__ inline CappedLogit<accumulate_t<T>> cross_entropy_logit(const CrossEntropyParams& p,
                                                                   accumulate_t<T> x) {
  using A = accumulate_t<T>;
  if (p.capped) return capped_logit(x, static_cast<A>(p.problem.options.softcap));
  return {x, A(1)};
}

template <class A>
__device__ inline A row_number(const RowNumbers& numbers, std::int64_t row) {
  return static_cast<const A*>(numbers.data)[looped_row_offset(numbers.rows, row)];
}
template <class A>
__device__ inline void set_row_number(const RowNumbers& numbers, std::int64_t row, A value) {
  if (numbers.data == nullptr) return;
  A* data = static_cast<A*>(const_cast<void*>(numbers.data));  // the caller's output
  data[looped_row_offset(numbers.rows, row)] = value;
}

__device__ inline float natural_log(float x) { return logf(x); }
static __device__ __noinline__ double natural_log(double x) { return log(x); }

// The highest logit of a row, the sum of its powers, and that of its logits.
template <class A>
struct RowSums {
  A top, sum, logits;
};

// lse, and the loss where the label's logit is known. A difference of logits comes before the sum.
template <class T>
struct RowLoss {
  using A = accumulate_t<T>;
  A lse, loss;

  __device__ RowLoss(const CrossEntropyParams& p, const RowSums<A>& row, A at_label) {
    const CrossEntropyOptions& options = p.problem.options;
    const A log_of_sum = natural_log(row.sum) - SoftmaxPower<T>::kLogOfShift;
    const A smoothing = static_cast<A>(options.label_smoothing);
    lse = row.top + log_of_sum;
    loss = (1 - smoothing) * (log_of_sum + (row.top - at_label));
    if (smoothing != 0) {
      const A mean = row.logits / static_cast<A>(p.problem.cols);
      loss += smoothing * (log_of_sum + (row.top - mean));
    }
    if (options.z_loss != 0) loss += static_cast<A>(options.z_loss) * lse * lse;
  }
};

// Whether a part has the label's column; the first one of an ignored row.
template <class T>
__device__ inline bool has_label(const PartPlace& place, std::int64_t column) {
  const std::int64_t numbers = kHeldNumbers<T> * place.lanes;
  return (column < 0 ? 0 : column / numbers) == place.part;
}

// A row's sums, from those of its parts in a cluster.
template <class T, class Exchange>
__device__ inline RowSums<accumulate_t<T>> sums_of_cluster(const Exchange& exchange, int parts,
                                                           const RowSums<accumulate_t<T>>& mine) {
  using A = accumulate_t<T>;
  const Pair<A> found = merged<T>(exchange.all({mine.top, mine.sum}), parts);
  const Pair<A>* all = exchange.all({mine.logits, A(0)}, 1);
  RowSums<A> whole{found.a, found.b, 0};
#pragma unroll 1
  for (int i = 0; i < parts; ++i) whole.logits += all[i].a;
  return whole;
}

// Stores what a row comes to, by one thread; returns its lse.
template <class T>
__device__ inline accumulate_t<T> take_loss(const CrossEntropyParams& p, std::int64_t row,
                                            std::int64_t column, bool stores,
                                            const RowSums<accumulate_t<T>>& sums,
                                            accumulate_t<T> at_label) {
  RowLoss<T> found(p, sums, at_label);
  if (column < 0) found.lse = found.loss = 0;
  if (stores) {
    set_row_number(p.problem.loss, row, found.loss);
    set_row_number(p.problem.lse, row, found.lse);
  }
  return found.lse;
}

// What the gradient of a row is made with: of logit l it is (factor * power(l - lse) - less) *
// slope, and `label` less in the column of the label.
template <class T>
struct RowGradient {
  using A = accumulate_t<T>;
  A lse, factor, less, label;

  RowGradient() = default;
  // All zero where the row is ignored.
  __device__ RowGradient(const CrossEntropyParams& p, std::int64_t row, std::int64_t column,
                         A lse_of_row)
      : lse(lse_of_row), factor(0), less(0), label(0) {
    if (column < 0) return;
    const CrossEntropyOptions& options = p.problem.options;
    const RowNumbers& given = p.problem.dloss;
    const A dloss =
        given.data != nullptr ? row_number<A>(given, row) : static_cast<A>(options.dloss);
    const A smoothing = static_cast<A>(options.label_smoothing);
    factor = dloss * fma(2 * static_cast<A>(options.z_loss), lse, A(1));
    less = dloss * smoothing / static_cast<A>(p.problem.cols);
    label = dloss * (1 - smoothing);
  }
  __device__ A of(A logit) const { return fma(factor, SoftmaxPower<T>::of(logit - lse), -less); }
};

// Rows of neighbours without a cap. A block has several narrow rows, one row, or as one of a
// cluster a part of a row, read once and held. Shared memory: the sums of the warps, and of the
// parts, and gradients of rows that are not aligned. Limited by memory, with a gradient near to it
// by two exponentials for each element.
template <class T, Access kAccess>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads, kHeldBlocks<T>)
    cross_entropy_held_kernel(const __grid_constant__ CrossEntropyParams p) {
  using A = accumulate_t<T>;
  constexpr int kChunks = kHeldChunks<T>;
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<Pair<A>, 2>::Shared shared;
  __shared__ RowGradient<T> of_row;
  PartPlace place(p.config);
  const PartExchange<Pair<A>, 2> exchange(shared, place);
  const bool lse_known = p.problem.loss.data == nullptr;
  if (!lse_known) exchange.start();
  begin_overlapped();
  const bool has_row = place.take_row(p.problem.rows);
  const TokenIntegers& labels = p.problem.labels;
  const std::int64_t column =
      p.problem.column(labels.at(looped_row_offset(labels.tokens, place.row)));
  const std::int64_t read = column < 0 ? 0 : p.problem.cols;
  const int first = static_cast<int>(place.chunk<T>(place.part, 0));
  const HeldPart<T, kAccess> logits(p.logits, place, read);
  uint4 raw[kChunks];
  logits.read(raw, p.absent);
  const A at_label =
      column < 0 ? A(0) : to_number(logits.row()[column]);  // before it is written over
  RowSums<A> sums{SoftmaxPower<T>::lowest(), 0, 0};
  if (!lse_known) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) sums.top = Highest()(sums.top, highest(unpack<T>(raw[i])));
    sums.top = place.reduce(sums.top, 0, Highest());
    forget_numbers(raw);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      Numbers<T> powers = unpack<T>(raw[i]);
      sums.sum += take_powers(powers, sums.top);
    }
    sums.sum = place.reduce(sums.sum, 1, Sum());
    if (p.problem.options.label_smoothing != 0) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int at = (first + i * place.lanes) * kPack<T>;
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) {
          sums.logits += at + j < read ? unpack<T>(raw[i]).at[j] : A(0);
        }
      }
      sums.logits = place.reduce(sums.logits, 2, Sum());
    }
  }
  const RowGradient<T> gradient = place.once(of_row, [&] {
    A lse;
    if (lse_known) {
      lse = row_number<A>(p.problem.lse, place.row);
    } else {
      if (place.parts > 1) sums = sums_of_cluster<T>(exchange, place.parts, sums);
      const bool stores = place.lane == 0 && has_row && has_label<T>(place, column);
      lse = take_loss<T>(p, place.row, column, stores, sums, at_label);
    }
    return RowGradient<T>(p, place.row, column, lse);
  });
  if (p.problem.dlogits == nullptr) return;
  forget_numbers(raw);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    Numbers<T> dl = unpack<T>(raw[i]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) dl.at[j] = gradient.of(dl.at[j]);
    const std::int64_t label = column - std::int64_t{first + i * place.lanes} * kPack<T>;
    if (label >= 0 && label < kPack<T>) {  // in this chunk
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) dl.at[j] -= j == label ? gradient.label : A(0);
    }
    raw[i] = pack<T>(dl);
  }
  HeldPart<T, kAccess>(p.dlogits, place, has_row ? p.problem.cols : 0).write(raw, staged);
}

// The rows of a block, their parts and what is read of them.
template <class T>
class CrossEntropyRow {
  using A = accumulate_t<T>;
  static constexpr int kChunks = kHeldChunks<T>;

 public:
  __device__ CrossEntropyRow(const CrossEntropyParams& p, const PartPlace& place, bool has_row,
                             uint4* staged)
      : p_(p),
        place_(place),
        column_(p.problem.column(
            p.problem.labels.at(looped_row_offset(p.problem.labels.tokens, place.row)))),
        read_(column_ < 0 ? 0 : p.problem.cols),
        written_(has_row ? p.problem.cols : 0),
        logits_(p.logits, p.aligned, place, staged),
        dlogits_(p.dlogits, p.aligned, place, staged) {}

  __device__ std::int64_t column() const { return column_; }
  // 0 where there is none.
  __device__ A at_label() const {
    if (column_ < 0) return 0;
    const T* row = p_.logits.row<const T>(place_.row);
    return cross_entropy_logit<T>(p_,
                                  number_any(row[column_ * p_.logits.col_stride], p_.problem.dtype))
        .value;
  }
  __device__ void copy_in(std::int64_t part) const { logits_.copy_in(part, read_); }

  // The sums of a part.
  __device__ RowSums<A> sums(std::int64_t part, int& round) const {
    RowSums<A> found{SoftmaxPower<T>::lowest(), 0, 0};
#pragma unroll 1
    for (int i = 0; i < kChunks; ++i) found.top = Highest()(found.top, highest(logits(part, i)));
    found.top = place_.reduce(found.top, round++, Highest());
    const bool smooths = p_.problem.options.label_smoothing != 0;
#pragma unroll 1
    for (int i = 0; i < kChunks; ++i) {
      Numbers<T> values = logits(part, i);
      if (smooths) {
        const std::int64_t left = read_ - place_.chunk<T>(part, i) * kPack<T>;
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) found.logits += j < left ? values.at[j] : A(0);
      }
      found.sum += take_powers(values, found.top);
    }
    found.sum = place_.reduce(found.sum, round++, Sum());
    if (smooths) found.logits = place_.reduce(found.logits, round++, Sum());
    return found;
  }
  __device__ void write(std::int64_t part, const RowGradient<T>& gradient) const {
#pragma unroll 1
    for (int i = 0; i < kChunks; ++i) {
      const std::int64_t first = place_.chunk<T>(part, i) * kPack<T>;
      Numbers<T> values = unpack_any<T>(logits_.chunk(part, i, read_), p_.problem.dtype);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const CappedLogit<A> logit = cross_entropy_logit<T>(p_, values.at[j]);
        const A dl = gradient.of(logit.value) - (first + j == column_ ? gradient.label : A(0));
        values.at[j] = product(dl, logit.slope);
      }
      dlogits_.put(part, i, written_, pack_any<T>(values, p_.problem.dtype));
    }
    dlogits_.copy_out(part, written_);
  }

 private:
  // -infinity behind the row.
  __device__ Numbers<T> logits(std::int64_t part, int i) const {
    const std::int64_t left = read_ - place_.chunk<T>(part, i) * kPack<T>;
    Numbers<T> values = unpack_any<T>(logits_.chunk(part, i, read_), p_.problem.dtype);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const A found = cross_entropy_logit<T>(p_, values.at[j]).value;
      values.at[j] = j < left ? found : SoftmaxPower<T>::lowest();
    }
    return values;
  }

  const CrossEntropyParams& p_;
  const PartPlace& place_;
  std::int64_t column_, read_, written_;
  StagedPart<T> logits_, dlogits_;
};

// Any rows, to the bits of the other kernel; T: Float16 for bfloat16, too. A block has several
// narrow rows, one row, a part of one as one of a cluster, or one row part after part, which it
// then reads twice where there is a gradient; with lse known, each once. Shared memory: a part of
// each row, the sums of the warps and of a group of parts. Limited by memory: wide rows of 16 bits
// near to it by instructions, with a gradient two exponentials for each element.
template <class T>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads)
    cross_entropy_any_kernel(const __grid_constant__ CrossEntropyParams p) {
  using A = accumulate_t<T>;
  constexpr int kGroup = tuning::kSoftmaxGroup;
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<Pair<A>, 2>::Shared shared;
  __shared__ alignas(16) Pair<A> group[kGroup];
  PartPlace place(p.config);
  const PartExchange<Pair<A>, 2> exchange(shared, place);
  const bool lse_known = p.problem.loss.data == nullptr;
  if (!lse_known) exchange.start();
  begin_overlapped();
  const bool has_row = place.take_row(p.problem.rows);
  const CrossEntropyRow<T> row(p, place, has_row, p.staged ? staged : nullptr);
  const A at_label = row.at_label();  // before it is written over
  const std::int64_t parts = place.parts == p.config.parts ? 1 : p.config.parts;
  int round = 0;
  RowSums<A> whole{SoftmaxPower<T>::lowest(), 0, 0};
  A lse = 0;
  if (lse_known) {
    lse = row_number<A>(p.problem.lse, place.row);
  } else {
#pragma unroll 1
    for (std::int64_t step = 0; step < parts; ++step) {
      row.copy_in(place.part + step);
      const RowSums<A> part = row.sums(place.part + step, round);
      if (parts == 1) {
        whole = part;
        continue;
      }
      whole.logits += part.logits;
      const int at = static_cast<int>(step % kGroup);
      if (place.lane == 0) group[at] = {part.top, part.sum};
      if (at + 1 < kGroup && step + 1 < parts) continue;
      __syncthreads();
      const Pair<A> both[2] = {{whole.top, whole.sum}, merged<T>(group, at + 1)};
      const Pair<A> found = step < kGroup ? both[1] : merged<T>(both, 2);
      whole.top = found.a;
      whole.sum = found.b;
      __syncthreads();
    }
    if (place.parts > 1) whole = sums_of_cluster<T>(exchange, place.parts, whole);
    const bool owns = parts > 1 || has_label<T>(place, row.column());
    const bool stores = place.lane == 0 && has_row && owns;
    lse = take_loss<T>(p, place.row, row.column(), stores, whole, at_label);
  }
  if (p.problem.dlogits == nullptr) return;
  const RowGradient<T> gradient(p, place.row, row.column(), lse);
#pragma unroll 1
  for (std::int64_t step = 0; step < parts; ++step) {
    if (parts > 1 || lse_known) row.copy_in(place.part + step);
    row.write(place.part + step, gradient);
  }
}

}  // namespace membound::cuda
