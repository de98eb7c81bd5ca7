// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/qk_norm_rope.hpp"
#include "membound/ops/qk_norm_rope_backward.hpp"
#include "membound/ops/rope.hpp"
#include "membound/ops/rope_backward.hpp"
#include "sweep.hpp"

namespace membound_test {

namespace {

constexpr std::int64_t kTokens[] = {1, 3, 64, 1000, 16384, 1 << 20};
constexpr std::int64_t kHeadDims[] = {2,   6,   16,  32,  48,  64,  80,  96,  100,
                                      128, 130, 160, 192, 256, 320, 512, 640, 1024};
constexpr std::int64_t kQ = 8, kK = 2;

struct Heads {
  TensorView q, k;
};
// Heads of one sequence, (1, tokens, heads, head_dim), with the strides of p's rows.
Heads heads_of(const Problem& p) {
  const auto of = [&](std::int64_t count) {
    TensorView view = p.array(p.dtype, {1, p.rows, count, p.cols});
    if (p.layout == Layout::kOffByOne) view.data = static_cast<char*>(view.data) + size_of(p.dtype);
    if (p.layout == Layout::kOddRows) view.strides[1] += 1;
    if (p.layout == Layout::kSpaced) view.strides[1] += 16;
    if (p.layout == Layout::kApart) {
      for (int axis = 0; axis < 4; ++axis) view.strides[axis] *= 2;
    }
    if (p.layout == Layout::kHeads) view.strides[1] += 4 * p.cols;
    return view;
  };
  return {of(kQ), of(kK)};
}

// Every source of angles, with pairs in halves and interleaved.
template <class Call>
void for_each_angle(const Problem& p, Call call) {
  for (std::int64_t rotary : {p.cols, p.cols / 4 * 2}) {
    if (rotary < 2 || rotary % 2 != 0) continue;
    for (bool interleaved : {false, true}) {
      RopeOptions options;
      options.interleaved = interleaved;
      options.rotary_dim = rotary;
      const DType wide = accumulate_dtype(p.dtype);
      const ConstTensorView freqs = p.array(wide, {rotary / 2});
      const ConstTensorView ids = p.array(DType::kInt64, {p.rows});
      call(RopeAngles{.freqs = &freqs}, options);
      call(RopeAngles{.freqs = &freqs, .position_ids = &ids}, options);
      for (DType dtype : {p.dtype, wide}) {
        for (std::int64_t cols : {rotary / 2, rotary}) {
          const ConstTensorView cos = p.array(dtype, {4096, cols});
          const ConstTensorView sin = p.array(dtype, {4096, cols});
          call(RopeAngles{.cos = &cos, .sin = &sin, .position_ids = &ids}, options);
          call(RopeAngles{.freqs = &cos, .position_ids = &ids}, options);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("rope") {
  for_each_problem(kTokens, kHeadDims, [](const Problem& p) {
    for_each_angle(p, [&](const RopeAngles& angles, const RopeOptions& options) {
      const Heads x = heads_of(p), out = heads_of(p);
      const ConstTensorView q = x.q, k = x.k;
      name_op("rope");
      rope(q, &k, angles, options, out.q, &out.k, p.stream());
      rope(q, &k, angles, options, x.q, &x.k, p.stream());
      name_op("rope_backward");
      if (angles.freqs == nullptr || angles.freqs->rank > 1) return;
      const TensorView dfreqs = p.array(angles.freqs->dtype, {options.rotary_dim / 2});
      const Heads dy = heads_of(p);
      const ConstTensorView dk = dy.k;
      rope_backward(dy.q, &dk, &q, &k, angles, options, out.q, &out.k, &dfreqs, nullptr,
                    p.stream());
    });
  });
  look_for_faults();
}

TEST_CASE("qk_norm_rope") {
  for_each_problem(kTokens, kHeadDims, [](const Problem& p) {
    for_each_angle(p, [&](const RopeAngles& angles, const RopeOptions& turns) {
      const Heads x = heads_of(p), out = heads_of(p), dy = heads_of(p);
      const ConstTensorView q = x.q, k = x.k;
      const ConstTensorView q_weight = p.array(p.dtype, {p.cols}), k_weight = q_weight;
      const ConstTensorView each = p.array(p.dtype, {kQ, p.cols});
      const DType wide = accumulate_dtype(p.dtype);
      const TensorView q_rstd = p.array(wide, {1, p.rows, kQ}),
                       k_rstd = p.array(wide, {1, p.rows, kK});
      const QkNormRopeOptions options{.rope = turns};
      name_op("qk_norm_rope");
      for (const ConstTensorView* weight : {&q_weight, &each}) {
        qk_norm_rope(q, &k, weight, &k_weight, angles, options, out.q, &out.k, &q_rstd, &k_rstd,
                     p.stream());
      }
      const TensorView cache = p.array(p.dtype, {4096, kK, p.cols});
      const ConstTensorView slots = p.array(DType::kInt64, {p.rows});
      qk_norm_rope(q, k, &q_weight, &k_weight, angles, options, out.q, KeyValueCache{cache, slots},
                   p.stream());
      name_op("qk_norm_rope_backward");
      const ConstTensorView dq = dy.q, dk = dy.k, kept_q = q_rstd, kept_k = k_rstd;
      const TensorView dq_weight = p.array(p.dtype, {p.cols}),
                       dk_weight = p.array(p.dtype, {p.cols});
      for (bool sums : {true, false}) {
        const QkNormRopeGradient to_k{dk,      k,     &k_weight,
                                      &kept_k, out.k, sums ? &dk_weight : nullptr};
        qk_norm_rope_backward({dq, q, &q_weight, &kept_q, out.q, sums ? &dq_weight : nullptr},
                              &to_k, angles, options, false, nullptr, p.stream());
      }
    });
  });
  look_for_faults();
}

}  // namespace membound_test
