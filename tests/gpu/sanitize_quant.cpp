// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of rms_norm_quant and add_rms_norm_quant at least once, for compute-sanitizer:
// each dtype, each storage of a row, each kind of scale, aligned and unaligned, rescaled rows.
// Codes are float8_e5m2, whose bits the comparison can read.
#include <cmath>
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

// Two correct results may differ by one code if the norm differs by one ulp.
constexpr Format kE5M2{DType::kFloat8E5M2, 5, 2, 0.26, 28};

enum class Scale { kRow, kStatic, kGroup64, kGroup128 };

struct Case {
  const Format& format;
  std::int64_t rows, cols;
  Layout layout;
  Scale scale;
  bool add;

  std::string text() const {
    return std::string(add ? "add " : "") + dtype_name(format.dtype) + " " + std::to_string(rows) +
           " x " + std::to_string(cols) + " " + to_string(layout) + " scale " +
           std::to_string(static_cast<int>(scale));
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t cols = vectors * (16 / format.size());
  std::vector<Case> list;
  for (const bool add : {false, true}) {
    for (const Scale scale : {Scale::kRow, Scale::kStatic, Scale::kGroup64, Scale::kGroup128}) {
      list.push_back({format, rows, cols, {}, scale, add});
    }
    list.push_back({format, rows, cols, {1, 3, 1, true}, Scale::kGroup64, add});
    list.push_back({format, rows, cols, {1, 3, 2}, Scale::kRow, add});
    list.push_back({format, rows, cols, {1, 3}, Scale::kRow, add});
    list.push_back({format, rows, cols, {3, 5}, Scale::kStatic, add});
  }
  return list;
}

long run(const Case& c, const Target& target) {
  const Layout apart{c.layout.offset, 0, c.layout.step, c.layout.split};
  const std::int64_t size = c.scale == Scale::kGroup64 ? 64 : c.scale == Scale::kGroup128 ? 128 : 0;
  const std::int64_t groups = size ? (c.cols + size - 1) / size : 1;
  Matrix x(c.format, c.rows, c.cols, c.layout), residual(c.format, c.rows, c.cols, c.layout);
  Matrix sum(c.format, c.rows, c.cols, apart), out(kE5M2, c.rows, c.cols, apart);
  Matrix weight(c.format, 1, c.cols, {0, 0, c.layout.step});
  Matrix row_scale(kSingle, 1, c.rows, {}), given(kSingle, 1, 1, {});
  Matrix group_scale(kSingle, c.rows, groups, {0, 0, 1, c.layout.split});
  x.fill(true);
  residual.fill(true);
  weight.fill();
  given.fill();
  for (Matrix* one : {&x, &residual, &sum, &out, &weight, &row_scale, &group_scale, &given}) {
    one->upload(target);
  }
  RmsNormQuantOptions options;
  options.group_size = size;
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView factors = weight.vector(side), fixed = given.vector(side);
    const TensorView scales = size ? group_scale.view(side) : row_scale.vector(side, x.split());
    const bool is_static = c.scale == Scale::kStatic;
    const ConstTensorView* static_scale = is_static ? &fixed : nullptr;
    const TensorView* scale = is_static ? nullptr : &scales;
    if (c.add) {
      add_rms_norm_quant(x.view(side), residual.view(side), &factors, options, out.view(side),
                         sum.view(side), static_scale, scale, target.stream);
    } else {
      rms_norm_quant(x.view(side), &factors, options, out.view(side), static_scale, scale,
                     target.stream);
    }
  }
  const double step = 4 * c.format.tolerance;  // a scale has the ulp of its largest result
  long wrong = out.wrong(target, 1e-4) + (c.add ? sum.wrong(target, 1e-300) : 0);
  if (c.scale == Scale::kRow) wrong += row_scale.wrong(target, step);
  if (size) wrong += group_scale.wrong(target, step);
  return wrong;
}

// As in sanitize_rms_norm.cpp, and enough narrow rows for half of the lanes per row.
constexpr std::int64_t kSizes[][2] = {
    {1, 6},    {2, 40},     {33, 7},   {64, 130}, {65, 5},    {512, 600},  {513, 6},    {1024, 300},
    {1025, 4}, {2048, 150}, {2049, 5}, {9000, 6}, {20000, 3}, {110000, 2}, {24, 17001}, {32, 9001}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
