// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cpu/kernels/rope.hpp"
#include "cpu/rope_angles.hpp"
#include "cpu/thread_memory.hpp"
#include "ops/qk_norm_rope.hpp"

// How heads that are normalised and turned come to the kernels, for the op and its gradient.
namespace membound::cpu {

// The angles of some tokens in the order of kernels, all pairs of each.
class HeldAngles {
  static constexpr std::int64_t kPairs = kQkNormColumns / 2, kNumbers = 2048;
  static_assert(2 * rope_width(kPairs, true) <= kNumbers);

 public:
  // The most at once.
  static constexpr std::int64_t kTokens = kNumbers / rope_width(1, false);

  HeldAngles(const RopeProblem& problem, const KernelTable& table)
      : p_(problem), angles_(problem, table, problem.rotary_dim / 2) {
    // Zeros behind the last pair: sums run over them.
    std::fill_n(cos_, 2 * kNumbers, 0.0);
  }

  // The most tokens from (b, s) on whose angles are held at once, up to token `last` of all.
  std::int64_t tokens(std::int64_t s, std::int64_t left) const {
    return std::min({kNumbers / angles_.width(), left, p_.seq - s});
  }
  void hold(std::int64_t b, std::int64_t s, std::int64_t tokens) {
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

// What the heads of one array have in common in all of a call; x is another than the rope's in the
// gradient.
QkNormHeads qk_norm_heads(const RopeProblem& rope, std::int64_t heads, const RopeStrides& x_strides,
                          const HeadWeight& weight, const HeadStatistic& rstd, double eps,
                          double weight_offset);

// Where x and rstd of a token are.
void enter_token(QkNormHeads& heads, const void* x, const RopeStrides& x_strides,
                 const HeadStatistic& rstd, std::int64_t b, std::int64_t s);

// The bytes of one token that are read and written.
std::int64_t qk_norm_token_bytes(const RopeProblem& rope);

}  // namespace membound::cpu
