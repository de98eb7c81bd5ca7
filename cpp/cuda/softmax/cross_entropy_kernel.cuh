// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/softmax/cross_entropy_config.hpp"
#include "cuda/softmax/soft_cap.cuh"
#include "cuda/softmax/softmax_power.cuh"
#include "ops/cross_entropy.hpp"

namespace membound::cuda {

// Options in the accumulation type: converting them in every thread would take longer than using
// them.
template <class A>
struct CrossEntropyTerms {
  A smoothing, z_loss, dloss;
  A share;  // smoothing / cols
};

struct CrossEntropyParams {
  CrossEntropyProblem problem;
  tuning::SoftmaxConfig config;
  PartArray logits, dlogits;
  bool aligned, staged;
  bool capped;
  bool early;            // rows are loaded before their labels are known
  bool weighs_columns;   // class weights with label smoothing
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
          static_cast<A>(options.dloss), static_cast<A>(options.label_smoothing / cols)};
}

// A logit, and the factor from its gradient to that of the stored value.
template <class T>
__device__ inline SoftCapped<accumulate_t<T>> cross_entropy_logit(const CrossEntropyParams& p,
                                                                  accumulate_t<T> x) {
  using A = accumulate_t<T>;
  if (p.capped) return soft_capped(x, static_cast<A>(p.problem.options.softcap));
  return {x, A(1)};
}

// kEvenlySpaced: rows are evenly spaced. Other layouts need a function call, around which values
// held in registers would spill.
template <bool kEvenlySpaced>
__device__ inline std::int64_t row_value_offset(const RowLayout& rows, std::int64_t row) {
  if constexpr (kEvenlySpaced) return row * rows.strides[0];
  return looped_row_offset(rows, row);
}
template <class A, bool kEvenlySpaced>
__device__ inline A row_number(const RowNumbers& numbers, std::int64_t row) {
  return static_cast<const A*>(numbers.data)[row_value_offset<kEvenlySpaced>(numbers.rows, row)];
}
template <bool kEvenlySpaced, class A>
__device__ inline void set_row_number(const RowNumbers& numbers, std::int64_t row, A value) {
  if (numbers.data == nullptr) return;
  A* data = static_cast<A*>(const_cast<void*>(numbers.data));  // the caller's output
  data[row_value_offset<kEvenlySpaced>(numbers.rows, row)] = value;
}

__device__ inline float natural_log(float x) { return logf(x); }
static __device__ __noinline__ double natural_log(double x) { return log(x); }

// Maximum logit of a row and its sum of exponentials; for label smoothing also the weighted sum of
// distances below the maximum, and the sum of those weights.
template <class A>
struct RowSums {
  A top, sum, distances, weights;
};
// Adds another part's distances; both are first shifted to the higher maximum.
template <class A>
__device__ inline void add_distances(RowSums<A>& sums, A top, A distances, A weights) {
  const A highest = sums.top < top ? top : sums.top;
  if (sums.top != highest && sums.weights != 0) {  // a part may have no columns
    sums.distances += product(sums.weights, highest - sums.top);
  }
  sums.distances += distances;
  if (top != highest && weights != 0) sums.distances += product(weights, highest - top);
  sums.weights += weights;
  sums.top = highest;
}

// Result of an ignored row: 0, or NaN if its label is out of range.
template <class A>
__device__ inline A absent_number(std::int64_t column) {
  return column == CrossEntropyProblem::kOutside ? static_cast<A>(NAN) : A(0);
}

// Loss of a row, and lse in two parts (top + low), given the label's logit. The difference of
// logits is taken before the sum, to avoid cancellation. weight: the label's class weight; all: the
// sum of all class weights.
template <class T>
struct RowLoss {
  using A = accumulate_t<T>;
  A top, low, loss;

  __device__ RowLoss(A highest, A log, A found) : top(highest), low(log), loss(found) {}
  __device__ RowLoss(const CrossEntropyParams& p, const RowSums<A>& row, A at_label,
                     std::int64_t column, A weight, A all)
      : top(row.top), low(natural_log(row.sum) - SoftmaxPower<T>::kLogOfShift) {
    const CrossEntropyTerms<A>& terms = p.terms<A>();
    loss = product(product(1 - terms.smoothing, weight), low + (top - at_label));
    if (terms.smoothing != 0) loss += product(terms.share, fma(all, low, row.distances));
    if (terms.z_loss != 0) loss += z_loss(p, weight);
    if (column < 0) {
      top = loss = absent_number<A>(column);
      low = 0;
    }
  }
  __device__ A z_loss(const CrossEntropyParams& p, A weight) const {
    const A lse = top + low;
    return product(product(p.terms<A>().z_loss, weight) * lse, lse);
  }
  template <bool kEvenlySpaced>
  __device__ void store(const CrossEntropyParams& p, std::int64_t row, A weight) const {
    set_row_number<kEvenlySpaced>(p.problem.loss, row, loss);
    set_row_number<kEvenlySpaced>(p.problem.lse, row, top);
    set_row_number<kEvenlySpaced>(p.problem.lse_low, row, low);
    if (p.problem.z_loss.data != nullptr) {
      set_row_number<kEvenlySpaced>(p.problem.z_loss, row, z_loss(p, weight));
    }
  }
};

// True if a part contains the label's column. An ignored row is owned by part 0.
template <class T>
__device__ inline bool has_label(const PartPosition& position, std::int64_t column) {
  const std::int64_t numbers = position.vectors * kPack<T> * position.lanes;
  return (column < 0 ? 0 : column / numbers) == position.part;
}

// Combines the sums of a row's parts across its cluster.
template <class T, class Exchange>
__device__ inline RowSums<accumulate_t<T>> sums_of_cluster(const CrossEntropyParams& p,
                                                           const Exchange& exchange, int parts,
                                                           const RowSums<accumulate_t<T>>& mine) {
  using A = accumulate_t<T>;
  const Pair<A>* tops = exchange.all({mine.top, mine.sum});
  const Pair<A> found = merged<T>(tops, parts);
  RowSums<A> whole{SoftmaxPower<T>::lowest(), found.b, 0, 0};
  if (p.terms<A>().smoothing != 0) {
    const Pair<A>* all = exchange.all({mine.distances, mine.weights}, 1);
#pragma unroll 1
    for (int i = 0; i < parts; ++i) add_distances(whole, tops[i].a, all[i].a, all[i].b);
  }
  whole.top = found.a;
  return whole;
}

// Upstream gradient of a row's loss.
template <class A, bool kEvenlySpaced>
__device__ inline A row_dloss(const CrossEntropyParams& p, std::int64_t row) {
  const RowNumbers& given = p.problem.dloss;
  return given.data != nullptr ? row_number<A, kEvenlySpaced>(given, row) : p.terms<A>().dloss;
}

// Reads lse from memory.
template <class T, bool kEvenlySpaced>
__device__ inline RowLoss<T> known_lse(const CrossEntropyParams& p, std::int64_t row) {
  using A = accumulate_t<T>;
  const bool two = p.problem.lse_low.data != nullptr;
  return {row_number<A, kEvenlySpaced>(p.problem.lse, row),
          two ? row_number<A, kEvenlySpaced>(p.problem.lse_low, row) : A(0), A(0)};
}

// Computes the gradient of a row: (factor * exp(l - top) - less) * slope for logit l, minus `label`
// in the label's column. Exponents are relative to the maximum logit instead of lse: for large
// logits, rounding lse would put the same error into every one of them.
template <class T>
struct RowGradient {
  using A = accumulate_t<T>;
  ShiftedExponentials<T> powers;
  A factor, less, label;
  A top, slope = 0;  // of entropies: what is added to factor for each 1 above the maximum logit

  // factor is 0 or NaN if the row is ignored. weight: the label's class weight; all: their sum over
  // the columns.
  __device__ RowGradient(const CrossEntropyParams& p, std::int64_t column, A dloss,
                         const RowLoss<T>& row, int vectors, A weight = 1, A all = 0)
      : powers(column < 0 ? A(0) : row.top, 0, vectors), top(row.top) {
    const CrossEntropyTerms<A>& terms = p.terms<A>();
    if (column < 0) dloss = absent_number<A>(column);
    A of_row = weight;
    if (p.weighs_columns) of_row = fma(terms.share, all, product(1 - terms.smoothing, weight));
    of_row = fma(2 * product(terms.z_loss, weight), row.top + row.low, of_row);
    const A share = SoftmaxPower<T>::of(-row.low);  // the maximum logit's softmax
    factor = column < 0 ? dloss : dloss * of_row * share * powers.factor();
    less = product(dloss, terms.share);
    label = product(dloss, product(1 - terms.smoothing, weight));
  }
  // Adds that of the row's entropy, (l - top) - low + entropy times -dentropy times the softmax.
  __device__ void add_entropy(std::int64_t column, A dentropy, A entropy, A low) {
    if (column < 0) return;
    slope = -dentropy * SoftmaxPower<T>::of(-low) * powers.factor();
    factor = fma(slope, entropy - low, factor);
  }
  __device__ A of(A logit) const { return fma(factor, powers.of(logit), -less); }
  // For a column with a class weight.
  template <bool kEntropy>
  __device__ A of(A logit, A weight) const {
    const A power = powers.of(logit);
    A times = factor;
    if (kEntropy && power != 0) times = fma(slope, logit - top, times);  // not of -infinity
    return fma(times, power, -product(less, weight));
  }
};

// Adds the distances of the first `left` logits of a vector below `top` to `sum`.
template <class T>
__device__ inline accumulate_t<T> with_distances(accumulate_t<T> sum, const Numbers<T>& values,
                                                 std::int64_t left, accumulate_t<T> top) {
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    sum += j < left ? top - values.at[j] : accumulate_t<T>(0);
  }
  return sum;
}
// Sum of the thread's distances. left: columns of the row from the thread's first one on.
template <class T, int kVectors>
__device__ inline accumulate_t<T> sum_of_distances(const uint4 (&raw)[kVectors], int left,
                                                   int lanes, accumulate_t<T> top) {
  accumulate_t<T> sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    sum = with_distances<T>(sum, unpack<T>(raw[i]), left - i * lanes * kPack<T>, top);
  }
  return sum;
}
// Number of a part's columns that are among the first `cols`.
template <class T>
__device__ inline accumulate_t<T> columns_of_part(const PartPosition& position, std::int64_t part,
                                                  std::int64_t cols) {
  const std::int64_t most = std::int64_t{position.vectors} * kPack<T> * position.lanes;
  const std::int64_t left = cols - part * most;
  return static_cast<accumulate_t<T>>(left < 0 ? 0 : left < most ? left : most);
}

// Register kernel: aligned rows of whole vectors, no soft cap, evenly spaced per-row values. One
// block has several narrow rows, one row, or one part of a row as a block of a cluster; logits are
// read once and stay in registers. The thread that has the label's logit writes the row's loss and
// lse. Shared memory: per-warp sums and the sums of the cluster's parts. Memory-bound; with a
// gradient, two exponentials per element come close.
template <class T, int kVectors>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads, kResidentBlocks<kVectors>)
    cross_entropy_register_kernel(const __grid_constant__ CrossEntropyParams p) {
  using A = accumulate_t<T>;
  using Part = RegisterPart<T, kVectors>;
  __shared__ typename PartExchange<Pair<A>, 2>::Shared shared;
  // With few vectors per thread a row always fits in one block; yet compiling the cluster path out
  // increases register spills.
  PartPosition position(p.config, sizeof(T) > 2 || kVectors == tuning::kFewVectors);
  const PartExchange<Pair<A>, 2> exchange(shared, position);
  const bool lse_known = p.problem.loss.data == nullptr;
  if (!lse_known) exchange.start();
  pdl_wait_and_launch();
  const bool has_row = position.clamp_row(p.problem.rows);
  const TokenIntegers& labels = p.problem.labels;
  const std::int64_t label = labels.at(row_value_offset<true>(labels.tokens, position.row));
  const bool reads = p.early || p.problem.column(label) >= 0;
  const Part logits(p.logits, position, reads ? p.problem.cols : 0);
  uint4 raw[kVectors];
  logits.read(raw, p.absent);
  const int column = static_cast<int>(p.problem.column(label));
  const bool counts = column >= 0;
  if (p.early && !counts) fill(raw, filled<T>(p.absent));
  RowSums<A> sums{SoftmaxPower<T>::lowest(), 0, 0, 0};
  if (!lse_known) {
    sums.top = highest_of_lanes(highest<T>(raw), position.lanes);
    sums.sum = sum_of_powers<T>(raw, sums.top);
  }
  // Loads that few threads need are issued here, to overlap with the barrier. Position and row are
  // recomputed instead of kept in registers.
  position.locate();
  position.clamp_row(p.problem.rows);
  const Part again(p.logits, position, p.problem.cols);
  const bool owns_label = has_row && counts && again.has(column);
  const A at_label = owns_label ? to_number(again.row()[column]) : A(0);
  const A dloss = p.problem.dlogits == nullptr ? A(0) : row_dloss<A, true>(p, position.row);
  RowLoss<T> of_row = lse_known ? known_lse<T, true>(p, position.row) : RowLoss<T>(0, 0, 0);
  if (!lse_known) {
    const Pair<A> part = merged_lanes<T>(position, sums.top, sums.sum, 0);
    sums.top = part.a;
    sums.sum = part.b;
    if (p.terms<A>().smoothing != 0) {
      const int cols = static_cast<int>(counts ? p.problem.cols : 0);
      const int left = cols - again.index(0) * kPack<T>;
      const A mine =
          sum_of_distances<T>(raw, left, position.lanes, SoftmaxPower<T>::exponent_shift(sums.top));
      sums.distances = position.reduce(mine, 0, Sum());
      sums.weights = columns_of_part<T>(position, position.part, cols);
    }
    if (position.parts > 1) sums = sums_of_cluster<T>(p, exchange, position.parts, sums);
    of_row = RowLoss<T>(p, sums, at_label, column, 1, static_cast<A>(p.problem.cols));
  }
  const bool stores = owns_label || (has_row && !counts && again.index(0) == 0);
  if (stores && !lse_known) of_row.template store<true>(p, position.row, 1);
  if (p.problem.dlogits == nullptr) return;
  const RowGradient<T> gradient(p, column, dloss, of_row, kVectors);
  const T of_label = from_number<T>(gradient.of(at_label) - gradient.label);
  compiler_barrier(raw);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Numbers<T> dl = unpack<T>(raw[i]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) dl.at[j] = gradient.of(dl.at[j]);
    raw[i] = pack<T>(dl);
  }
  Part(p.dlogits, position, has_row ? p.problem.cols : 0)
      .write(raw, owns_label ? column : -1, of_label);
}

}  // namespace membound::cuda
