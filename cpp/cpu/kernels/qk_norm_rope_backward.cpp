// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/qk_norm_head.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Products of two padded arrays.
template <class T>
struct Products {
  static constexpr int kSums = 1, kProducts = 1;
  using V = typename Lanes<T>::V;
  const typename Lanes<T>::A* left;
  const typename Lanes<T>::A* right;

  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t index, Factors<V>* term) const {
    *term = {load_pair<V>(left + index), load_pair<V>(right + index)};
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t index, std::int64_t, Factors<V>* term) const {
    whole(index, term);  // the padding is zero
  }
};

// Sums what one head after the other adds to dweight, in padded arrays; flush() adds them to the
// float64 sums, element by element.
template <class T>
class WeightSums {
 public:
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;

  WeightSums(const QkNormRopeBackwardRows& rows, const Segments& segments)
      : rows_(rows), segments_(segments) {
    clear();
  }
  // Adds t * h of one step, with h rounded where the forward rounded it.
  MEMBOUND_ALWAYS_INLINE void add(std::int64_t index, Pair<V> t, Pair<V> h) {
    if (rows_.sums == nullptr) return;
    const auto term = product(t, rounded<T>(h, rows_.heads.round_normed));
    const auto sum = load_pair<V>(numbers_ + index);
    store_pair(numbers_ + index, Pair<V>{sum.first + term.first, sum.second + term.second});
  }
  [[gnu::noinline]] void flush(std::int64_t head) {
    if (rows_.sums == nullptr) return;
    double* sums = rows_.sums + head * rows_.sums_head_stride;
    each_step<T>(segments_, [&](std::int64_t index, std::int64_t element, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) {
        sums[element + i] += numbers_[index + index_in_step<T>(i)];
      }
    });
    clear();
  }

 private:
  void clear() { __builtin_memset(numbers_, 0, sizeof(numbers_)); }

  const QkNormRopeBackwardRows& rows_;
  const Segments& segments_;
  alignas(64) A numbers_[kHeadNumbers];
};

template <class T>
void run(const QkNormRopeBackwardRows& rows) {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  const QkNormHeads& heads = rows.heads;
  const Segments segments = segments_of(heads);
  const RmsNormRows limits = row_limits(heads);
  PaddedWeight<T> weight(heads, segments);
  WeightSums<T> sums(rows, segments);
  const bool by_head = weight.of_each_head() || (rows.sums && rows.sums_head_stride != 0);
  std::int64_t current_head = 0;
  // t is the gradient of the output before rotation; g = t * weight and h = x * rstd. The padding
  // between segments stays zero.
  alignas(64) A g[kHeadNumbers] = {}, h[kHeadNumbers] = {};
  T x_copy[kQkNormColumns], dy_copy[kQkNormColumns], dx_copy[kQkNormColumns];
  each_head(
      heads, by_head,
      [&](std::int64_t head) {
        if (by_head && head > 0) sums.flush(current_head);
        current_head = by_head ? head : 0;
        weight.seek(head);
      },
      [&](std::int64_t token, std::int64_t head) MEMBOUND_INLINED {
        const T* x =
            gather(head_at<T>(heads.x, token, heads.x_token_stride, head, heads.x_head_stride),
                   heads.x_dim_stride, 0, heads.head_dim, x_copy);
        const T* dy =
            gather(head_at<T>(rows.dy, token, rows.dy_token_stride, head, rows.dy_head_stride),
                   rows.dy_dim_stride, 0, heads.head_dim, dy_copy);
        prefetch_ahead(x, heads.head_dim * sizeof(T), heads.prefetch_distance);
        prefetch_ahead(dy, heads.head_dim * sizeof(T), heads.prefetch_distance);
        const A rstd =
            heads.rstd == nullptr
                ? rstd_of(limits, x).unscaled()
                : static_cast<const A*>(
                      heads.rstd)[token * heads.rstd_token_stride + head * heads.rstd_head_stride];
        rotate_steps<T>(
            heads, segments, static_cast<const A*>(heads.cos) + token * heads.table_stride,
            static_cast<const A*>(heads.sin) + token * heads.table_stride,
            [&](std::int64_t, std::int64_t element, std::int64_t count)
                MEMBOUND_INLINED { return read_some(dy + element, count); },
            [&](std::int64_t index, std::int64_t element, std::int64_t count, Pair<V> t)
                MEMBOUND_INLINED {
                  const auto value = read_some(x + element, count);
                  const Pair<V> normed{value.first * rstd, value.second * rstd};
                  sums.add(index, t, normed);
                  if (weight.given()) t = product(t, load_pair<V>(weight.numbers() + index));
                  store_pair(g + index, t);
                  store_pair(h + index, normed);
                });
        A dot;
        sums_of_rows<T>(Products<T>{g, h}, segments.padded_size, &dot);
        const A mean = dot / static_cast<A>(heads.head_dim);
        T* dx =
            static_cast<T*>(rows.dx) + token * rows.dx_token_stride + head * rows.dx_head_stride;
        const bool strided = rows.dx_dim_stride != 1;
        T* to = strided ? dx_copy : dx;
        const bool non_temporal = rows.bypass_cache && !strided;
        each_step<T>(segments, [&](std::int64_t index, std::int64_t element,
                                   std::int64_t count) MEMBOUND_INLINED {
          const auto a = load_pair<V>(g + index);
          const auto b = load_pair<V>(h + index);
          write_some(
              to + element, count,
              Pair<V>{(a.first - b.first * mean) * rstd, (a.second - b.second * mean) * rstd},
              non_temporal);
        });
        if (strided) scatter(dx, rows.dx_dim_stride, 0, heads.head_dim, dx_copy);
      });
  sums.flush(current_head);
  if (rows.bypass_cache) stream_fence();
}

}  // namespace

void qk_norm_rope_backward(const QkNormRopeBackwardRows& rows) {
  switch (rows.heads.dtype) {
    case DType::kFloat16: return run<Float16>(rows);
    case DType::kBFloat16: return run<BFloat16>(rows);
    case DType::kFloat32: return run<float>(rows);
    default: return run<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
