// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/qk_norm_rope_backward.hpp"

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/qk_norm_rope.hpp"
#include "cpu/rows.hpp"

namespace membound::cpu {

namespace {

// The number of parts of the tokens. Their sums are added in order, which fixes dweight's tree.
constexpr std::int64_t kParts = 64;

class Gradients {
 public:
  Gradients(const QkNormRopeBackwardProblem& problem, const KernelTable& table)
      : problem_(problem), table_(table) {
    const RopeProblem& p = problem.rope;
    tokens_of_part_ = (p.tokens() + kParts - 1) / kParts;
    parts_ = tokens_of_part_ == 0 ? 0 : (p.tokens() + tokens_of_part_ - 1) / tokens_of_part_;
    std::int64_t sums = 0;
    for (int i = 0; i < p.count; ++i) {
      first_sum_[i] = sums;
      if (problem.arrays[i].dweight.data) sums += problem.arrays[i].groups * parts_ * width();
    }
    if (sums == 0) return;
    storage_ = DeviceBuffer(static_cast<std::size_t>(sums) * sizeof(double), Device::cpu());
    sums_ = storage_.as<double>();
    std::fill(sums_, sums_ + sums, 0.0);
  }

  std::int64_t parts() const { return parts_; }
  std::int64_t tokens_of_part() const { return tokens_of_part_; }

  void run_parts(std::int64_t first, std::int64_t last) const {
    const RopeProblem& p = problem_.rope;
    AngleTable angles(p, table_);
    QkNormRopeBackwardRows rows[2] = {};
    for (int i = 0; i < p.count; ++i) {
      rows[i] = shared_part(i);
      angles.point(rows[i].heads);
    }
    for (std::int64_t part = first; part < last; ++part) {
      const std::int64_t end = std::min(p.tokens(), (part + 1) * tokens_of_part_);
      for (std::int64_t token = part * tokens_of_part_, tokens = 0; token < end; token += tokens) {
        const std::int64_t b = token / p.seq, s = token % p.seq;
        tokens = angles.tokens(s, end - token);
        angles.load_tokens(b, s, tokens);
        for (int i = 0; i < p.count; ++i) run_array(i, rows[i], part, b, s, tokens);
      }
    }
  }

  void write_dweights() const {
    for (int i = 0; i < problem_.rope.count; ++i) {
      const HeadGradient& array = problem_.arrays[i];
      if (array.dweight.data == nullptr) continue;
      const std::int64_t size = size_of(array.dweight.dtype);
      for (std::int64_t group = 0; group < array.groups; ++group) {
        RmsNormBackwardWeight weight{};
        weight.totals = sums_ + first_sum_[i] + group * parts_ * width();
        weight.count = parts_;
        weight.cols = problem_.rope.head_dim;
        weight.x_dtype = accumulate_dtype(problem_.rope.dtype);  // columns are in sequence
        weight.dtype = array.dweight.dtype;
        weight.stride = array.dweight.stride;
        weight.accumulate = problem_.accumulate;
        weight.gradient =
            static_cast<char*>(array.dweight.data) + group * array.dweight.head_stride * size;
        table_.rms_norm_backward_weight(weight);
      }
    }
  }

 private:
  QkNormRopeBackwardRows shared_part(int i) const {
    const HeadGradient& array = problem_.arrays[i];
    const RopeHeads& rope_heads = problem_.rope.arrays[i];
    QkNormRopeBackwardRows rows{};
    rows.heads = qk_norm_heads(problem_.rope, rope_heads.heads, array.x_strides, array.weight,
                               array.rstd, problem_.eps, problem_.weight_offset);
    rows.heads.round_normed = problem_.round_normed;
    rows.dy_token_stride = rope_heads.x_strides.seq;
    rows.dy_head_stride = rope_heads.x_strides.head;
    rows.dy_dim_stride = rope_heads.x_strides.dim;
    rows.dx_token_stride = rope_heads.out_strides.seq;
    rows.dx_head_stride = rope_heads.out_strides.head;
    rows.dx_dim_stride = rope_heads.out_strides.dim;
    // All three matrices count. Not for in-place calls: those lines are in the cache already.
    rows.bypass_cache =
        rope_heads.out != rope_heads.x && rope_heads.out != array.x &&
        pays_to_bypass_cache(problem_.rope.tokens() * qk_norm_token_bytes(problem_.rope) * 3 / 4);
    rows.sums_head_stride = array.groups == 1 ? 0 : parts_ * width();
    return rows;
  }

  void run_array(int i, QkNormRopeBackwardRows& rows, std::int64_t part, std::int64_t b,
                 std::int64_t s, std::int64_t tokens) const {
    const HeadGradient& array = problem_.arrays[i];
    const RopeHeads& rope_heads = problem_.rope.arrays[i];
    const std::int64_t size = size_of(problem_.rope.dtype);
    seek_token(rows.heads, array.x, array.x_strides, array.rstd, b, s);
    rows.heads.tokens = tokens;
    rows.dy = bytes_of(rope_heads.x) + rope_heads.x_strides.at(b, s) * size;
    rows.dx = static_cast<char*>(rope_heads.out) + rope_heads.out_strides.at(b, s) * size;
    rows.sums = array.dweight.data ? sums_ + first_sum_[i] + part * width() : nullptr;
    table_.qk_norm_rope_backward(rows);
  }

  // Numbers per part, padded as rms_norm_backward_weight needs.
  std::int64_t width() const { return problem_.rope.head_dim + kPreparedPadding; }

  const QkNormRopeBackwardProblem& problem_;
  const KernelTable& table_;
  DeviceBuffer storage_;
  double* sums_ = nullptr;
  std::int64_t first_sum_[2] = {};
  std::int64_t parts_ = 0, tokens_of_part_ = 0;
};

}  // namespace

void qk_norm_rope_backward(const QkNormRopeBackwardProblem& problem) {
  const FloatMode ieee;
  Gradients gradients(problem, kernels());
  const std::int64_t part_bytes =
      2 * qk_norm_token_bytes(problem.rope) * std::max<std::int64_t>(gradients.tokens_of_part(), 1);
  parallel_for(gradients.parts(), std::max<std::int64_t>(1, kBytesPerThread / part_bytes),
               [&](std::int64_t first, std::int64_t last) { gradients.run_parts(first, last); });
  gradients.write_dweights();
}

}  // namespace membound::cpu
