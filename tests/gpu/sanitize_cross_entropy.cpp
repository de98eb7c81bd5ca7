// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of cross entropy once or more, for compute-sanitizer: each dtype, aligned rows
// and others, held in one part or streamed, with and without each option, labels that are ignored
// or out of range (which must read nothing), with lse known and the gradient over the logits.
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
  bool options, backward;

  std::string text() const {
    return std::string(dtype_name(format.dtype)) + " " + std::to_string(rows) + " x " +
           std::to_string(cols) + " " + to_string(layout) + (options ? " with options" : "") +
           (backward ? " backward" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t chunks, std::int64_t rows) {
  const std::int64_t cols = chunks * (16 / format.size());
  std::vector<Case> list;
  for (const bool options : {false, true}) {
    for (const bool backward : {false, true}) {
      list.push_back({format, rows, cols, {}, options, backward});
      list.push_back({format, rows, cols - 1, {1, 0, 1}, options, backward});
      list.push_back({format, rows, cols, {1, 3, 2}, options, backward});
    }
  }
  return list;
}

// Columns of a row, with some that are none on both sides of the machine.
struct Labels {
  Labels(std::int64_t rows, std::int64_t cols, const Target& target)
      : numbers(rows),
        there(rows * sizeof(std::int64_t), target.device, target.stream),
        device(target.device) {
    for (std::int64_t& one : numbers) {
      one = static_cast<std::int64_t>(next_random() % std::uint64_t(cols));
    }
    numbers[rows - 1] = cols - 1;
    if (rows > 1) numbers[0] = -100;
    if (rows > 2) numbers[1] = std::int64_t{1} << 62;
    copy_bytes(there.data(), device, numbers.data(), Device::cpu(), rows * sizeof(std::int64_t),
               target.stream);
  }
  ConstTensorView view(Side side) {
    const bool host = side == Side::kHost;
    const void* data = host ? static_cast<const void*>(numbers.data()) : there.data();
    return ConstTensorView(data, DType::kInt64, host ? Device::cpu() : device,
                           {std::int64_t(numbers.size())});
  }

  std::vector<std::int64_t> numbers;
  DeviceBuffer there;
  Device device;
};

long run(const Case& c, const Target& target) {
  const Format& wide = statistics_of(c.format);
  Matrix logits(c.format, c.rows, c.cols, c.layout), out(c.format, c.rows, c.cols, c.layout);
  Matrix dloss(wide, 1, c.rows, {}), loss(wide, 1, c.rows, {}), lse(wide, c.rows, 2, {});
  logits.fill();
  dloss.fill();
  for (Matrix* one : {&logits, &dloss, &loss, &lse, &out}) one->upload(target);
  Labels labels(c.rows, c.cols, target);
  CrossEntropyOptions options;
  if (c.options) {
    options.label_smoothing = 0.2;
    options.z_loss = 0.01;
    options.softcap = 3.0;
  }
  for (const Side side : {Side::kThere, Side::kHost}) {
    const ConstTensorView weights = dloss.vector(side);
    const TensorView lse_view = lse.view(side), written = out.view(side);
    CrossEntropyResults also;
    also.lse = &lse_view;
    also.dlogits = c.backward ? nullptr : &written;
    cross_entropy(logits.view(side), labels.view(side), nullptr, c.backward ? nullptr : &weights,
                  options, loss.vector(side), also, target.stream);
    if (c.backward) {
      cross_entropy_backward(&weights, logits.view(side), labels.view(side), lse_view, nullptr,
                             options, written, nullptr, target.stream);
    }
  }
  // Sums of a row round, and powers of 2 stand in for those of e.
  const double slack = c.format.dtype == DType::kFloat64 ? 1e-13 : 2e-5;
  return loss.wrong(target, slack) + lse.wrong(target, slack) + out.wrong(target, slack);
}

// Rows of less than a chunk for each lane, of some, around a warp and a block, in several parts and
// in more than one group of parts.
constexpr std::int64_t kSizes[][2] = {{1, 40},  {3, 37},   {9, 20},   {128, 6},   {130, 4},
                                      {900, 4}, {2049, 4}, {4100, 3}, {33000, 2}, {66000, 2}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
