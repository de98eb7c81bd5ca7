// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/qk_norm_rope.hpp"

#include "cpu/kernels/qk_norm_head.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Normalises and rotates the heads of one array.
template <class T>
class Rows {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;

 public:
  explicit Rows(const QkNormRopeRows& rows)
      : rows_(rows),
        heads_(rows.heads),
        segments_(segments_of(heads_)),
        limits_(row_limits(heads_)),
        weight_(heads_, segments_) {}

  void run() {
    const bool by_head = loops_by_head(heads_, weight_.of_each_head());
    const std::int64_t outer = by_head ? heads_.heads : heads_.tokens;
    const std::int64_t inner = by_head ? heads_.tokens : heads_.heads;
    for (std::int64_t at = 0; at < outer; ++at) {
      if (by_head) weight_.seek(at);
      for (std::int64_t first = 0; first < inner; first += kGroup) {
        group(at, first, inner - first < kGroup ? inner - first : kGroup, by_head);
      }
    }
    if (rows_.bypass_cache) stream_fence();
  }

 private:
  // Sums of a group of heads are taken together, which hides the latency of square root and
  // division.
  void group(std::int64_t at, std::int64_t first, std::int64_t count, bool by_head) {
    A sums[kGroup] = {}, rstds[kGroup];
    const auto token = [&](std::int64_t i) { return by_head ? first + i : at; };
    const auto head = [&](std::int64_t i) { return by_head ? at : first + i; };
    for (std::int64_t i = 0; i < count; ++i) {
      const T* x = x_of(token(i), head(i));
      prefetch_ahead(x, heads_.head_dim * sizeof(T), heads_.prefetch_distance);
      sums[i] = plain_sum(limits_, x);
    }
    const A width = static_cast<A>(heads_.head_dim), eps = static_cast<A>(heads_.eps);
    each_of_group(count,
                  [&](std::int64_t i) { rstds[i] = 1 / square_root(sums[i] / width + eps); });
    for (std::int64_t i = 0; i < count; ++i) {
      SafeRstd<A> by{1, rstds[i]};
      if (!is_in_safe_range(limits_, sums[i])) [[unlikely]] {
        by = rstd_of(limits_, x_of(token(i), head(i)));
      }
      finish(token(i), head(i), by);
    }
  }

  const T* x_of(std::int64_t token, std::int64_t head) {
    return gather(head_at<T>(heads_.x, token, heads_.x_token_stride, head, heads_.x_head_stride),
                  heads_.x_dim_stride, 0, heads_.head_dim, x_copy_);
  }

  MEMBOUND_ALWAYS_INLINE void finish(std::int64_t token, std::int64_t head, SafeRstd<A> by) {
    const std::int64_t offset =
        rows_.offsets != nullptr ? rows_.offsets[token] : token * rows_.out_token_stride;
    if (offset == kNoOffset) return;
    if (heads_.rstd != nullptr) {
      static_cast<A*>(
          heads_.rstd)[token * heads_.rstd_token_stride + head * heads_.rstd_head_stride] =
          by.unscaled();
    }
    T* out = static_cast<T*>(rows_.out) + offset + head * rows_.out_head_stride;
    const bool strided = rows_.out_dim_stride != 1;
    const T* x = x_of(token, head);
    T* to = strided ? out_copy_ : out;
    const bool non_temporal = rows_.bypass_cache && !strided;
    const A* weight = weight_.given() ? weight_.numbers() : nullptr;
    rotate_steps<T>(
        heads_, segments_, static_cast<const A*>(heads_.cos) + token * heads_.table_stride,
        static_cast<const A*>(heads_.sin) + token * heads_.table_stride,
        [&](std::int64_t offset, std::int64_t element, std::int64_t count) MEMBOUND_INLINED {
          auto value = read_some(x + element, count);
          value = {value.first * by.scale * by.rstd, value.second * by.scale * by.rstd};
          value = rounded<T>(value, heads_.round_normed);
          if (weight != nullptr) value = product(value, load_pair<V>(weight + offset));
          return rounded<T>(value, heads_.round_weighted);
        },
        [&](std::int64_t, std::int64_t element, std::int64_t count, Pair<V> value)
            MEMBOUND_INLINED { write_some(to + element, count, value, non_temporal); });
    if (strided) scatter(out, rows_.out_dim_stride, 0, heads_.head_dim, out_copy_);
  }

  const QkNormRopeRows& rows_;
  const QkNormHeads& heads_;
  const Segments segments_;
  const RmsNormRows limits_;
  PaddedWeight<T> weight_;
  T x_copy_[kQkNormColumns], out_copy_[kQkNormColumns];
};

template <class T>
void run(const QkNormRopeRows& rows) {
  Rows<T>(rows).run();
}

}  // namespace

void qk_norm_rope(const QkNormRopeRows& rows) {
  switch (rows.heads.dtype) {
    case DType::kFloat16: return run<Float16>(rows);
    case DType::kBFloat16: return run<BFloat16>(rows);
    case DType::kFloat32: return run<float>(rows);
    default: return run<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
