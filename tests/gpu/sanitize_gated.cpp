// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of rms_norm_gated and its gradients at least once, for compute-sanitizer: each
// dtype, the gate before and after the norm, aligned and strided rows, weights of shape (heads,
// cols), each gradient alone, in place.
#include <algorithm>
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

enum class Written { kApart, kInX, kInZ, kDxAlone, kDzAlone, kDweightAlone };

struct Case {
  const char* name;
  Layout layout = {};
  const Format* weight = nullptr;
  bool norm_before_gate = true;
  bool options = false;  // weight_offset, rounding before the weight
  bool heads = false;
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
  const Format *same = &format, *fp32 = &kSingle;
  const Layout two_axes{0, 0, 1, true}, strided{1, 3, 2, true};
  std::vector<Case> list = {
      {"gate after", {}, same},
      {"gate before", {}, same, false},
      {"options", {0, pack}, fp32, true, true},
      {"options before", {0, pack}, fp32, false, true, false, Written::kInX},
      {"heads", two_axes, same, true, false, true},
      {"heads of options", two_axes, fp32, false, true, true, Written::kInZ},
      {"heads apart", strided, same, true, false, true},
      {"dx alone", {}, nullptr, true, false, false, Written::kDxAlone},
      {"dz alone", {}, same, false, false, false, Written::kDzAlone},
      {"dweight alone", {1}, same, true, false, false, Written::kDweightAlone},
      {"narrow vectors", {2}, fp32, true, true, false, Written::kInX},
      {"unaligned", {1}, nullptr, false, false, false, Written::kInX},
      {"unaligned, gate after", {1}, same},
      {"odd", {}, same, false, false, false, Written::kInX},
  };
  if (rows > kManyRows) list.erase(list.begin(), list.end() - 2);
  for (Case& one : list) {
    one.format = &format;
    one.rows = rows;
    one.cols = std::max<std::int64_t>(1, vectors * pack - (one.name == std::string("odd")));
  }
  return list;
}

long run(const Case& c, const Target& target) {
  const Format &format = *c.format, &statistics = statistics_of(format);
  const Layout apart{c.layout.offset, 0, c.layout.step, c.layout.split};
  Matrix x(format, c.rows, c.cols, c.layout), z(format, c.rows, c.cols, c.layout);
  Matrix dy(format, c.rows, c.cols, c.layout), out(format, c.rows, c.cols, apart);
  Matrix dx(format, c.rows, c.cols, apart), dz(format, c.rows, c.cols, apart);
  const bool heads = c.heads && x.split();
  const std::int64_t head_count = heads ? c.rows / 2 : 1;
  const Layout columns{0, 0, c.layout.step};
  Matrix weight(c.weight ? *c.weight : format, head_count, c.cols, columns);
  Matrix dweight(format, head_count, c.cols, columns);
  Matrix rstd(statistics, 1, c.rows, {});
  for (Matrix* one : {&x, &z, &dy, &weight}) one->fill();
  for (Matrix* one : {&x, &z, &dy, &out, &dx, &dz, &weight, &dweight, &rstd}) one->upload(target);
  Matrix& dx_to = c.written == Written::kInX ? x : dx;
  Matrix& dz_to = c.written == Written::kInZ ? z : dz;
  const bool alone = c.written >= Written::kDxAlone;
  const bool wants_dx = !alone || c.written == Written::kDxAlone;
  const bool wants_dz = !alone || c.written == Written::kDzAlone;
  const bool wants_dweight = c.weight && (!alone || c.written == Written::kDweightAlone);

  const double offset = c.options ? 1.0 : 0.0;
  const Rounding rounding = c.options ? Rounding::kBeforeWeight : Rounding::kOnce;
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const auto of_heads = [&](Matrix& one) { return heads ? one.view(side) : one.vector(side); };
    const ConstTensorView factors = of_heads(weight);
    const ConstTensorView* given = c.weight ? &factors : nullptr;
    const TensorView saved = rstd.vector(side, x.split()), out_view = out.view(side);
    rms_norm_gated(x.view(side), z.view(side), given,
                   {1e-6, c.weight ? offset : 0.0, rounding, c.norm_before_gate}, out_view, &saved,
                   target.stream);
    const TensorView dx_view = dx_to.view(side), dz_view = dz_to.view(side);
    const TensorView dweight_view = of_heads(dweight);
    rms_norm_gated_backward(dy.view(side), x.view(side), z.view(side), given, saved,
                            {c.weight ? offset : 0.0, rounding, c.norm_before_gate, false},
                            wants_dx ? &dx_view : nullptr, wants_dz ? &dz_view : nullptr,
                            wants_dweight ? &dweight_view : nullptr, nullptr, target.stream);
  }
  // Terms may cancel, which leaves the rounding of sums of values around 16; the GPU's exponential
  // for 16-bit storage is accurate to 2^-21. An intermediate rounding may go either way.
  const double slack = 64.0 * std::max(statistics.tolerance, format.size() == 2 ? 0x1p-20 : 0.0);
  const double falls = 16 * format.tolerance;
  long wrong = out.wrong(target, slack) + rstd.wrong(target, slack);
  if (wants_dx) wrong += dx_to.wrong(target, slack + falls);
  if (wants_dz) wrong += dz_to.wrong(target, slack + falls);
  const double sums = 4 * slack * std::sqrt(double(c.rows)) + (c.options ? falls : 0.0);
  if (wants_dweight) wrong += dweight.wrong(target, sums);
  return wrong;
}

// {16-byte vectors per row, rows}: column blocks next to row blocks, where a row takes some lanes,
// a block, a cluster, or is read twice; then the persistent kernel without and with the bulk
// pipeline, and in clusters; finally four items per thread.
constexpr std::int64_t kSizes[][2] = {
    {1, 6},      {2, 40},     {33, 8},     {64, 130},   {65, 6},    {512, 40},
    {1024, 10},  {1025, 4},   {9000, 6},   {40000, 2},  {1, 1100},  {16, 1100},
    {33, 1100},  {300, 1100}, {512, 1100}, {513, 1026}, {640, 820}, {1024, 520},
    {1025, 516}, {4097, 130}, {513, 1601}, {12, 1100}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
