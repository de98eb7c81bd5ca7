// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of qk_norm_rope and qk_norm_rope_backward at least once, for compute-sanitizer:
// each dtype, both pair styles, aligned and unaligned, partial rotation, tables and frequencies,
// shared and per-head weights, rstd given or recomputed, extreme heads, k and v in caches.
#include <algorithm>
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

constexpr std::int64_t kHeads = 3, kKeyHeads = 2, kBlockSize = 4;

enum class Cache { kSlots, kPages, kHeadsFirst };

struct Case {
  const Format& format;
  std::int64_t tokens, head_dim, rotary_dim;
  Layout layout;
  bool interleaved, freqs, of_each_head, saved, extremes;
  QkNormRounding rounding;
  Cache cache = Cache::kSlots;

  std::string text() const {
    return std::string(dtype_name(format.dtype)) + " " + std::to_string(tokens) + " x " +
           std::to_string(head_dim) + " of which " + std::to_string(rotary_dim) + " turn, " +
           to_string(layout) + (interleaved ? " interleaved" : "") + (freqs ? " freqs" : "") +
           (of_each_head ? " weights of heads" : "") + (saved ? " rstd" : "") +
           (extremes ? " extremes" : "") + " rounding " +
           std::to_string(static_cast<int>(rounding)) + " cache " +
           std::to_string(static_cast<int>(cache));
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t tokens) {
  const std::int64_t pack = 16 / format.size(), head_dim = vectors * pack;
  const std::int64_t odd_dim = head_dim == kMaxQkNormHeadDim ? head_dim - 6 : head_dim + 2;
  std::vector<Case> list;
  int number = 0;
  for (const Layout& layout : {Layout{}, Layout{1, 3, 1}, Layout{1, 3, 2}}) {
    for (const bool interleaved : {false, true}) {
      for (const bool freqs : {false, true}) {
        const bool odd = ++number % 2 == 1;
        const QkNormRounding rounding = QkNormRounding(number % 3);
        list.push_back({format, tokens, head_dim, head_dim, layout, interleaved, freqs, odd,
                        number % 4 < 2, false, rounding, Cache(number % 3)});
        list.push_back({format, tokens, odd_dim, odd_dim / 4 * 2, layout, interleaved, freqs, !odd,
                        number % 4 >= 2, true, rounding, Cache(number / 2 % 3)});
        if (head_dim == kMaxQkNormHeadDim) continue;
        const std::int64_t half_dim = head_dim + pack / 2;  // ends in half a vector
        list.push_back({format, tokens, half_dim, half_dim / 2 * 2, layout, interleaved, freqs,
                        false, number % 4 >= 2, odd, rounding, Cache(number / 2 % 3)});
      }
    }
  }
  list.push_back({format,
                  tokens,
                  head_dim,
                  head_dim,
                  {},
                  false,
                  false,
                  false,
                  false,
                  true,
                  QkNormRounding::kOnce});
  return list;
}

// A matrix row as the contiguous heads of a token.
TensorView heads_of(Matrix& matrix, Side side, std::int64_t heads, std::int64_t head_dim) {
  TensorView view = matrix.view(side);
  view.rank = 3;
  view.strides[2] = view.strides[1];
  view.strides[1] = head_dim * view.strides[2];
  view.shape[1] = heads;
  view.shape[2] = head_dim;
  return view;
}

// The arrays of q, or of k, on both sides.
struct Heads {
  Heads(const Case& c, std::int64_t count)
      : heads(count),
        head_dim(c.head_dim),
        x(c.format, c.tokens, count * c.head_dim, c.layout),
        out(c.format, c.tokens, count * c.head_dim, apart(c)),
        dy(c.format, c.tokens, count * c.head_dim, apart(c)),
        dx(c.format, c.tokens, count * c.head_dim, c.layout),
        rstd(statistics_of(c.format), c.tokens, count, {}),
        weight(c.format, c.of_each_head ? count : 1, c.head_dim, {c.layout.offset, 0, 1}),
        dweight(statistics_of(c.format), c.of_each_head ? count : 1, c.head_dim, {}),
        weight_rank(c.of_each_head ? 2 : 1) {
    x.fill(c.extremes);
    dy.fill();
    weight.fill();
    rstd.fill();
  }
  static Layout apart(const Case& c) { return {c.layout.offset, 0, c.layout.step}; }
  void upload(const Target& target) {
    for (Matrix* one : {&x, &out, &dy, &dx, &rstd, &weight, &dweight}) one->upload(target);
  }
  TensorView view(Matrix& matrix, Side side) { return heads_of(matrix, side, heads, head_dim); }
  TensorView columns(Matrix& matrix, Side side) {
    return weight_rank == 2 ? matrix.view(side) : matrix.vector(side);
  }

  std::int64_t heads, head_dim;
  Matrix x, out, dy, dx, rstd, weight, dweight;
  int weight_rank;
};

// Key and value caches with room for all tokens, and their slots: in reverse order, some absent and
// some out of range.
struct Caches {
  Caches(const Case& c, const Target& target)
      : memory(c.cache),
        slots((c.tokens + 2 * kBlockSize) / kBlockSize * kBlockSize),
        keys(c.format, slots * kKeyHeads, c.head_dim, c.layout),
        values(c.format, slots * kKeyHeads, c.head_dim, c.layout),
        numbers(c.tokens),
        on_target(c.tokens * sizeof(std::int64_t), target.device, target.stream),
        device(target.device) {
    for (std::int64_t token = 0; token < c.tokens; ++token) {
      numbers[token] = token % 5 == 4 ? -1 - token : slots - (token % 7 == 6 ? 0 : 1 + token);
    }
    copy_bytes(on_target.data(), device, numbers.data(), Device::cpu(), on_target.bytes(),
               target.stream);
    for (Matrix* one : {&keys, &values}) one->fill().upload(target);
  }
  ConstTensorView mapping(Side side) const {
    const bool host = side == Side::kHost;
    const void* data = host ? static_cast<const void*>(numbers.data()) : on_target.data();
    return ConstTensorView(data, DType::kInt64, host ? Device::cpu() : device,
                           {static_cast<std::int64_t>(numbers.size())});
  }
  TensorView view(Matrix& matrix, Side side) const {
    TensorView view = matrix.view(side);
    const std::int64_t pitch = view.strides[0], step = view.strides[1], dim = view.shape[1];
    view.rank = 0;
    const auto append = [&](std::int64_t extent, std::int64_t stride) {
      view.shape[view.rank] = extent;
      view.strides[view.rank++] = stride;
    };
    const bool heads_first = memory == Cache::kHeadsFirst;
    if (memory != Cache::kSlots) append(slots / kBlockSize, kBlockSize * kKeyHeads * pitch);
    append(memory == Cache::kSlots ? slots : kBlockSize, heads_first ? pitch : kKeyHeads * pitch);
    append(kKeyHeads, heads_first ? kBlockSize * pitch : pitch);
    append(dim, step);
    return view;
  }

  Cache memory;
  std::int64_t slots;
  Matrix keys, values;
  std::vector<std::int64_t> numbers;
  DeviceBuffer on_target;
  Device device;
};

void run_side(const Case& c, Heads& q, Heads& k, Caches& caches, const RopeAngles& angles,
              Side side, const Target& target) {
  QkNormRopeOptions options;
  options.rope.layout = RopeLayout::kThd;
  options.rope.interleaved = c.interleaved;
  options.rope.rotary_dim = c.rotary_dim;
  options.rope.rotary_offset = std::min<std::int64_t>(c.head_dim - c.rotary_dim, 2);
  options.rounding = c.rounding;
  options.weight_offset = 0.5;
  const ConstTensorView x = q.view(q.x, side), k_x = k.view(k.x, side);
  const ConstTensorView weight = q.columns(q.weight, side), k_weight = k.columns(k.weight, side);
  const TensorView k_out = k.view(k.out, side), rstd = q.rstd.view(side);
  const TensorView k_rstd = k.rstd.view(side);
  qk_norm_rope(x, &k_x, &weight, &k_weight, angles, options, q.view(q.out, side), &k_out, &rstd,
               &k_rstd, target.stream);
  const ConstTensorView dy = q.view(q.dy, side), k_dy = k.view(k.dy, side);
  const ConstTensorView saved = rstd, k_saved = k_rstd;
  const TensorView dx = q.view(q.dx, side), k_dx = k.view(k.dx, side);
  const TensorView dweight = q.columns(q.dweight, side), k_dweight = k.columns(k.dweight, side);
  const QkNormRopeGradient of_q{dy, x, &weight, c.saved ? &saved : nullptr, dx, &dweight};
  const QkNormRopeGradient of_k{k_dy, k_x,       &k_weight, c.saved ? &k_saved : nullptr,
                                k_dx, &k_dweight};
  qk_norm_rope_backward(of_q, &of_k, angles, options, false, nullptr, target.stream);
  const TensorView keys = caches.view(caches.keys, side), values = caches.view(caches.values, side);
  qk_norm_rope(x, k_x, &weight, &k_weight, angles, options, q.view(q.out, side),
               {keys, caches.mapping(side), &k_dy, &values}, target.stream);
}

long run(const Case& c, const Target& target) {
  const Format& wide = statistics_of(c.format);
  Heads q(c, kHeads), k(c, kKeyHeads);
  Matrix cos(wide, c.tokens, c.rotary_dim / 2, {}), sin(wide, c.tokens, c.rotary_dim / 2, {});
  Matrix freqs(kDouble, 1, c.rotary_dim / 2, {});
  for (Matrix* one : {&cos, &sin, &freqs}) one->fill().upload(target);
  q.upload(target);
  k.upload(target);
  Caches caches(c, target);
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView c_view = cos.view(side), s_view = sin.view(side), f = freqs.vector(side);
    RopeAngles angles;
    angles.freqs = c.freqs ? &f : nullptr;
    angles.cos = c.freqs ? nullptr : &c_view;
    angles.sin = c.freqs ? nullptr : &s_view;
    run_side(c, q, k, caches, angles, side, target);
  }
  // Terms of up to 8 cancel; with 16 bits, intermediate roundings may have gone either way.
  const double slack = 24 * c.format.tolerance;
  // Gradients of zero heads are multiplied by 1 / sqrt(eps); angles computed from frequencies may
  // differ by an ulp, because compilers contract operations.
  const double factor = c.extremes && c.freqs ? 1000 : 1;
  long wrong = 0;
  for (Heads* one : {&q, &k}) {
    wrong += one->out.wrong(target, slack) + one->dx.wrong(target, 4 * factor * slack);
    wrong += one->rstd.wrong(target, 0);
    const double rounded = c.rounding == QkNormRounding::kBeforeWeight ? slack : 0;
    wrong += one->dweight.wrong(
        target, (rounded + 24 * wide.tolerance) * static_cast<double>(c.tokens * kHeads));
  }
  return wrong + caches.keys.wrong(target, slack) + caches.values.wrong(target, 0);
}

// {16-byte vectors per head, tokens}: every number of lanes, several parts, several heads per
// thread, and more vectors than lanes hold.
constexpr std::int64_t kSizes[][2] = {{2, 5},  {4, 3},     {16, 300}, {32, 7},
                                      {64, 6}, {64, 2200}, {128, 3},  {12, 9}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
