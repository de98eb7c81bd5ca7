// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of rms_norm and add_rms_norm at least once, for compute-sanitizer: each dtype,
// each storage of a row, aligned and unaligned, each kind of weight, rescaled rows, strided rows.
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
  const Format* weight;  // nullptr: none
  Rounding rounding;
  bool in_place, add;

  std::string text() const {
    return std::string(add ? "add " : "") + dtype_name(format.dtype) + " " + std::to_string(rows) +
           " x " + std::to_string(cols) + " " + to_string(layout) + " weight " +
           (weight ? dtype_name(weight->dtype) : "none") + (in_place ? " in place" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t pack = 16 / format.size(), cols = vectors * pack;
  const Format* same = &format;
  const Rounding once = Rounding::kOnce, before = Rounding::kBeforeWeight;
  std::vector<Case> list;
  if (rows > kManyRows) {  // persistent blocks, and narrow rows without gaps
    for (const bool add : {false, true}) {
      list.push_back({format, rows, cols, {1}, same, once, false, add});
      list.push_back({format, rows, cols - 1, {}, same, once, true, add});
    }
    return list;
  }
  for (const bool add : {false, true}) {
    const Case both[] = {
        {format, rows, cols, {}, same, once, false, add},
        {format, rows, cols, {}, &kSingle, before, true, add},
        {format, rows, cols, {0, pack}, nullptr, once, false, add},
        {format, rows, cols, {1}, same, before, false, add},
        {format, rows, cols, {2}, same, once, true, add},
        {format, rows, cols - 2, {}, same, once, false, add},
        {format, rows, cols - 1, {}, same, once, true, add},
        {format, rows, cols - 1, {}, &kDouble, once, true, add},
        {format, rows, cols, {1, 3, 1, true}, nullptr, once, false, add},
        {format, rows, cols, {1, 3, 2}, &kSingle, once, false, add},
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
  Matrix rstd(statistics_of(c.format), 1, c.rows, {});
  x.fill(true);
  residual.fill(true);
  weight.fill();
  Matrix& written = c.in_place ? x : out;
  Matrix& summed = c.in_place ? residual : sum;
  for (Matrix* one : {&x, &residual, &out, &sum, &weight, &rstd}) one->upload(target);

  RmsNormOptions options;
  options.rounding = c.rounding;
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView factors = weight.vector(side);
    const ConstTensorView* given = c.weight ? &factors : nullptr;
    const TensorView saved = rstd.vector(side, x.split());
    if (c.add) {
      add_rms_norm(x.view(side), residual.view(side), given, options, written.view(side),
                   summed.view(side), &saved, target.stream);
    } else {
      rms_norm(x.view(side), given, options, written.view(side), &saved, target.stream);
    }
  }
  return written.wrong(target, 1e-300) + rstd.wrong(target, 1e-300) +
         (c.add ? summed.wrong(target, 1e-300) : 0);
}

// {16-byte vectors per row, rows}: the widths are the ends of each kernel's range; the rows are
// enough for the launch configuration to give threads more items. 110,000 vectors do not fit in a
// cluster, so that the row is read twice. The last sizes have rows enough for persistent blocks.
constexpr std::int64_t kSizes[][2] = {
    {1, 6},      {2, 40},     {33, 7},      {64, 130},    {65, 5},    {512, 600},  {513, 6},
    {1024, 300}, {1025, 4},   {2048, 150},  {2049, 5},    {9000, 6},  {20000, 3},  {110000, 2},
    {65, 8501},  {513, 1601}, {1024, 1101}, {1025, 1601}, {8, 26001}, {11, 13001}, {64, 3301}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
