// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of softmax and its gradient at least once, for compute-sanitizer: each dtype,
// aligned and unaligned rows, in registers, staged and streamed, with each kind of mask and causal.
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

enum class Mask { kNone, kBool, kAdded, kCausal };
constexpr const char* kMasks[] = {"none", "bool", "added", "causal"};

struct Case {
  const Format& format;
  std::int64_t rows, cols;
  Layout layout;
  Mask mask;
  bool backward;

  std::string text() const {
    return std::string(dtype_name(format.dtype)) + " " + std::to_string(rows) + " x " +
           std::to_string(cols) + " " + to_string(layout) + " mask " +
           kMasks[static_cast<int>(mask)] + (backward ? " backward" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t cols = vectors * (16 / format.size());
  std::vector<Case> list;
  for (const bool backward : {false, true}) {
    list.push_back({format, rows, cols, {}, Mask::kNone, backward});
    list.push_back({format, rows, cols, {0, 16, 1, true}, Mask::kNone, backward});
    list.push_back({format, rows, cols - 1, {1, 0, 1}, Mask::kNone, backward});
    list.push_back({format, rows, cols, {1, 3, 2, true}, Mask::kNone, backward});
  }
  for (const Mask mask : {Mask::kBool, Mask::kAdded, Mask::kCausal}) {
    list.push_back({format, rows, cols, {}, mask, false});
    list.push_back({format, rows, cols - 1, {0, 1, 1}, mask, false});
  }
  return list;
}

// A boolean per column, the first one true.
struct Columns {
  Columns(std::int64_t cols, const Target& target)
      : kept(cols), on_target(cols, target.device, target.stream), device(target.device) {
    for (std::int64_t col = 0; col < cols; ++col) kept[col] = col == 0 || next_random() % 4 != 0;
    copy_bytes(on_target.data(), device, kept.data(), Device::cpu(), cols, target.stream);
  }
  ConstTensorView view(Side side) {
    const bool host = side == Side::kHost;
    return ConstTensorView(host ? kept.data() : on_target.as<char>(), DType::kBool,
                           host ? Device::cpu() : device, {std::int64_t(kept.size())});
  }

  std::vector<char> kept;
  DeviceBuffer on_target;
  Device device;
};

// Tolerance of sums, and of logits of magnitude 2, whose terms may cancel.
double slack_of(const Case& c) {
  return (c.format.dtype == DType::kFloat64 ? 1e-14 : 4e-6) * (c.backward ? std::sqrt(c.cols) : 1);
}

long run(const Case& c, const Target& target) {
  Matrix x(c.format, c.rows, c.cols, c.layout), y(c.format, c.rows, c.cols, c.layout);
  Matrix out(c.format, c.rows, c.cols, c.layout), added(c.format, 1, c.cols, {});
  for (Matrix* one : {&x, &y, &added}) one->fill();
  for (Matrix* one : {&x, &y, &added, &out}) one->upload(target);
  Columns kept(c.cols, target);
  for (const Side side : {Side::kTarget, Side::kHost}) {
    if (c.backward) {
      softmax_backward(x.view(side), y.view(side), 0.5, out.view(side), target.stream);
      continue;
    }
    SoftmaxOptions options;
    options.scale = 0.75;
    if (c.mask == Mask::kCausal) options.causal_offset = c.cols / 3;
    ConstTensorView mask = added.view(side);
    if (c.mask == Mask::kBool) mask = kept.view(side);
    const bool masked = c.mask == Mask::kBool || c.mask == Mask::kAdded;
    softmax(x.view(side), masked ? &mask : nullptr, options, out.view(side), target.stream);
  }
  return out.wrong(target, slack_of(c));
}

// {16-byte vectors per row, rows}: rows with less than a vector per lane, with several per lane,
// around a warp, a block and a cluster, and wider than a cluster.
constexpr std::int64_t kSizes[][2] = {{1, 40},  {3, 37},   {9, 20},   {128, 6},   {130, 4},
                                      {900, 4}, {2049, 4}, {4100, 3}, {33000, 2}, {66000, 2}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
