// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/soft_cap.cuh"
#include "cuda/softmax_power.cuh"
#include "cuda/tuning/cross_entropy.hpp"
#include "ops/cross_entropy.hpp"

namespace membound::cuda {

// The options as numbers of the kernel's type: a conversion in every thread takes longer than what
// is done with them.
template <class A>
struct CrossEntropyTerms {
  A smoothing, z_loss, dloss;
  A share, each;  // smoothing / cols, 1 / cols
};

struct CrossEntropyParams {
  CrossEntropyProblem problem;
  tuning::SoftmaxConfig config;
  PartArray logits, dlogits;
  bool aligned, staged;
  bool capped;
  bool early;            // rows are read before it is known whether they count
  std::uint32_t absent;  // bits of -infinity
  CrossEntropyTerms<float> narrow;
  CrossEntropyTerms<double> wide;

  template <class A>
  __device__ const CrossEntropyTerms<A>& terms() const {
    if constexpr (sizeof(A) == 4) {
      return narrow;
    } else {
      return wide;
    }
  }
};

template <class A>
CrossEntropyTerms<A> cross_entropy_terms(const CrossEntropyProblem& problem) {
  const CrossEntropyOptions& options = problem.options;
  const auto cols = static_cast<double>(problem.cols);
  return {static_cast<A>(options.label_smoothing), static_cast<A>(options.z_loss),
          static_cast<A>(options.dloss), static_cast<A>(options.label_smoothing / cols),
          static_cast<A>(1 / cols)};
}

// A logit, and what the gradient of it is multiplied by.
template <class T>
__device__ inline SoftCapped<accumulate_t<T>> cross_entropy_logit(const CrossEntropyParams& p,
                                                                  accumulate_t<T> x) {
  using A = accumulate_t<T>;
  if (p.capped) return soft_capped(x, static_cast<A>(p.problem.options.softcap));
  return {x, A(1)};
}

// kEven: rows are evenly spaced. Other rows are a call, for which held numbers would be put away.
template <bool kEven>
__device__ inline std::int64_t row_place(const RowLayout& rows, std::int64_t row) {
  if constexpr (kEven) return row * rows.strides[0];
  return looped_row_offset(rows, row);
}
template <class A, bool kEven>
__device__ inline A row_number(const RowNumbers& numbers, std::int64_t row) {
  return static_cast<const A*>(numbers.data)[row_place<kEven>(numbers.rows, row)];
}
template <bool kEven, class A>
__device__ inline void set_row_number(const RowNumbers& numbers, std::int64_t row, A value) {
  if (numbers.data == nullptr) return;
  A* data = static_cast<A*>(const_cast<void*>(numbers.data));  // the caller's output
  data[row_place<kEven>(numbers.rows, row)] = value;
}

__device__ inline float natural_log(float x) { return logf(x); }
static __device__ __noinline__ double natural_log(double x) { return log(x); }

// The highest logit of a row, the sum of its powers, and that of its logits.
template <class A>
struct RowSums {
  A top, sum, logits;
};

// lse, and the loss where the label's logit is known; 0 where the row is ignored. A difference of
// logits comes before the sum.
template <class T>
struct RowLoss {
  using A = accumulate_t<T>;
  A lse, loss;

  __device__ RowLoss(A known, A found) : lse(known), loss(found) {}
  __device__ RowLoss(const CrossEntropyParams& p, const RowSums<A>& row, A at_label, bool counts) {
    const CrossEntropyTerms<A>& terms = p.terms<A>();
    const A log_of_sum = natural_log(row.sum) - SoftmaxPower<T>::kLogOfShift;
    lse = row.top + log_of_sum;
    loss = product(1 - terms.smoothing, log_of_sum + (row.top - at_label));
    if (terms.smoothing != 0) {
      const A mean = product(row.logits, terms.each);
      loss += product(terms.smoothing, log_of_sum + (row.top - mean));
    }
    if (terms.z_loss != 0) loss += product(terms.z_loss * lse, lse);
    if (!counts) lse = loss = 0;
  }
  template <bool kEven>
  __device__ void store(const CrossEntropyParams& p, std::int64_t row) const {
    set_row_number<kEven>(p.problem.loss, row, loss);
    set_row_number<kEven>(p.problem.lse, row, lse);
  }
};

// Whether a part has the label's column; the first one of an ignored row.
template <class T>
__device__ inline bool has_label(const PartPlace& place, std::int64_t column) {
  const std::int64_t numbers = place.chunks * kPack<T> * place.lanes;
  return (column < 0 ? 0 : column / numbers) == place.part;
}

// A row's sums, from those of its parts in a cluster.
template <class T, class Exchange>
__device__ inline RowSums<accumulate_t<T>> sums_of_cluster(const CrossEntropyParams& p,
                                                           const Exchange& exchange, int parts,
                                                           const RowSums<accumulate_t<T>>& mine) {
  using A = accumulate_t<T>;
  const Pair<A> found = merged<T>(exchange.all({mine.top, mine.sum}), parts);
  RowSums<A> whole{found.a, found.b, 0};
  if (p.terms<A>().smoothing == 0) return whole;
  const Pair<A>* all = exchange.all({mine.logits, A(0)}, 1);
#pragma unroll 1
  for (int i = 0; i < parts; ++i) whole.logits += all[i].a;
  return whole;
}

// What the gradient of a row's loss is multiplied by.
template <class A, bool kEven>
__device__ inline A row_dloss(const CrossEntropyParams& p, std::int64_t row) {
  const RowNumbers& given = p.problem.dloss;
  return given.data != nullptr ? row_number<A, kEven>(given, row) : p.terms<A>().dloss;
}

// What the gradient of a row is made with: of logit l it is (factor * power(l - lse) - less) *
// slope, and `label` less in the column of the label.
template <class T>
struct RowGradient {
  using A = accumulate_t<T>;
  PowersAbout<T> powers;
  A factor, less, label;

  // All zero where the row is ignored.
  __device__ RowGradient(const CrossEntropyParams& p, bool counts, A dloss, A lse, int chunks)
      : powers(lse, 0, chunks) {
    const CrossEntropyTerms<A>& terms = p.terms<A>();
    if (!counts) dloss = 0;
    factor = counts ? dloss * fma(2 * terms.z_loss, lse, A(1)) * powers.factor() : A(0);
    less = product(dloss, terms.share);
    label = product(dloss, 1 - terms.smoothing);
  }
  __device__ A of(A logit) const { return fma(factor, powers.of(logit), -less); }
};

// `sum`, and the first `left` logits of a chunk.
template <class T>
__device__ inline accumulate_t<T> with_logits(accumulate_t<T> sum, const uint4& chunk, int left) {
  const Numbers<T> values = unpack<T>(chunk);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) sum += j < left ? values.at[j] : accumulate_t<T>(0);
  return sum;
}
// The sum of the thread's logits; `left`: columns from the thread's first one on.
template <class T, int kChunks>
__device__ inline accumulate_t<T> sum_of_logits(const uint4 (&raw)[kChunks], int left, int lanes) {
  accumulate_t<T> sum = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) sum = with_logits<T>(sum, raw[i], left - i * lanes * kPack<T>);
  return sum;
}

// Rows of whole aligned chunks without a cap, evenly spaced numbers of rows. A block has several
// narrow rows, one row, or as one of a cluster a part of a row, read once and held. What a row has
// once is for the thread that holds the label's logit. Shared memory: the sums of the warps, and of
// the parts. Limited by memory, with a gradient near to it by two exponentials for each element.
template <class T, int kChunks>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads, kHeldBlocks<kChunks>)
    cross_entropy_held_kernel(const __grid_constant__ CrossEntropyParams p) {
  using A = accumulate_t<T>;
  using Part = HeldPart<T, kChunks>;
  __shared__ typename PartExchange<Pair<A>, 2>::Shared shared;
  // Few chunks: rows that one block holds, but without the code of clusters more is spilled.
  PartPlace place(p.config, sizeof(T) > 2 || kChunks == tuning::kFewChunks);
  const PartExchange<Pair<A>, 2> exchange(shared, place);
  const bool lse_known = p.problem.loss.data == nullptr;
  if (!lse_known) exchange.start();
  begin_overlapped();
  const bool has_row = place.take_row(p.problem.rows);
  const TokenIntegers& labels = p.problem.labels;
  const std::int64_t label = labels.at(row_place<true>(labels.tokens, place.row));
  const bool reads = p.early || p.problem.column(label) >= 0;
  const Part logits(p.logits, place, reads ? p.problem.cols : 0);
  uint4 raw[kChunks];
  logits.read(raw, p.absent);
  const int column = static_cast<int>(p.problem.column(label));
  const bool counts = column >= 0;
  if (p.early && !counts) fill(raw, filled<T>(p.absent));
  RowSums<A> sums{SoftmaxPower<T>::lowest(), 0, 0};
  if (!lse_known) {
    sums.top = highest_of_lanes(highest<T>(raw), place.lanes);
    sums.sum = sum_of_powers<T>(raw, sums.top);
    if (p.terms<A>().smoothing != 0) {
      const int left = static_cast<int>(counts ? p.problem.cols : 0) - logits.index(0) * kPack<T>;
      sums.logits = place.reduce(sum_of_logits<T>(raw, left, place.lanes), 0, Sum());
    }
  }
  // What few threads need is asked for here, to arrive while they wait for the barrier.
  place.locate();
  place.take_row(p.problem.rows);
  const Part again(p.logits, place, p.problem.cols);
  const bool owns_label = has_row && counts && again.has(column);
  const A at_label = owns_label ? to_number(again.row()[column]) : A(0);
  const A dloss = p.problem.dlogits == nullptr ? A(0) : row_dloss<A, true>(p, place.row);
  A lse = lse_known ? row_number<A, true>(p.problem.lse, place.row) : A(0);
  A loss = 0;
  if (!lse_known) {
    const Pair<A> part = merged_lanes<T>(place, sums.top, sums.sum, 0);
    sums.top = part.a;
    sums.sum = part.b;
    if (place.parts > 1) sums = sums_of_cluster<T>(p, exchange, place.parts, sums);
    const RowLoss<T> of_row(p, sums, at_label, counts);
    loss = of_row.loss;
    lse = of_row.lse;
  }
  const bool stores = owns_label || (has_row && !counts && again.index(0) == 0);
  if (stores && !lse_known) RowLoss<T>{lse, loss}.template store<true>(p, place.row);
  if (p.problem.dlogits == nullptr) return;
  const RowGradient<T> gradient(p, counts, dloss, lse, kChunks);
  const T of_label = from_number<T>(gradient.of(at_label) - gradient.label);
  forget_numbers(raw);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    Numbers<T> dl = unpack<T>(raw[i]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) dl.at[j] = gradient.of(dl.at[j]);
    raw[i] = pack<T>(dl);
  }
  Part(p.dlogits, place, has_row ? p.problem.cols : 0)
      .write(raw, owns_label ? column : -1, of_label);
}

// The rows of a block, their parts and what is read of them.
template <class T>
class CrossEntropyRow {
  using A = accumulate_t<T>;

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
  __device__ A at_label() const {  // 0 where there is none
    if (column_ < 0) return 0;
    const T* row = p_.logits.row<const T>(place_.row);
    return cross_entropy_logit<T>(p_,
                                  number_any(row[column_ * p_.logits.col_stride], p_.problem.dtype))
        .value;
  }
  __device__ void copy_in(std::int64_t part) const { logits_.copy_in(part, read_); }

  // The sums of a part.
  __device__ RowSums<A> sums(std::int64_t part, int round) const {
    const int chunks = place_.chunks;
    RowSums<A> found{SoftmaxPower<T>::lowest(), 0, 0};
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) found.top = Highest()(found.top, highest(logits(part, i)));
    found.top = highest_of_lanes(found.top, place_.lanes);
    const bool smooths = p_.terms<A>().smoothing != 0;
    const PowersAbout<T> powers = powers_about_top<T>(found.top, chunks);
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      Numbers<T> values = logits(part, i);
      if (smooths) {
        const std::int64_t left = read_ - place_.chunk(part, i) * kPack<T>;
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) found.logits += j < left ? values.at[j] : A(0);
      }
      found.sum += powers.sum(values);
    }
    found.sum = product(found.sum, powers.factor());
    if (smooths) found.logits = place_.reduce(found.logits, round, Sum());
    const Pair<A> both = merged_lanes<T>(place_, found.top, found.sum, round);
    return {both.a, both.b, found.logits};
  }
  __device__ void write(std::int64_t part, const RowGradient<T>& gradient) const {
#pragma unroll 1
    for (int i = 0; i < place_.chunks; ++i) {
      const std::int64_t first = place_.chunk(part, i) * kPack<T>;
      Numbers<T> values = unpack_any<T>(logits_.chunk(part, i, read_), p_.problem.dtype);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const SoftCapped<A> logit = cross_entropy_logit<T>(p_, values.at[j]);
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
    const std::int64_t left = read_ - place_.chunk(part, i) * kPack<T>;
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
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<Pair<A>, 2>::Shared shared;
  __shared__ typename PartGroup<T>::Shared group_slots;
  PartPlace place(p.config);
  const PartExchange<Pair<A>, 2> exchange(shared, place);
  const bool lse_known = p.problem.loss.data == nullptr;
  if (!lse_known) exchange.start();
  begin_overlapped();
  const bool has_row = place.take_row(p.problem.rows);
  const CrossEntropyRow<T> row(p, place, has_row, p.staged ? staged : nullptr);
  const A at_label = row.at_label();  // before it is written over
  const std::int64_t parts = place.parts == p.config.parts ? 1 : p.config.parts;
  PartGroup<T> group(group_slots, place);
  RowSums<A> whole{SoftmaxPower<T>::lowest(), 0, 0};
  A lse = 0;
  if (lse_known) {
    lse = row_number<A, false>(p.problem.lse, place.row);
  } else {
#pragma unroll 1
    for (std::int64_t step = 0; step < parts; ++step) {
      row.copy_in(place.part + step);
      const RowSums<A> part = row.sums(place.part + step, static_cast<int>(step & 1));
      Pair<A> both(part.top, part.sum);
      if (parts > 1) both = group.with(both, step + 1 == parts);
      whole = {both.a, both.b, whole.logits + part.logits};
    }
    if (place.parts > 1) whole = sums_of_cluster<T>(p, exchange, place.parts, whole);
    const RowLoss<T> of_row(p, whole, at_label, row.column() >= 0);
    const bool owns = parts > 1 || has_label<T>(place, row.column());
    if (place.lane == 0 && has_row && owns) of_row.template store<false>(p, place.row);
    lse = of_row.lse;
  }
  if (p.problem.dlogits == nullptr) return;
  const A dloss = row_dloss<A, false>(p, place.row);
  const RowGradient<T> gradient(p, row.column() >= 0, dloss, lse, place.chunks);
#pragma unroll 1
  for (std::int64_t step = 0; step < parts; ++step) {
    if (parts > 1 || lse_known) row.copy_in(place.part + step);
    row.write(place.part + step, gradient);
  }
}

}  // namespace membound::cuda
