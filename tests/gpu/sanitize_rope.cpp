// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of rope and rope_backward at least once, for compute-sanitizer: each dtype,
// both pair styles, aligned and unaligned, tables and frequencies, and ids out of range (which must
// read nothing).
#include <cmath>
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

constexpr std::int64_t kHeads = 3;

struct Case {
  const Format& format;
  std::int64_t tokens, head_dim;
  Layout layout;
  bool interleaved, freqs, ids;

  std::string text() const {
    return std::string(dtype_name(format.dtype)) + " " + std::to_string(tokens) + " x " +
           std::to_string(head_dim) + " " + to_string(layout) +
           (interleaved ? " interleaved" : "") + (freqs ? " freqs" : "") + (ids ? " ids" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t tokens) {
  const std::int64_t pack = 16 / format.size(), head_dim = 2 * vectors * pack;
  std::vector<Case> list;
  for (const bool interleaved : {false, true}) {
    for (const bool freqs : {false, true}) {
      list.push_back({format, tokens, head_dim, {}, interleaved, freqs, false});
      list.push_back({format, tokens, head_dim, {1, 3, 1}, interleaved, freqs, true});
      list.push_back({format, tokens, head_dim, {1, 3, 2}, interleaved, freqs, false});
      // In vectors of 8 and 4 bytes. Heads have even widths, so that float64 has none of 4 bytes.
      list.push_back({format, tokens, head_dim + pack, {}, interleaved, freqs, false});
      if (pack == 2) continue;
      list.push_back({format, tokens, head_dim + pack / 2, {}, interleaved, freqs, false});
    }
  }
  return list;
}

// A matrix row as the kHeads contiguous heads of a token.
TensorView heads_of(Matrix& matrix, Side side, const Case& c) {
  TensorView view = matrix.view(side);
  view.rank = 4;
  view.shape[1] = c.tokens;
  view.strides[3] = view.strides[1];
  view.strides[1] = view.strides[0];
  view.shape[0] = 1;
  view.shape[2] = kHeads;
  view.strides[2] = c.head_dim * view.strides[3];
  view.shape[3] = c.head_dim;
  return view;
}

// Positions in a table of `positions` rows, and some out of range, on both sides.
struct Ids {
  Ids(std::int64_t tokens, std::int64_t positions, bool beyond, const Target& target)
      : numbers(tokens),
        on_target(tokens * sizeof(std::int64_t), target.device, target.stream),
        device(target.device) {
    for (std::int64_t& one : numbers) one = static_cast<std::int64_t>(next_random() % positions);
    if (beyond) numbers[tokens / 2] = std::int64_t{1} << 60;
    copy_bytes(on_target.data(), device, numbers.data(), Device::cpu(),
               tokens * sizeof(std::int64_t), target.stream);
  }
  ConstTensorView view(Side side) {
    const bool host = side == Side::kHost;
    return ConstTensorView(host ? numbers.data() : on_target.data(), DType::kInt64,
                           host ? Device::cpu() : device,
                           {static_cast<std::int64_t>(numbers.size())});
  }

  std::vector<std::int64_t> numbers;
  DeviceBuffer on_target;
  Device device;
};

long run(const Case& c, const Target& target) {
  const Layout apart{c.layout.offset, 0, c.layout.step};
  const std::int64_t cols = kHeads * c.head_dim;
  const Format& wide = statistics_of(c.format);
  Matrix q(c.format, c.tokens, cols, c.layout), out(c.format, c.tokens, cols, apart);
  Matrix back(c.format, c.tokens, cols, apart), lost(c.format, c.tokens, cols, apart);
  Matrix cos(wide, c.tokens, c.head_dim / 2, {}), sin(wide, c.tokens, c.head_dim / 2, {});
  Matrix freqs(kDouble, 1, c.head_dim / 2, {}), dfreqs(kDouble, 1, c.head_dim / 2, {});
  for (Matrix* one : {&q, &cos, &sin, &freqs}) one->fill();
  for (Matrix* one : {&q, &out, &back, &lost, &cos, &sin, &freqs, &dfreqs}) one->upload(target);
  Ids ids(c.tokens, c.tokens, false, target), beyond(c.tokens, c.tokens, true, target);
  RopeOptions options;
  options.interleaved = c.interleaved;
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView x = heads_of(q, side, c), c_view = cos.view(side),
                          s_view = sin.view(side);
    const ConstTensorView f = freqs.vector(side), id = ids.view(side), bad = beyond.view(side);
    const TensorView y = heads_of(out, side, c), gradient = dfreqs.vector(side);
    RopeAngles angles;
    if (c.freqs) {
      angles.freqs = &f;
    } else {
      angles.cos = &c_view;
      angles.sin = &s_view;
    }
    if (c.ids) angles.position_ids = &id;
    rope(x, nullptr, angles, options, y, nullptr, target.stream);
    const ConstTensorView dy = y;
    rope_backward(dy, nullptr, c.freqs ? &x : nullptr, nullptr, angles, options,
                  heads_of(back, side, c), nullptr, c.freqs ? &gradient : nullptr, nullptr,
                  target.stream);
    angles.position_ids = &bad;
    rope(x, nullptr, angles, options, heads_of(lost, side, c), nullptr, target.stream);
  }
  const double slack = 16 * c.format.tolerance;  // terms of up to 8 cancel, twice
  long wrong = out.wrong(target, slack) + back.wrong(target, 4 * slack);
  // Sums over tokens of products with gradients as they were rounded.
  if (c.freqs) wrong += dfreqs.wrong(target, slack * 64.0 * c.tokens * c.tokens);
  return wrong;
}

// {16-byte vectors per half head, tokens}: heads around a warp of units; few and many tokens.
constexpr std::int64_t kSizes[][2] = {{1, 40},   {2, 3},   {5, 100}, {8, 600},
                                      {8, 3000}, {33, 20}, {300, 4}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
