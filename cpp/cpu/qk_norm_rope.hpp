// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cpu/kernels/rope.hpp"
#include "cpu/rope_angles.hpp"
#include "cpu/thread_memory.hpp"
#include "ops/qk_norm_rope.hpp"

// How the op and its gradient pass normalised, rotated heads to the kernels.
namespace membound::cpu {

// The cos and sin of some tokens, arranged for the kernels, all pairs of each token.
class AngleTable {
  static constexpr std::int64_t kPairs = kQkNormColumns / 2, kNumbers = 2048;
  static_assert(2 * rope_width(kPairs, true) <= kNumbers);

 public:
  // The most tokens per fill.
  static constexpr std::int64_t kTokens = kNumbers / rope_width(1, false);

  AngleTable(const RopeProblem& problem, const KernelTable& table)
      : p_(problem), angles_(problem, table, problem.rotary_dim / 2) {
    // Sums run over the padding after the last pair, so it must be zero.
    std::fill_n(cos_, 2 * kNumbers, 0.0);
  }

  // The number of tokens from (b, s) on that fit at once: not beyond the sequence, nor more than
  // `left`.
  std::int64_t tokens(std::int64_t s, std::int64_t left) const {
    return std::min({kNumbers / angles_.width(), left, p_.seq - s});
  }
  void load_tokens(std::int64_t b, std::int64_t s, std::int64_t tokens) {
    angles_.arrange<kPairs>(b, s, tokens, 0, p_.rotary_dim / 2, cos_, sin_);
  }
  void point(QkNormHeads& heads) const {
    heads.cos = cos_;
    heads.sin = sin_;
    heads.table_stride = angles_.width();
    heads.table_second = angles_.second();
  }

 private:
  const RopeProblem& p_;
  ArrangedAngles angles_;
  double* const cos_ = thread_array<double, 2 * kNumbers>();
  double* const sin_ = cos_ + kNumbers;
};

// What all heads of one array share throughout a call. In the gradient, x is not the array that
// rope takes.
QkNormHeads qk_norm_heads(const RopeProblem& rope, std::int64_t heads, const RopeStrides& x_strides,
                          const HeadWeight& weight, const HeadStatistic& rstd, double eps,
                          double weight_offset);

// Sets x and rstd to those of a token.
void seek_token(QkNormHeads& heads, const void* x, const RopeStrides& x_strides,
                const HeadStatistic& rstd, std::int64_t b, std::int64_t s);

// Bytes read and written for one token.
std::int64_t qk_norm_token_bytes(const RopeProblem& rope);

}  // namespace membound::cpu
