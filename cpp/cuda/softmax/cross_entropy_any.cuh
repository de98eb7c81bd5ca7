// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Generic cross-entropy kernel: any row layout, width and option.
#include "cuda/softmax/cross_entropy_kernel.cuh"

namespace membound::cuda {

// Class weight of a column; 1 if there are no weights or the column is negative.
template <class A>
static __device__ __noinline__ A column_weight(const ClassWeights& weights, std::int64_t column) {
  if (weights.data == nullptr || column < 0) return 1;
  const std::int64_t at = column * weights.stride;
  switch (weights.dtype) {
    case DType::kFloat16: return to_number(static_cast<const Float16*>(weights.data)[at]);
    case DType::kBFloat16: return to_number(static_cast<const BFloat16*>(weights.data)[at]);
    case DType::kFloat32: return static_cast<const float*>(weights.data)[at];
    default: return static_cast<A>(static_cast<const double*>(weights.data)[at]);
  }
}
// Class weight of a row's label: 0 if the label is ignored, NaN if it is out of range.
template <class A>
__device__ inline A label_weight(const CrossEntropyProblem& p, std::int64_t row) {
  const std::int64_t column = p.column(p.labels.at(looped_row_offset(p.labels.tokens, row)));
  return column < 0 ? absent_number<A>(column) : column_weight<A>(p.weight, column);
}

// A logit and its column, for argmax: NaN is larger than any number, and the first of equal logits
// wins.
template <class A>
struct Candidate {
  A logit;
  std::int64_t column;  // negative: none

  __device__ bool loses_to(const Candidate& other) const {
    if (other.column < 0) return false;
    if (column < 0) return true;
    const bool nan = logit != logit, other_nan = other.logit != other.logit;
    if (nan != other_nan) return other_nan;
    if (nan || logit == other.logit) return other.column < column;
    return logit < other.logit;
  }
};
struct FirstLargest {
  template <class Value>
  static __device__ Value zero() {
    return {0, -1};
  }
  template <class A>
  __device__ Candidate<A> operator()(const Candidate<A>& a, const Candidate<A>& b) const {
    return a.loses_to(b) ? b : a;
  }
};
template <class A>
__device__ inline Candidate<A> shuffle_xor(Candidate<A> value, int offset) {
  return {shuffle_xor(value.logit, offset), shuffle_xor(value.column, offset)};
}

// Argmax of a row from the parts in its cluster. Column indices travel as floating-point numbers,
// which is exact because a cluster's rows are narrow enough.
template <class A, class Exchange>
__device__ inline Candidate<A> largest_of_cluster(const Exchange& exchange, int parts,
                                                  const Candidate<A>& mine) {
  const Pair<A>* all = exchange.all({mine.logit, static_cast<A>(mine.column)}, 2);
  Candidate<A> found{0, -1};
#pragma unroll 1
  for (int i = 0; i < parts; ++i) {
    found = FirstLargest()(found, {all[i].a, static_cast<std::int64_t>(all[i].b)});
  }
  return found;
}
struct EntropySum : Sum {};  // has slots of its own in reduce_block
// Sum of exponentials below `top`, and of these times the distance of their logits from it: by the
// latter over the former the row's entropy exceeds log(sum).
template <class T>
struct EntropySums {
  using A = accumulate_t<T>;
  A top = SoftmaxPower<T>::lowest(), powers = 0, distances = 0;

  __device__ EntropySums below(A higher) const {
    if (powers == 0 || top == higher) return {higher, powers, distances};
    const A power = SoftmaxPower<T>::of(top - higher);
    return {higher, power * powers, power * fma(powers, higher - top, distances)};
  }
  __device__ void add(EntropySums other) {
    const A highest = Highest()(top, other.top);
    *this = below(highest);
    other = other.below(highest);
    powers += other.powers;
    distances += other.distances;
  }
};

// Sums of a row's entropy, all below one maximum, from the parts in its cluster.
template <class T, class Exchange>
__device__ inline EntropySums<T> entropy_of_cluster(const Exchange& exchange, int parts,
                                                    EntropySums<T> mine) {
  const Pair<accumulate_t<T>>* all = exchange.all({mine.powers, mine.distances}, 3);
  mine.powers = mine.distances = 0;
#pragma unroll 1
  for (int i = 0; i < parts; ++i) {
    mine.powers += all[i].a;
    mine.distances += all[i].b;
  }
  return mine;
}
__device__ inline void set_prediction(const TokenIntegers& predictions, std::int64_t row,
                                      std::int64_t column) {
  if (predictions.data == nullptr) return;
  const std::int64_t at = looped_row_offset(predictions.tokens, row);
  void* const data = const_cast<void*>(predictions.data);  // the caller's output
  if (predictions.wide) {
    static_cast<std::int64_t*>(data)[at] = column;
  } else {
    static_cast<std::int32_t*>(data)[at] = static_cast<std::int32_t>(column);
  }
}

// The row parts that a block works on, and what it reads of them.
template <class T>
class CrossEntropyRow {
  using A = accumulate_t<T>;

 public:
  __device__ CrossEntropyRow(const CrossEntropyParams& p, const PartPosition& position,
                             bool has_row, uint4* staged)
      : p_(p),
        position_(position),
        column_(p.problem.column(
            p.problem.labels.at(looped_row_offset(p.problem.labels.tokens, position.row)))),
        read_(column_ < 0 ? 0 : p.problem.cols),
        written_(has_row ? p.problem.cols : 0),
        logits_(p.logits, p.aligned, position, staged),
        dlogits_(p.dlogits, p.aligned, position, staged) {}

  __device__ std::int64_t column() const { return column_; }
  __device__ A at_label() const {  // 0 without a label
    if (column_ < 0) return 0;
    const T* row = p_.logits.row<const T>(position_.row);
    return cross_entropy_logit<T>(p_,
                                  number_any(row[column_ * p_.logits.col_stride], p_.problem.dtype))
        .value;
  }
  // Sum of the class weights over all columns, added part by part as in sums(). Every block
  // computes it.
  __device__ A all_weights() const {
    if (!p_.weighs_columns) return static_cast<A>(p_.problem.cols);
    A sum = 0;
#pragma unroll 1
    for (std::int64_t part = 0; part < p_.config.parts; ++part) {
      sum += weights(part, static_cast<int>(part & 1));
    }
    return sum;
  }
  __device__ void copy_in(std::int64_t part) const { logits_.copy_in(part, read_); }

  // Maximum, sum of exponentials and label-smoothing sums of one part.
  __device__ RowSums<A> sums(std::int64_t part, int round) const {
    const int vectors = position_.vectors;
    RowSums<A> found{SoftmaxPower<T>::lowest(), 0, 0, 0};
#pragma unroll 1
    for (int i = 0; i < vectors; ++i) found.top = Highest()(found.top, highest(logits(part, i)));
    found.top = highest_of_lanes(found.top, position_.lanes);
    const ShiftedExponentials<T> powers = exponentials_below_top<T>(found.top, vectors);
#pragma unroll 1
    for (int i = 0; i < vectors; ++i) found.sum += powers.sum(logits(part, i));
    found.sum = product(found.sum, powers.factor());
    const Pair<A> both = merged_lanes<T>(position_, found.top, found.sum, round);
    found.top = both.a;
    found.sum = both.b;
    if (p_.terms<A>().smoothing != 0) {
      const A mine = distances(part, SoftmaxPower<T>::exponent_shift(found.top));
      found.distances = position_.reduce(mine, 0, Sum());
      found.weights = weights(part, 1);
    }
    return found;
  }
  // sums: what sums() returned for the part.
  __device__ EntropySums<T> entropy_sums(std::int64_t part, int round,
                                         const RowSums<A>& sums) const {
    const ShiftedExponentials<T> powers = exponentials_below_top<T>(sums.top, position_.vectors);
    const A top = SoftmaxPower<T>::exponent_shift(sums.top);
    A sum = 0;
#pragma unroll 1
    for (int i = 0; i < position_.vectors; ++i) {
      Numbers<T> terms = logits(part, i);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const A power = powers.of(terms.at[j]);
        terms.at[j] = power == 0 ? A(0) : power * (top - terms.at[j]);  // 0 for -infinity
      }
      sum += reduce_array<kPack<T>>(terms.at, Sum());
    }
    return {sums.top, sums.sum,
            position_.reduce(product(sum, powers.factor()), round, EntropySum())};
  }
  // Argmax of a part, on logits as stored (before any soft cap).
  __device__ Candidate<A> largest(std::int64_t part, int round) const {
    Candidate<A> mine{0, -1};
#pragma unroll 1
    for (int i = 0; i < position_.vectors; ++i) {
      const std::int64_t first = position_.vector(part, i) * kPack<T>;
      const Numbers<T> values = numbers(part, i);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const Candidate<A> other{values.at[j], first + j < read_ ? first + j : -1};
        mine = FirstLargest()(mine, other);
      }
    }
    return position_.reduce(mine, round, FirstLargest());
  }
  template <bool kEntropy>
  __device__ void write(std::int64_t part, const RowGradient<T>& gradient) const {
#pragma unroll 1
    for (int i = 0; i < position_.vectors; ++i) {
      const std::int64_t first = position_.vector(part, i) * kPack<T>;
      Numbers<T> values = numbers(part, i);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const SoftCapped<A> logit = cross_entropy_logit<T>(p_, values.at[j]);
        const bool weighs = p_.weighs_columns && first + j < p_.problem.cols;
        const A weight = weighs ? column_weight<A>(p_.problem.weight, first + j) : A(1);
        const A dl = gradient.template of<kEntropy>(logit.value, weight);
        values.at[j] = product(dl - (first + j == column_ ? gradient.label : A(0)), logit.slope);
      }
      dlogits_.write_out(part, i, written_, pack_any<T>(values, p_.problem.dtype));
    }
    dlogits_.copy_out(part, written_);
  }

 private:
  // Logits as stored; elements past the end of the row are unspecified.
  __device__ Numbers<T> numbers(std::int64_t part, int i) const {
    return unpack_any<T>(logits_.vector(part, i, read_), p_.problem.dtype);
  }
  // Capped logits; elements past the end of the row are -infinity.
  __device__ Numbers<T> logits(std::int64_t part, int i) const {
    const std::int64_t left = read_ - position_.vector(part, i) * kPack<T>;
    Numbers<T> values = numbers(part, i);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      const A found = cross_entropy_logit<T>(p_, values.at[j]).value;
      values.at[j] = j < left ? found : SoftmaxPower<T>::lowest();
    }
    return values;
  }
  __device__ A distances(std::int64_t part, A top) const {
    A sum = 0;
#pragma unroll 1
    for (int i = 0; i < position_.vectors; ++i) {
      const std::int64_t first = position_.vector(part, i) * kPack<T>;
      const Numbers<T> values = logits(part, i);
      if (!p_.weighs_columns) {
        sum = with_distances<T>(sum, values, read_ - first, top);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        if (first + j >= read_) continue;
        sum += product(column_weight<A>(p_.problem.weight, first + j), top - values.at[j]);
      }
    }
    return sum;
  }
  __device__ A weights(std::int64_t part, int round) const {
    if (!p_.weighs_columns) return columns_of_part<T>(position_, part, read_);
    A sum = 0;
#pragma unroll 1
    for (int i = 0; i < position_.vectors; ++i) {
      const std::int64_t first = position_.vector(part, i) * kPack<T>;
#pragma unroll 1
      for (int j = 0; j < kPack<T> && first + j < p_.problem.cols; ++j) {
        sum += column_weight<A>(p_.problem.weight, first + j);
      }
    }
    return position_.reduce(sum, round, Sum());
  }

  const CrossEntropyParams& p_;
  const PartPosition& position_;
  std::int64_t column_, read_, written_;
  StagedPart<T> logits_, dlogits_;
};

// Generic kernel, bit-identical to the register kernel; T is Float16 for bfloat16, too. One block
// has several narrow rows, one row, one part of a row (as a block of a cluster), or all parts of
// one row sequentially, read twice if the gradient is wanted and lse is not given. Shared memory:
// one part of each row, per-warp sums and the sums of up to kMergedParts parts. Memory-bound; for
// wide 16-bit rows nearly instruction-bound, as the gradient takes two exponentials per element.
template <class T>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads)
    cross_entropy_any_kernel(const __grid_constant__ CrossEntropyParams p) {
  using A = accumulate_t<T>;
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<Pair<A>, 4>::Shared shared;
  __shared__ typename PartGroup<T>::Shared group_slots;
  PartPosition position(p.config);
  const PartExchange<Pair<A>, 4> exchange(shared, position);
  const bool lse_known = p.problem.loss.data == nullptr;
  if (!lse_known) exchange.start();
  pdl_wait_and_launch();
  const bool has_row = position.clamp_row(p.problem.rows);
  const CrossEntropyRow<T> row(p, position, has_row, p.staged ? staged : nullptr);
  const A at_label = row.at_label();  // read before dlogits may overwrite the logits in place
  const A weight = column_weight<A>(p.problem.weight, row.column()), all = row.all_weights();
  const std::int64_t parts = position.parts == p.config.parts ? 1 : p.config.parts;
  RowLoss<T> of_row(0, 0, 0);
  if (lse_known) {
    of_row = known_lse<T, false>(p, position.row);
  } else {
    PartGroup<T> group(group_slots, position);
    RowSums<A> whole{SoftmaxPower<T>::lowest(), 0, 0, 0};
    Candidate<A> largest{0, -1};
    EntropySums<T> of_entropy;
    Pair<A> both(SoftmaxPower<T>::lowest(), 0);
#pragma unroll 1
    for (std::int64_t step = 0; step < parts; ++step) {
      const int round = static_cast<int>(step & 1);
      row.copy_in(position.part + step);
      const RowSums<A> part = row.sums(position.part + step, round);
      both = {part.top, part.sum};
      if (parts > 1) both = group.with(both, step + 1 == parts);
      add_distances(whole, part.top, part.distances, part.weights);
      if (p.problem.entropy.data != nullptr) {
        of_entropy.add(row.entropy_sums(position.part + step, round, part));
      }
      if (p.problem.predictions.data == nullptr) continue;
      largest = FirstLargest()(largest, row.largest(position.part + step, round));
    }
    whole.top = both.a;
    whole.sum = both.b;
    if (position.parts > 1) {
      whole = sums_of_cluster<T>(p, exchange, position.parts, whole);
      if (p.problem.predictions.data != nullptr) {
        largest = largest_of_cluster(exchange, position.parts, largest);
      }
    }
    of_row = RowLoss<T>(p, whole, at_label, row.column(), weight, all);
    const bool owns = parts > 1 || has_label<T>(position, row.column());
    if (p.problem.entropy.data != nullptr) {
      of_entropy = of_entropy.below(whole.top);
      if (position.parts > 1) of_entropy = entropy_of_cluster(exchange, position.parts, of_entropy);
    }
    if (position.lane == 0 && has_row && owns) {
      of_row.template store<false>(p, position.row, weight);
      const A excess = row.column() < 0 ? of_row.loss : of_entropy.distances / of_entropy.powers;
      set_row_number<false>(p.problem.entropy, position.row, of_row.low + excess);
      set_prediction(p.problem.predictions, position.row, largest.column);
    }
  }
  if (p.problem.dlogits == nullptr) return;
  const A dloss = row_dloss<A, false>(p, position.row);
  RowGradient<T> gradient(p, row.column(), dloss, of_row, position.vectors, weight, all);
  const bool of_entropies = p.problem.dentropy.data != nullptr;
  if (of_entropies) {
    gradient.add_entropy(row.column(), row_number<A, false>(p.problem.dentropy, position.row),
                         row_number<A, false>(p.problem.entropy, position.row), of_row.low);
  }
#pragma unroll 1
  for (std::int64_t step = 0; step < parts; ++step) {
    if (parts > 1 || lse_known) row.copy_in(position.part + step);
    of_entropies ? row.template write<true>(position.part + step, gradient)
                 : row.template write<false>(position.part + step, gradient);
  }
}

}  // namespace membound::cuda
