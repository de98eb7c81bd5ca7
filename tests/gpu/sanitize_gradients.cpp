// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of rms_norm_backward and add_rms_norm_backward at least once, for
// compute-sanitizer: each dtype, both launch forms with all their block shapes, aligned and
// unaligned, each result alone, in place, with and without a workspace from the caller.
#include <algorithm>
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

enum class Dx { kSeparate, kNone, kInDy, kInX, kInDsum };

struct Case {
  const char* name;
  Layout layout = {};
  const Format* weight = nullptr;
  const Format* dweight = nullptr;
  Dx dx = Dx::kSeparate;
  bool add = false;
  bool workspace = false;  // the caller's
  bool options = false;    // weight_offset, rounding before the weight, accumulate
  bool centred = false;    // layer_norm; dbias like dweight
  std::int64_t narrower = 0;
  const Format* format = nullptr;
  std::int64_t rows = 0, cols = 0;

  std::string text() const {
    return std::string(centred ? "centred " : "") + name + ": " + dtype_name(format->dtype) + " " +
           std::to_string(rows) + " x " + std::to_string(cols) + " " + to_string(layout);
  }
};

// The fewest rows, an even number, for which a width uses the persistent kernel.
std::int64_t persistent_rows(std::int64_t cols) {
  constexpr std::int64_t kRows = 1100, kElements = 8 << 20;
  return std::min(kRows, (kElements / cols + 2) / 2 * 2);
}

// rows = 0: as many as the persistent kernel needs.
std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t pack = 16 / format.size();
  const Format *same = &format, *fp32 = &kSingle, *fp64 = &kDouble;
  std::vector<Case> list = {
      {"plain", {}, same, same, Dx::kSeparate, false, true, false},
      {"options", {0, pack}, fp32, fp32, Dx::kSeparate, true, false, true},
      {"in dy", {}, same, fp32, Dx::kInDy, false, false, false},
      {"dx alone", {}, nullptr, nullptr, Dx::kSeparate, false, false, false},
      {"dx alone in dsum", {}, same, nullptr, Dx::kInDsum, true, false, false},
      {"dweight alone", {}, same, same, Dx::kNone, false, true, true},
      {"unaligned", {1}, same, same, Dx::kSeparate, false, true, false},
      {"odd width", {}, same, fp64, Dx::kInX, true, false, true, 1},
      {"odd, plain", {}, same, same, Dx::kInX, false, true, false, 1},
      {"odd, added", {}, same, same, Dx::kInDsum, true, true, false, 1},
      {"odd, rounded", {}, same, same, Dx::kInDy, false, true, true, 1},
      {"unaligned dweight alone", {1}, fp32, same, Dx::kNone, false, false, false},
      {"split", {1, 3, 1, true}, same, same, Dx::kInDsum, true, true, true},
      {"strided", {1, 3, 2}, fp64, same, Dx::kSeparate, true, false, true},
      {"strided in x", {0, 0, 2}, fp32, fp64, Dx::kInX, false, true, false},
  };
  const std::size_t plain = list.size();
  for (std::size_t i = 0; i < plain; ++i) {
    list.push_back(list[i]);
    list.back().centred = true;
  }
  for (Case& one : list) {
    one.format = &format;
    one.cols = std::max<std::int64_t>(1, vectors * pack - one.narrower);
    one.rows = rows ? rows : persistent_rows(one.cols);
  }
  return list;
}

long run(const Case& c, const Target& target) {
  const Format &format = *c.format, &statistics = statistics_of(format);
  const Layout out_layout{c.layout.offset, 0, c.layout.step, c.layout.split};
  const Layout columns{0, 0, c.layout.step};
  Matrix dy(format, c.rows, c.cols, c.layout), x(format, c.rows, c.cols, c.layout);
  Matrix dsum(format, c.rows, c.cols, c.layout), dx(format, c.rows, c.cols, out_layout);
  Matrix weight(c.weight ? *c.weight : format, 1, c.cols, columns);
  Matrix dweight(c.dweight ? *c.dweight : format, 1, c.cols, columns);
  Matrix dbias(c.dweight ? *c.dweight : format, 1, c.cols, columns);
  // Any statistics will do, because the gradients are a formula of them.
  Matrix mean(statistics, 1, c.rows, {}), rstd(statistics, 1, c.rows, {});
  for (Matrix* one : {&dy, &x, &dsum, &weight, &mean, &rstd}) one->fill();
  if (c.options) {
    dweight.fill();
    dbias.fill();
  }
  for (Matrix* one : {&dy, &x, &dsum, &dx, &weight, &dweight, &dbias, &mean, &rstd}) {
    one->upload(target);
  }
  Matrix& written = c.dx == Dx::kInDy ? dy : c.dx == Dx::kInX ? x : c.dx == Dx::kInDsum ? dsum : dx;

  RmsNormBackwardOptions options;
  if (c.options) options = {1.0, Rounding::kBeforeWeight, true};
  const LayerNormBackwardOptions centred_options{options.weight_offset, options.accumulate};
  const ConstTensorView x_on_target = x.view(Side::kTarget);
  const std::int64_t bytes = c.centred ? layer_norm_backward_workspace(x_on_target)
                                       : rms_norm_backward_workspace(x_on_target);
  const DeviceBuffer workspace(c.workspace ? bytes : 0, target.device, target.stream);
  const TensorView lent(workspace.data(), DType::kUInt8, target.device, {bytes});
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView factors = weight.vector(side), means = mean.vector(side, x.split());
    const ConstTensorView saved = rstd.vector(side, x.split());
    const TensorView dx_view = written.view(side), dweight_view = dweight.vector(side);
    const TensorView dbias_view = dbias.vector(side);
    const ConstTensorView* scale = c.weight ? &factors : nullptr;
    const TensorView* dx_wanted = c.dx == Dx::kNone ? nullptr : &dx_view;
    const TensorView* dweight_wanted = c.dweight ? &dweight_view : nullptr;
    const TensorView* dbias_wanted = c.dweight ? &dbias_view : nullptr;
    const TensorView* scratch = c.workspace && side == Side::kTarget ? &lent : nullptr;
    const auto call = [&](auto op, auto... arrays) {
      op(arrays..., scale, saved, options, dx_wanted, dweight_wanted, scratch, target.stream);
    };
    const auto call_centred = [&](auto op, auto... arrays) {
      op(arrays..., scale, means, saved, centred_options, dx_wanted, dweight_wanted, dbias_wanted,
         scratch, target.stream);
    };
    const ConstTensorView dy_view = dy.view(side), x_view = x.view(side);
    const ConstTensorView dsum_view = dsum.view(side);
    if (c.centred) {
      c.add ? add_layer_norm_backward(dy_view, &dsum_view, x_view, scale, means, saved,
                                      centred_options, dx_wanted, nullptr, dweight_wanted,
                                      dbias_wanted, scratch, target.stream)
            : call_centred(layer_norm_backward, dy_view, x_view);
    } else {
      c.add ? add_rms_norm_backward(dy_view, &dsum_view, x_view, scale, saved, options, dx_wanted,
                                    nullptr, dweight_wanted, scratch, target.stream)
            : call(rms_norm_backward, dy_view, x_view);
    }
  }
  // Terms may cancel, which leaves the rounding of sums of values around 4. Unwanted arrays stay
  // NaN, or as filled, on both sides.
  const double slack = 4.0 * statistics.tolerance;
  const double column_slack = slack * std::sqrt(double(c.rows));
  long wrong = c.dx == Dx::kNone ? 0 : written.wrong(target, 4 * slack);
  if (c.dweight) wrong += dweight.wrong(target, column_slack);
  if (c.dweight && c.centred) wrong += dbias.wrong(target, column_slack);
  return wrong;
}

// {16-byte vectors per row, rows}. First column blocks next to row blocks, where a row takes some
// lanes, a block, a cluster, or is read twice. Then the persistent kernel: several rows per block;
// thread groups with one row or none; one vector per thread without, with and without the bulk
// pipeline; two vectors with it in both block sizes, and in clusters; four vectors in one block,
// and in clusters with the pipeline. Unaligned rows have no pipeline.
constexpr std::int64_t kSizes[][2] = {
    {1, 6},     {2, 40},   {33, 7},    {64, 130},  {65, 5},   {512, 40}, {1024, 9}, {1025, 4},
    {2049, 5},  {9000, 6}, {20000, 3}, {40000, 2}, {1, 0},    {3, 0},    {32, 0},   {16, 300},
    {100, 300}, {33, 0},   {256, 0},   {257, 0},   {384, 0},  {385, 0},  {512, 0},  {513, 0},
    {640, 0},   {641, 0},  {1024, 0},  {1025, 0},  {1536, 0}, {1537, 0}, {2048, 0}, {2049, 0},
    {3073, 0},  {4097, 0}, {9000, 0},  {16384, 0}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
