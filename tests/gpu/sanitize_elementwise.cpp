// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of the element-wise ops and their gradients, for compute-sanitizer: each dtype;
// aligned, unaligned and strided rows; in place.
#include <algorithm>
#include <string>
#include <vector>

#include "../cpp/elementwise_ops.hpp"
#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

struct Case {
  membound_test::ElementwiseOp op;
  const Format& format;
  std::int64_t rows, cols;
  Layout layout;
  bool in_place;

  std::string text() const {
    return op.name + " " + dtype_name(format.dtype) + " " + std::to_string(rows) + " x " +
           std::to_string(cols) + " " + to_string(layout) + (in_place ? " in place" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t pack = 16 / format.size(), cols = vectors * pack;
  std::vector<Case> list;
  for (const auto& op : membound_test::elementwise_ops()) {
    for (const bool in_place : {false, true}) {
      for (const Layout& layout :
           {Layout{}, Layout{0, pack, 1, true}, Layout{1, 3, 1, false}, Layout{1, 3, 2, true}})
        list.push_back({op, format, rows, cols, layout, in_place});
    }
  }
  return list;
}

long run(const Case& c, const Target& target) {
  Matrix x(c.format, c.rows, c.cols, c.layout), dy(c.format, c.rows, c.cols, c.layout);
  Matrix out(c.format, c.rows, c.cols, c.layout), dx(c.format, c.rows, c.cols, c.layout);
  for (Matrix* one : {&x, &dy}) one->fill();
  for (Matrix* one : {&x, &dy, &out, &dx}) one->upload(target);
  Matrix &to_out = c.in_place ? x : out, &to_dx = c.in_place ? dy : dx;
  for (const Side side : {Side::kTarget, Side::kHost}) {
    c.op.backward(dy.view(side), x.view(side), to_dx.view(side), target.stream);
    c.op.forward(x.view(side), to_out.view(side), target.stream);
  }
  // The GPU's functions for 16-bit storage are accurate to 2^-18.
  const double slack =
      std::max(statistics_of(c.format).tolerance, c.format.size() == 2 ? 0x1p-16 : 0.0);
  return to_out.wrong(target, slack) + to_dx.wrong(target, slack);
}

// {16-byte vectors per row, rows}: narrow rows, one tile, several tiles, and an odd number of rows.
constexpr std::int64_t kSizes[][2] = {{1, 7}, {2, 40}, {64, 130}, {513, 10}, {9000, 6}, {1, 1100}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
