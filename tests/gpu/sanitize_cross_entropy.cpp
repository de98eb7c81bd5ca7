// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of cross entropy at least once, for compute-sanitizer: each dtype, aligned and
// unaligned rows, in registers and streamed, with and without each option, class weights, secondary
// outputs and a mean; labels that are ignored or out of range (which must read nothing); with lse
// given and the gradient written over the logits.
#include <string>
#include <vector>

#include "sanitize.hpp"

namespace {

using namespace membound;
using namespace membound::sanitize;

enum class With { kNothing, kOptions, kMean };  // the last has the options, too

struct Case {
  const Format& format;
  std::int64_t rows, cols;
  Layout layout;
  With with;
  bool backward;

  std::string text() const {
    return std::string(dtype_name(format.dtype)) + " " + std::to_string(rows) + " x " +
           std::to_string(cols) + " " + to_string(layout) +
           (with == With::kNothing ? "" : " with options") + (with == With::kMean ? ", mean" : "") +
           (backward ? " backward" : "");
  }
};

std::vector<Case> cases(const Format& format, std::int64_t vectors, std::int64_t rows) {
  const std::int64_t cols = vectors * (16 / format.size());
  std::vector<Case> list;
  for (const With with : {With::kNothing, With::kOptions, With::kMean}) {
    for (const bool backward : {false, true}) {
      list.push_back({format, rows, cols, {}, with, backward});
      list.push_back({format, rows, cols - 1, {1, 0, 1}, with, backward});
      list.push_back({format, rows, cols, {1, 3, 2}, with, backward});
    }
  }
  return list;
}

// Labels on both sides, with one that is ignored and one that is out of range. For a mean all
// others are the same column, because class weights of either sign would cancel.
struct Labels {
  Labels(std::int64_t rows, std::int64_t cols, bool for_mean, const Target& target)
      : numbers(rows),
        on_target(rows * sizeof(std::int64_t), target.device, target.stream),
        device(target.device) {
    for (std::int64_t& one : numbers) {
      one = for_mean ? cols - 1 : std::int64_t(next_random() % std::uint64_t(cols));
    }
    numbers[rows - 1] = cols - 1;
    if (rows > 1) numbers[0] = -100;
    if (rows > 2 && !for_mean) numbers[1] = std::int64_t{1} << 62;
    copy_bytes(on_target.data(), device, numbers.data(), Device::cpu(), rows * sizeof(std::int64_t),
               target.stream);
  }
  TensorView view(Side side) {
    const bool host = side == Side::kHost;
    void* data = host ? static_cast<void*>(numbers.data()) : on_target.data();
    return TensorView(data, DType::kInt64, host ? Device::cpu() : device,
                      {std::int64_t(numbers.size())});
  }
  long wrong(const Target& target) {
    std::vector<std::int64_t> got(numbers.size());
    copy_bytes(got.data(), Device::cpu(), on_target.data(), device,
               got.size() * sizeof(std::int64_t), target.stream);
    target.stream.synchronize();
    long wrong = 0;
    for (std::size_t at = 0; at < got.size(); ++at) wrong += got[at] != numbers[at];
    return wrong;
  }

  std::vector<std::int64_t> numbers;
  DeviceBuffer on_target;
  Device device;
};

// For a mean, the first element only.
TensorView loss_view(Matrix& loss, Side side, With with) {
  TensorView view = loss.vector(side);
  if (with == With::kMean) view.rank = 0;
  return view;
}

long run(const Case& c, const Target& target) {
  const Format& wide = statistics_of(c.format);
  const bool has_options = c.with != With::kNothing, is_mean = c.with == With::kMean;
  Matrix logits(c.format, c.rows, c.cols, c.layout), out(c.format, c.rows, c.cols, c.layout);
  Matrix dloss(wide, 1, c.rows, {}), loss(wide, 1, c.rows, {}), lse(wide, c.rows, 2, {});
  Matrix z_loss(wide, 1, c.rows, {}), losses(wide, 1, c.rows, {}), z_losses(wide, 1, c.rows, {});
  Matrix weight(wide, 1, c.cols, {1, 0, 2}), entropy(wide, 1, c.rows, {});
  for (Matrix* one : {&logits, &dloss, &weight}) one->fill();
  if (is_mean) loss.fill(), z_loss.fill();  // the rest of the array must not be written
  for (Matrix* one :
       {&logits, &dloss, &loss, &lse, &out, &z_loss, &losses, &z_losses, &weight, &entropy}) {
    one->upload(target);
  }
  Labels labels(c.rows, c.cols, is_mean, target), predictions(c.rows, c.cols, true, target);
  CrossEntropyOptions options;
  if (has_options) {
    options.label_smoothing = 0.2;
    options.z_loss = 0.01;
    options.softcap = 3.0;
    options.reduction = is_mean ? Reduction::kMean : Reduction::kNone;
  }
  for (const Side side : {Side::kTarget, Side::kHost}) {
    const ConstTensorView given = loss_view(dloss, side, c.with), classes = weight.vector(side);
    const ConstTensorView* const weights = has_options ? &classes : nullptr;
    const TensorView lse_view = lse.view(side), written = out.view(side),
                     z_view = loss_view(z_loss, side, c.with), rows = losses.vector(side),
                     z_rows = z_losses.vector(side), predicted = predictions.view(side),
                     entropies = entropy.vector(side);
    const ConstTensorView known = entropies, slopes = losses.vector(side);
    CrossEntropyResults also;
    also.lse = &lse_view;
    also.dlogits = c.backward ? nullptr : &written;
    if (has_options) {
      also.z_loss = &z_view;
      also.predictions = &predicted;
      also.entropy = &entropies;
    }
    if (is_mean) {
      also.row_losses = &rows;
      also.row_z_losses = &z_rows;
    }
    cross_entropy(logits.view(side), labels.view(side), weights, c.backward ? nullptr : &given,
                  options, loss_view(loss, side, c.with), also, target.stream);
    if (c.backward) {
      cross_entropy_backward(&given, logits.view(side), labels.view(side), lse_view, weights,
                             options, written, nullptr, target.stream,
                             is_mean ? EntropyGradient{&known, &slopes} : EntropyGradient{});
    }
  }
  // Sums of a row are rounded, and 2^x is used instead of e^x.
  const double slack = (c.format.dtype == DType::kFloat64 ? 1e-13 : 2e-5) * (has_options ? 4 : 1);
  long wrong = loss.wrong(target, slack) + lse.wrong(target, slack) + out.wrong(target, slack);
  if (has_options) wrong += entropy.wrong(target, slack);
  if (has_options) wrong += z_loss.wrong(target, slack) + predictions.wrong(target);
  if (is_mean) wrong += losses.wrong(target, slack) + z_losses.wrong(target, slack);
  return wrong;
}

// {16-byte vectors per row, rows}: rows with less than a vector per lane, with several per lane,
// around a warp and a block, in several parts, and in more than one group of parts.
constexpr std::int64_t kSizes[][2] = {{1, 40},  {3, 37},   {9, 20},   {128, 6},   {130, 4},
                                      {900, 4}, {2049, 4}, {4100, 3}, {33000, 2}, {66000, 2}};

}  // namespace

int main(int argc, char** argv) { return run_driver(argc, argv, kSizes, cases, run); }
