// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of gated_activation_quant at least once, for compute-sanitizer: each dtype,
// kind and kind of scale; aligned, unaligned and strided rows; rows that a block stages and rows
// that it computes twice. Codes are float8_e5m2, whose bits the comparison can read.
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

// Two correct results may differ by one code if the activation differs by one ulp.
constexpr Format kE5M2{DType::kFloat8E5M2, 5, 2, 0.26, 28};

enum class Scale { kRow, kStatic, kGroup64, kGroup128 };

struct Case {
  Activation kind;
  Scale scale;
  Layout layout = {};
  bool up = true;
  bool options = false;  // a limit, an offset, row scales
  const Format* format = nullptr;
  std::int64_t rows = 0, cols = 0;

  std::string text() const {
    return "kind " + std::to_string(static_cast<int>(kind)) + ": " + dtype_name(format->dtype) +
           " " + std::to_string(rows) + " x " + std::to_string(cols) + " " + to_string(layout) +
           " scale " + std::to_string(static_cast<int>(scale));
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t pack = 16 / format.size();
  const Layout shifted{1, 3}, strided{1, 3, 2, true}, two_axes{0, pack, 1, true};
  std::vector<Case> list = {
      {Activation::kSilu, Scale::kRow},
      {Activation::kSilu, Scale::kStatic},
      {Activation::kSilu, Scale::kGroup64},
      {Activation::kSilu, Scale::kGroup128, two_axes, true, true},
      {Activation::kSilu, Scale::kRow, shifted, false, true},
      {Activation::kGelu, Scale::kGroup64, shifted},
      {Activation::kGelu, Scale::kRow, two_axes, true, true},
      {Activation::kGeluTanh, Scale::kGroup128, strided, true, true},
      {Activation::kSigmoid, Scale::kRow, strided, false},
      {Activation::kSigmoid, Scale::kGroup128, {}, false},
      {Activation::kRelu2, Scale::kStatic, strided, false, true},
      {Activation::kRelu2, Scale::kRow, {}, false},
  };
  for (Case& one : list) {
    one.format = &format;
    one.rows = rows;
    one.cols = vectors * pack;
  }
  return list;
}

long run(const Case& c, const Target& target) {
  const std::int64_t size = c.scale == Scale::kGroup64 ? 64 : c.scale == Scale::kGroup128 ? 128 : 0;
  const std::int64_t groups = size ? (c.cols + size - 1) / size : 1;
  Matrix gate(*c.format, c.rows, c.cols, c.layout), up(*c.format, c.rows, c.cols, c.layout);
  Matrix out(kE5M2, c.rows, c.cols, c.layout), given(kSingle, 1, 1, {});
  Matrix factors(statistics_of(*c.format), 1, c.rows, {}), row_scale(kSingle, 1, c.rows, {});
  Matrix group_scale(kSingle, c.rows, groups, {0, 0, 1, c.layout.split});
  for (Matrix* one : {&gate, &up, &factors, &given}) one->fill();
  for (Matrix* one : {&gate, &up, &out, &factors, &given, &row_scale, &group_scale})
    one->upload(target);
  GatedActivationQuantOptions options;
  options.activation.kind = c.kind;
  options.group_size = size;
  if (c.options) {
    options.activation.limit = 1.25;
    options.activation.up_offset = c.up ? 1 : 0;
  }
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView up_view = up.view(side), fixed = given.vector(side);
    const ConstTensorView factor = factors.vector(side, gate.split());
    const TensorView scales = size ? group_scale.view(side) : row_scale.vector(side, gate.split());
    const bool is_static = c.scale == Scale::kStatic;
    gated_activation_quant(
        gate.view(side), c.up ? &up_view : nullptr, c.options ? &factor : nullptr, options,
        out.view(side), is_static ? &fixed : nullptr, is_static ? nullptr : &scales, target.stream);
  }
  long wrong = out.wrong(target, 1e-4);
  if (c.scale == Scale::kRow) wrong += row_scale.wrong(target, 1e-6);
  if (size) wrong += group_scale.wrong(target, 1e-6);
  return wrong;
}

// {16-byte vectors per row, rows}: narrow rows, one tile, several tiles, the most a block stages,
// and more.
constexpr std::int64_t kSizes[][2] = {{1, 7},    {2, 40},   {33, 8},   {64, 130}, {255, 6},
                                      {512, 40}, {513, 10}, {1025, 4}, {9000, 6}, {1, 1100}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
