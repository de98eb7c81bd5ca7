// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/qk_norm_rope.hpp"

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rms_norm.hpp"

namespace membound::cpu {

static_assert(kQkNormColumns == kMaxQkNormHeadDim);

QkNormHeads qk_norm_heads(const RopeProblem& rope, std::int64_t heads, const RopeStrides& x_strides,
                          const HeadWeight& weight, const HeadStatistic& rstd, double eps,
                          double weight_offset) {
  QkNormHeads made{};
  made.weight = weight.data;
  made.weight_dtype = weight.dtype;
  made.weight_head_stride = weight.head_stride;
  made.weight_stride = weight.stride;
  made.dtype = rope.dtype;
  made.interleaved = rope.interleaved;
  made.heads = heads;
  made.x_token_stride = x_strides.seq;
  made.x_head_stride = x_strides.head;
  made.x_dim_stride = x_strides.dim;
  made.rstd_token_stride = rstd.strides.seq;
  made.rstd_head_stride = rstd.strides.head;
  made.head_dim = rope.head_dim;
  made.rotary_dim = rope.rotary_dim;
  made.rotary_offset = rope.rotary_offset;
  made.weight_offset = weight_offset;
  made.eps = eps;
  set_safe_range(made, rope.dtype, eps);
  return made;
}

void enter_token(QkNormHeads& heads, const void* x, const RopeStrides& x_strides,
                 const HeadStatistic& rstd, std::int64_t b, std::int64_t s) {
  heads.x = bytes_of(x) + x_strides.at(b, s) * size_of(heads.dtype);
  if (rstd.data == nullptr) return;
  heads.rstd = static_cast<char*>(rstd.data) +
               rstd.strides.at(b, s) * size_of(accumulate_dtype(heads.dtype));
}

std::int64_t qk_norm_token_bytes(const RopeProblem& rope) {
  std::int64_t heads = 0;
  for (int i = 0; i < rope.count; ++i) heads += rope.arrays[i].heads;
  return 2 * std::max<std::int64_t>(heads, 1) * rope.head_dim * size_of(rope.dtype);
}

namespace {

// Tokens [first, last) of all, sequences one after the other.
void run_tokens(const QkNormRopeProblem& problem, const KernelTable& table, std::int64_t first,
                std::int64_t last) {
  const RopeProblem& p = problem.rope;
  HeldAngles angles(p, table);
  QkNormRopeRows rows[2] = {};
  for (int i = 0; i < p.count; ++i) {
    const RopeHeads& array = p.arrays[i];
    rows[i].heads = qk_norm_heads(p, array.heads, array.x_strides, problem.weights[i],
                                  problem.rstds[i], problem.eps, problem.weight_offset);
    rows[i].heads.round_normed = problem.round_normed;
    rows[i].heads.round_weighted = problem.round_weighted;
    rows[i].out_token_stride = array.out_strides.seq;
    rows[i].out_head_stride = array.out_strides.head;
    rows[i].out_dim_stride = array.out_strides.dim;
    angles.point(rows[i].heads);
  }
  for (std::int64_t token = first, tokens = 0; token < last; token += tokens) {
    const std::int64_t b = token / p.seq, s = token % p.seq;
    tokens = angles.tokens(s, last - token);
    angles.hold(b, s, tokens);
    for (int i = 0; i < p.count; ++i) {
      const RopeHeads& array = p.arrays[i];
      enter_token(rows[i].heads, array.x, array.x_strides, problem.rstds[i], b, s);
      rows[i].heads.tokens = tokens;
      rows[i].out = static_cast<char*>(array.out) + array.out_strides.at(b, s) * size_of(p.dtype);
      table.qk_norm_rope(rows[i]);
    }
  }
}

}  // namespace

void qk_norm_rope(const QkNormRopeProblem& problem) {
  const FloatMode ieee;
  const KernelTable& table = kernels();
  const std::int64_t grain =
      std::max<std::int64_t>(1, kBytesPerThread / qk_norm_token_bytes(problem.rope));
  parallel_for(problem.rope.tokens(), grain, [&](std::int64_t first, std::int64_t last) {
    run_tokens(problem, table, first, last);
  });
}

}  // namespace membound::cpu
