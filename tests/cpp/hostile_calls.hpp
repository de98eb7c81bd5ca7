// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "membound/membound.hpp"

// One small valid call of every public op, whose views a test can then corrupt.
namespace membound_test {

using namespace membound;

struct Argument {
  const char* name;
  DType dtype;
  std::vector<std::int64_t> shape;
  bool optional = false;
};

// The views of one call. Each is in the middle of its own memory, so that a test can give it other
// small extents and strides, of either sign.
class Views {
 public:
  static constexpr std::int64_t kBytes = 1 << 13;

  explicit Views(const std::vector<Argument>& arguments) {
    for (const Argument& one : arguments) {
      memory_.push_back(std::make_unique<char[]>(kBytes));
      TensorView view(memory_.back().get() + kBytes / 2, one.dtype, Device::cpu(), {});
      std::int64_t stride = 1;
      view.rank = static_cast<std::int32_t>(one.shape.size());
      for (int axis = view.rank - 1; axis >= 0; --axis) {
        view.shape[axis] = one.shape[static_cast<std::size_t>(axis)];
        view.strides[axis] = stride;
        stride *= view.shape[axis];
      }
      outputs.push_back(view);
      given.push_back(true);
    }
  }
  // To be called once the views are final.
  void settle() { inputs.assign(outputs.begin(), outputs.end()); }

  const ConstTensorView& in(std::size_t at) const { return inputs[at]; }
  const ConstTensorView* maybe_in(std::size_t at) const {
    return given[at] ? &inputs[at] : nullptr;
  }
  const TensorView& out(std::size_t at) const { return outputs[at]; }
  const TensorView* maybe_out(std::size_t at) const { return given[at] ? &outputs[at] : nullptr; }
  // A copy of all arrays, to detect writes.
  std::vector<char> bytes() const {
    std::vector<char> all;
    for (const auto& one : memory_) all.insert(all.end(), one.get(), one.get() + kBytes);
    return all;
  }

  std::vector<TensorView> outputs;
  std::vector<ConstTensorView> inputs;
  std::vector<bool> given;

 private:
  std::vector<std::unique_ptr<char[]>> memory_;  // zeros: ids, positions and lengths of 0
};

struct HostileCall {
  std::string op;
  std::vector<Argument> arguments;
  std::function<void(const Views&)> run;
};

std::vector<HostileCall> norm_calls();
std::vector<HostileCall> token_calls();  // embeddings and cross entropy
std::vector<HostileCall> rope_calls();
std::vector<HostileCall> row_calls();  // gated activations, softmax and element-wise ops

}  // namespace membound_test
