// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/qk_norm_rope.hpp"
#include "cpu/kernels/rms_norm_row.hpp"
#include "cpu/rotation.hpp"

// One head, step by step. Per-element numbers of the accumulate type are kept in padded arrays: the
// head is split into segments that start at whole steps, each step in the order of Lanes<T>, so
// that equal indices of two arrays belong to the same element.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// The longest step of any instruction set, so that indices, and with them sums, are the same on
// all.
constexpr std::int64_t kSegmentStart = 32;
constexpr std::int64_t kMaxSegments = 4;
constexpr std::int64_t kHeadNumbers = kQkNormColumns + kMaxSegments * kSegmentStart;

struct Segment {
  std::int64_t first, count;  // elements
  std::int64_t at;            // the index of the first element
};

// First what is rotated: the two halves, or one segment of interleaved pairs. Then the rest.
struct Segments {
  Segment all[kMaxSegments];
  int count = 0;
  std::int64_t padded_size = 0;

  void add(std::int64_t first, std::int64_t elements) {
    if (elements == 0) return;
    all[count++] = {first, elements, padded_size};
    padded_size += (elements + kSegmentStart - 1) / kSegmentStart * kSegmentStart;
  }
};

Segments segments_of(const QkNormHeads& heads) {
  Segments segments;
  const std::int64_t first = heads.rotary_offset, pairs = heads.rotary_dim / 2;
  if (heads.interleaved) {
    segments.add(first, 2 * pairs);
  } else {
    segments.add(first, pairs);
    segments.add(first + pairs, pairs);
  }
  segments.add(0, first);
  segments.add(first + 2 * pairs, heads.head_dim - first - 2 * pairs);
  return segments;
}

// Calls body(index, element, count) for every step.
template <class T, class Body>
MEMBOUND_ALWAYS_INLINE void each_step(const Segments& segments, Body body) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  for (int i = 0; i < segments.count; ++i) {
    const Segment& one = segments.all[i];
    for (std::int64_t done = 0; done < one.count; done += kStep) {
      body(one.at + done, one.first + done, one.count - done < kStep ? one.count - done : kStep);
    }
  }
}

// The index of element i of a step within the step.
template <class T>
MEMBOUND_ALWAYS_INLINE std::int64_t index_in_step(std::int64_t i) {
  if constexpr (Lanes<T>::kEvenOdd) return i / 2 + i % 2 * (Lanes<T>::kStep / 2);
  return i;
}

// Calls put(index, element, count, rotated) for every step of a head, whose values read(index,
// element, count) returns. Both elements of a pair are read before either is written.
template <class T, class Read, class Put>
MEMBOUND_ALWAYS_INLINE void rotate_steps(const QkNormHeads& heads, const Segments& segments,
                                         const typename Lanes<T>::A* cos,
                                         const typename Lanes<T>::A* sin, Read read, Put put) {
  using V = typename Lanes<T>::V;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const auto each = [&](std::int64_t elements, auto body) MEMBOUND_INLINED {
    std::int64_t done = 0;
    for (; done + kStep <= elements; done += kStep) body(done, kStep);
    if (done < elements) body(done, elements - done);
  };
  const Segment& one = segments.all[0];
  const Segment& two = segments.all[1];
  if (heads.interleaved) {
    each(one.count, [&](std::int64_t done, std::int64_t count) MEMBOUND_INLINED {
      const std::int64_t index = one.at + done, element = one.first + done;
      const auto value = read(index, element, count);
      put(index, element, count, rotated_interleaved<T>(value, done, cos, sin, heads.table_second));
    });
  } else {
    each(one.count, [&](std::int64_t done, std::int64_t count) MEMBOUND_INLINED {
      const Halves<V> rotated = rotated_halves<V>(read(one.at + done, one.first + done, count),
                                                  read(two.at + done, two.first + done, count),
                                                  cos + done, sin + done, heads.table_second);
      put(one.at + done, one.first + done, count, rotated.first);
      put(two.at + done, two.first + done, count, rotated.second);
    });
  }
  for (int rest = heads.interleaved ? 1 : 2; rest < segments.count; ++rest) {
    const Segment& still = segments.all[rest];
    each(still.count, [&](std::int64_t done, std::int64_t count) MEMBOUND_INLINED {
      const std::int64_t index = still.at + done, element = still.first + done;
      put(index, element, count, read(index, element, count));
    });
  }
}

template <class T>
MEMBOUND_ALWAYS_INLINE void write_some(T* to, std::int64_t count, Pair<typename Lanes<T>::V> value,
                                       bool non_temporal) {
  if (count != Lanes<T>::kStep) {
    write_partial(to, value, count);
  } else if (non_temporal && to_boundary(to) == 0) {
    write_step<true>(to, value);
  } else {
    Lanes<T>::write(to, value);
  }
}

// The weight plus offset in a padded array, zero in the padding. NaN payloads are dropped: rounding
// to bfloat16 relies on a lower half of zeros.
template <class T, class W>
void pad_weight(const QkNormHeads& heads, const Segments& segments, std::int64_t head,
                typename Lanes<T>::A* to) {
  using A = typename Lanes<T>::A;
  const W* weight = static_cast<const W*>(heads.weight) + head * heads.weight_head_stride;
  const A offset = static_cast<A>(heads.weight_offset);
  for (std::int64_t i = 0; i < segments.padded_size; ++i) to[i] = 0;
  each_step<T>(segments, [&](std::int64_t index, std::int64_t element, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const A value = static_cast<A>(widen(weight[(element + i) * heads.weight_stride])) + offset;
      to[index + index_in_step<T>(i)] = value == value ? value : static_cast<A>(__builtin_nan(""));
    }
  });
}

// The padded weight: one for all heads, or that of the current head.
template <class T>
class PaddedWeight {
 public:
  using A = typename Lanes<T>::A;

  PaddedWeight(const QkNormHeads& heads, const Segments& segments)
      : heads_(heads), segments_(segments) {
    if (!of_each_head()) index(0);
  }
  // Heads with weights of their own are processed one after the other, so each weight is padded
  // once.
  bool of_each_head() const { return heads_.weight && heads_.weight_head_stride != 0; }
  void seek(std::int64_t head) {
    if (of_each_head()) index(head);
  }
  bool given() const { return heads_.weight != nullptr; }
  const A* numbers() const { return numbers_; }

 private:
  [[gnu::noinline]] void index(std::int64_t head) {
    if (heads_.weight == nullptr) return;
    switch (heads_.weight_dtype) {
      case DType::kFloat16: return pad_weight<T, Float16>(heads_, segments_, head, numbers_);
      case DType::kBFloat16: return pad_weight<T, BFloat16>(heads_, segments_, head, numbers_);
      case DType::kFloat32: return pad_weight<T, float>(heads_, segments_, head, numbers_);
      default: return pad_weight<T, double>(heads_, segments_, head, numbers_);
    }
  }

  const QkNormHeads& heads_;
  const Segments& segments_;
  alignas(64) A numbers_[kHeadNumbers];
};

// What safe_rstd needs of an rms_norm row: sums and bits are the same as there.
inline RmsNormRows row_limits(const QkNormHeads& heads) {
  RmsNormRows limits{};
  limits.cols = heads.head_dim;
  limits.eps = heads.eps;
  limits.safe_low = heads.safe_low;
  limits.safe_high = heads.safe_high;
  limits.safe_exponent = heads.safe_exponent;
  return limits;
}

// Not inlined: shared by the usual width and all others.
template <class T, class Row>
[[gnu::noinline]] typename Lanes<T>::A sum_of_any_squares(const Row& row, std::int64_t cols) {
  typename Lanes<T>::A sum;
  sums_of_block<T>(Squares<T, Row>{row}, 0, cols, &sum);
  return sum;
}

template <class T>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A plain_sum(const RmsNormRows& limits, const T* x) {
  using Input = InputRow<T, false>;
  if (limits.cols != kHead) return sum_of_any_squares<T>(Input{x}, limits.cols);
  typename Lanes<T>::A sum;
  sums_of_block<T>(Squares<T, Input>{{x}}, 0, kHead, &sum);
  return sum;
}

template <class T>
[[gnu::noinline]] SafeRstd<typename Lanes<T>::A> rstd_of(const RmsNormRows& limits, const T* x) {
  using A = typename Lanes<T>::A;
  using Input = InputRow<T, false>;
  const auto sum = [&](A scale) {
    return scale == 1 ? plain_sum(limits, x)
                      : sum_of_any_squares<T>(Scaled<T, Input>{{x}, scale}, limits.cols);
  };
  return safe_rstd<A>(limits, sum, [&] { return largest_of<T>(Input{x}, limits.cols, 0); });
}

std::int64_t distance(std::int64_t stride) { return stride < 0 ? -stride : stride; }

// True: loop over heads first, because that is memory order or heads have weights of their own.
bool loops_by_head(const QkNormHeads& heads, bool own_weights) {
  return own_weights || distance(heads.x_token_stride) < distance(heads.x_head_stride);
}

// Calls body(token, head) for all, and seek(head) before each head's first token if heads are the
// outer loop.
template <class Seek, class Body>
MEMBOUND_ALWAYS_INLINE void each_head(const QkNormHeads& heads, bool own_weights, Seek seek,
                                      Body body) {
  const bool by_head = loops_by_head(heads, own_weights);
  const std::int64_t outer = by_head ? heads.heads : heads.tokens;
  const std::int64_t inner = by_head ? heads.tokens : heads.heads;
  for (std::int64_t at = 0; at < outer; ++at) {
    if (by_head) seek(at);
    for (std::int64_t i = 0; i < inner; ++i) body(by_head ? i : at, by_head ? at : i);
  }
}

template <class T>
MEMBOUND_ALWAYS_INLINE const T* head_at(const void* data, std::int64_t token,
                                        std::int64_t token_stride, std::int64_t head,
                                        std::int64_t head_stride) {
  return static_cast<const T*>(data) + token * token_stride + head * head_stride;
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
