// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of layer_norm and add_layer_norm at least once, for compute-sanitizer: each
// dtype, each storage of a row, aligned and unaligned, each kind of weight and bias, rescaled rows,
// strided rows.
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

struct Case {
  const Format& format;
  std::int64_t rows, cols;
  Layout layout;
  const Format *weight, *bias;  // nullptr: none
  bool in_place, add;

  std::string text() const {
    return std::string(add ? "add " : "") + dtype_name(format.dtype) + " " + std::to_string(rows) +
           " x " + std::to_string(cols) + " " + to_string(layout) + " weight " +
           (weight ? dtype_name(weight->dtype) : "none") + " bias " +
           (bias ? dtype_name(bias->dtype) : "none") + (in_place ? " in place" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t pack = 16 / format.size(), cols = vectors * pack;
  const Format* same = &format;
  std::vector<Case> list;
  if (rows > kManyRows) {  // persistent blocks, and narrow rows in pairs, without gaps
    list.push_back({format, rows, cols, {}, same, same, false, false});
    for (const bool add : {false, true}) {
      list.push_back({format, rows, cols, {1}, same, same, false, add});
      list.push_back({format, rows, cols - 1, {}, same, nullptr, true, add});
    }
    return list;
  }
  for (const bool add : {false, true}) {
    const Case both[] = {
        {format, rows, cols, {}, same, same, false, add},
        {format, rows, cols, {}, &kSingle, nullptr, true, add},
        {format, rows, cols, {0, pack}, nullptr, &kSingle, false, add},
        {format, rows, cols, {1}, same, same, false, add},
        {format, rows, cols, {2}, same, &kSingle, true, add},
        {format, rows, cols - 2, {}, same, same, false, add},
        {format, rows, cols - 1, {}, same, same, true, add},
        {format, rows, cols - 1, {}, &kDouble, same, true, add},
        {format, rows, cols, {1, 3, 1, true}, nullptr, nullptr, false, add},
        {format, rows, cols, {1, 3, 2}, &kSingle, &kDouble, false, add},
    };
    for (const Case& one : both) {
      if (one.cols > 0) list.push_back(one);
    }
  }
  return list;
}

long run(const Case& c, const Target& target) {
  // Output rows have no gaps, unless they are inputs as well.
  const Layout out_layout{c.layout.offset, 0, c.layout.step, c.layout.split};
  Matrix x(c.format, c.rows, c.cols, c.layout), residual(c.format, c.rows, c.cols, c.layout);
  Matrix out(c.format, c.rows, c.cols, out_layout), sum(c.format, c.rows, c.cols, out_layout);
  // Only the rows are offset: the kernels of unaligned rows need an aligned weight.
  Matrix weight(c.weight ? *c.weight : c.format, 1, c.cols, {0, 0, c.layout.step});
  Matrix bias(c.bias ? *c.bias : c.format, 1, c.cols, {0, 0, c.layout.step});
  Matrix mean(statistics_of(c.format), 1, c.rows, {}), rstd(statistics_of(c.format), 1, c.rows, {});
  // A mean of huge values cancels to nothing that could be compared, so it is not requested then.
  const bool extremes = c.bias != nullptr;
  x.fill(extremes);
  residual.fill(extremes);
  weight.fill();
  bias.fill();
  Matrix& written = c.in_place ? x : out;
  Matrix& summed = c.in_place ? residual : sum;
  for (Matrix* one : {&x, &residual, &out, &sum, &weight, &bias, &mean, &rstd}) one->upload(target);

  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView factors = weight.vector(side), terms = bias.vector(side);
    const ConstTensorView* scale = c.weight ? &factors : nullptr;
    const ConstTensorView* shift = c.bias ? &terms : nullptr;
    const TensorView means = mean.vector(side, x.split()), saved = rstd.vector(side, x.split());
    if (c.add) {
      add_layer_norm(x.view(side), residual.view(side), scale, shift, {}, written.view(side),
                     summed.view(side), extremes ? nullptr : &means, &saved, target.stream);
    } else {
      layer_norm(x.view(side), scale, shift, {}, written.view(side), extremes ? nullptr : &means,
                 &saved, target.stream);
    }
  }
  // A bias may cancel, and so may values of either sign in the mean. Outputs not requested stay
  // NaN.
  const double slack = 8.0 * c.format.tolerance;
  return written.wrong(target, slack) + rstd.wrong(target, 1e-300) +
         (extremes ? 0 : mean.wrong(target, 8.0 * statistics_of(c.format).tolerance)) +
         (c.add ? summed.wrong(target, 1e-300) : 0);
}

// {16-byte vectors per row, rows}: the widths are the ends of each kernel's range; the rows are
// enough for the launch configuration to give threads more items. 110,000 vectors do not fit in a
// cluster, so that the row is read twice. Narrow rows are enough for two per thread group, with
// four and with three items per lane.
constexpr std::int64_t kSizes[][2] = {
    {1, 6},     {2, 40},     {33, 7},     {64, 130},   {65, 5},      {512, 600},
    {513, 6},   {1024, 300}, {1025, 4},   {2048, 150}, {2049, 5},    {9000, 6},
    {20000, 3}, {110000, 2}, {65, 8501},  {513, 1601}, {1024, 1101}, {1025, 1601},
    {8, 68001}, {64, 8601},  {11, 13001}, {24, 17001}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
