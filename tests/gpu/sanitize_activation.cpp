// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of gated activations and their gradients, for compute-sanitizer: each dtype and
// kind; aligned, unaligned and strided rows; with and without up and row scales; each gradient
// alone; in place.
#include <algorithm>
#include <string>
#include <vector>

#include "membound/ops/gated_activation_backward.hpp"
#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

enum class Written { kApart, kInPlace, kDgateAlone, kDupAlone };

struct Case {
  const char* name;
  Activation kind;
  Layout layout = {};
  bool up = true;
  bool options = false;  // a limit, an offset, row scales
  Written written = Written::kApart;
  const Format* format = nullptr;
  std::int64_t rows = 0, cols = 0;

  std::string text() const {
    return std::string(name) + ": " + dtype_name(format->dtype) + " " + std::to_string(rows) +
           " x " + std::to_string(cols) + " " + to_string(layout);
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t pack = 16 / format.size();
  const Layout shifted{1, 3}, strided{1, 3, 2, true}, two_axes{0, pack, 1, true};
  std::vector<Case> list = {
      {"silu", Activation::kSilu},
      {"silu with options", Activation::kSilu, two_axes, true, true},
      {"silu, unaligned", Activation::kSilu, shifted},
      {"silu alone", Activation::kSilu, shifted, false, true},
      {"gelu", Activation::kGelu, {}, true, false, Written::kInPlace},
      {"gelu apart", Activation::kGelu, strided, true, true},
      {"gelu by tanh", Activation::kGeluTanh, {}, true, true},
      {"gelu by tanh, unaligned", Activation::kGeluTanh, shifted, true, false, Written::kInPlace},
      {"sigmoid", Activation::kSigmoid, {}, true, false, Written::kDgateAlone},
      {"sigmoid, unaligned", Activation::kSigmoid, shifted, true, false, Written::kDupAlone},
      {"relu2", Activation::kRelu2, {}, false},
      {"relu2 apart", Activation::kRelu2, strided, true, true},
  };
  for (Case& one : list) {
    one.format = &format;
    one.rows = rows;
    one.cols = vectors * pack;
  }
  return list;
}

long run(const Case& c, const Target& target) {
  const Format &format = *c.format, &sums = statistics_of(format);
  // Unaligned arrays have two different alignments, dup also where dgate has the other one.
  Layout other = c.layout;
  if (other.offset % 2 == 1) ++other.offset;
  Matrix gate(format, c.rows, c.cols, c.layout), up(format, c.rows, c.cols, other);
  Matrix dy(format, c.rows, c.cols, c.layout), out(format, c.rows, c.cols, c.layout);
  Matrix dgate(format, c.rows, c.cols, c.layout), dup(format, c.rows, c.cols, other);
  Matrix scale(sums, 1, c.rows, {});
  for (Matrix* one : {&gate, &up, &dy, &scale}) one->fill();
  for (Matrix* one : {&gate, &up, &dy, &out, &dgate, &dup, &scale}) one->upload(target);
  const bool in_place = c.written == Written::kInPlace;
  Matrix &to_dgate = in_place ? gate : dgate, &to_dup = in_place ? dy : dup;
  const bool wants_dgate = c.written != Written::kDupAlone;
  const bool wants_dup = c.up && c.written != Written::kDgateAlone;

  GatedActivationOptions options;
  options.kind = c.kind;
  if (c.options) {
    options.limit = 1.25;
    options.up_offset = c.up ? 1 : 0;
  }
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView up_view = up.view(side), scale_view = scale.vector(side, gate.split());
    const ConstTensorView* given_up = c.up ? &up_view : nullptr;
    const ConstTensorView* given_scale = c.options ? &scale_view : nullptr;
    gated_activation(gate.view(side), given_up, given_scale, options, out.view(side),
                     target.stream);
    const TensorView dgate_view = to_dgate.view(side), dup_view = to_dup.view(side);
    gated_activation_backward(dy.view(side), gate.view(side), given_up, given_scale, options,
                              wants_dgate ? &dgate_view : nullptr, wants_dup ? &dup_view : nullptr,
                              target.stream);
  }
  // Terms of a slope may cancel; the GPU's functions for 16-bit storage are accurate to 2^-18.
  const double slack = 16.0 * std::max(sums.tolerance, format.size() == 2 ? 0x1p-16 : 0.0);
  long wrong = out.wrong(target, slack);
  if (wants_dgate) wrong += to_dgate.wrong(target, slack);
  if (wants_dup) wrong += to_dup.wrong(target, slack);
  return wrong;
}

// {16-byte vectors per row, rows}: narrow rows, one tile, several tiles, and an odd number of rows.
constexpr std::int64_t kSizes[][2] = {{1, 7},    {2, 40},   {33, 8},   {64, 130}, {255, 6},
                                      {512, 40}, {513, 10}, {1025, 4}, {9000, 6}, {1, 1100}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
