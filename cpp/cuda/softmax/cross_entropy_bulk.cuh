// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cross entropy of unaligned rows (span_part.cuh).
#include "cuda/row/span_part.cuh"
#include "cuda/softmax/cross_entropy_kernel.cuh"

namespace membound::cuda {

// Sum of the thread's distances below `top`. Logits are read again from shared memory: kept in
// registers as unpacked numbers, they would spill.
template <class T, int kVectors>
__device__ inline accumulate_t<T> sum_of_distances(const BulkPart<T, kVectors>& logits, bool counts,
                                                   accumulate_t<T> top) {
  asm volatile("" ::: "memory");
  accumulate_t<T> sum = 0;
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    uint4 raw[1];
    logits.vectors(raw, 0, i);
    const int left = counts ? logits.elements() - logits.place(i) * kPack<T> : 0;
    sum = with_distances<T>(sum, unpack<T>(raw[0]), left, top);
  }
  return sum;
}

// cross_entropy_register_kernel for unaligned rows, bit-identical. The label's gradient is
// corrected by the thread that owns the label's 16-byte unit or edge element. Shared memory holds
// the row parts, too. Instruction-bound for 16-bit elements.
template <class T, int kVectors>
__global__ void __launch_bounds__(bulk_threads(kVectors == tuning::kFewVectors ? 48 : 56), 2)
    cross_entropy_bulk_kernel(const __grid_constant__ CrossEntropyParams p) {
  using A = accumulate_t<T>;
  using Part = BulkPart<T, kVectors>;
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<Pair<A>, 2>::Shared shared;
  // With few vectors per thread, a row always fits in one block.
  PartPosition position(p.config, sizeof(T) > 2 || kVectors == tuning::kFewVectors,
                        sizeof(T) > 2 || kVectors != tuning::kFewVectors);
  const PartExchange<Pair<A>, 2> exchange(shared, position);
  const bool lse_known = p.problem.loss.data == nullptr;
  if (!lse_known) exchange.start();
  Part::start(position, 1);
  pdl_wait_and_launch();
  const bool has_row = position.clamp_row(p.problem.rows);
  const TokenIntegers& labels = p.problem.labels;
  const std::int64_t label = labels.at(row_value_offset<true>(labels.tokens, position.row));
  const bool reads = p.early || p.problem.column(label) >= 0;
  const T* const from = p.logits.row<const T>(position.row);
  const Part logits(from, position, reads ? p.problem.cols : 0, staged);
  logits.fetch(from, p.logits.end);
  const int column = static_cast<int>(p.problem.column(label));
  const bool counts = column >= 0;
  const A dloss = p.problem.dlogits == nullptr ? A(0) : row_dloss<A, true>(p, position.row);
  RowLoss<T> of_row = lse_known ? known_lse<T, true>(p, position.row) : RowLoss<T>(0, 0, 0);
  Part::receive(position);
  const int at = logits.in_part(column);  // of the label
  if (!lse_known) {
    uint4 raw[kVectors];
    logits.vectors(raw, p.absent);
    if (p.early && !counts) fill(raw, filled<T>(p.absent));
    RowSums<A> sums{SoftmaxPower<T>::lowest(), 0, 0, 0};
    sums.top = highest_of_lanes(highest<T>(raw), position.lanes);
    sums.sum = sum_of_powers<T>(raw, sums.top);
    const Pair<A> part = merged_lanes<T>(position, sums.top, sums.sum, 0);
    sums.top = part.a;
    sums.sum = part.b;
    if (p.terms<A>().smoothing != 0) {
      const A mine = sum_of_distances(logits, counts, SoftmaxPower<T>::exponent_shift(sums.top));
      sums.distances = position.reduce(mine, 0, Sum());
      sums.weights = columns_of_part<T>(position, position.part, counts ? p.problem.cols : 0);
    }
    if (position.parts > 1) sums = sums_of_cluster<T>(p, exchange, position.parts, sums);
    const bool owns = counts ? logits.has(column) : position.part == 0 && position.lane == 0;
    of_row = RowLoss<T>(p, sums, owns && counts ? to_number(logits.element(at)) : A(0), column, 1,
                        static_cast<A>(p.problem.cols));
    if (has_row && owns) of_row.template store<true>(p, position.row, 1);
  }
  if (p.problem.dlogits == nullptr) return;
  const RowGradient<T> gradient(p, column, dloss, of_row, kVectors);
  const auto of = [&](A logit) { return gradient.of(logit); };
  // Ignored rows are written, too: their gradient is 0 or NaN.
  const PartUnits<T> units(logits.of_row(p.dlogits.row<T>(position.row)),
                           has_row ? logits.elements(p.problem.cols) : 0);
  uint4 raw[kVectors];
  logits.units(raw, units);
  if (!counts) fill(raw, filled<T>(p.absent));
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    units.store(logits.place(i), pack<T>(mapped(unpack<T>(raw[i]), of)));
  }
  if (counts && units.has(position, at)) {
    units.to[at] = from_number<T>(of(to_number(logits.element(at))) - gradient.label);
  }
  units.each_edge(position, [&](int i) {
    const A logit = counts ? to_number(logits.element(i)) : SoftmaxPower<T>::lowest();
    units.to[i] = from_number<T>(of(logit) - (counts && i == at ? gradient.label : A(0)));
  });
}

}  // namespace membound::cuda
