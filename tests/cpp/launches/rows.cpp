// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Softmax, cross entropy, gated activations and element-wise ops.
#include "elementwise_ops.hpp"
#include "membound/ops/cross_entropy.hpp"
#include "membound/ops/cross_entropy_backward.hpp"
#include "membound/ops/gated_activation.hpp"
#include "membound/ops/gated_activation_backward.hpp"
#include "membound/ops/gated_activation_quant.hpp"
#include "membound/ops/softmax.hpp"
#include "membound/ops/softmax_backward.hpp"
#include "sweep.hpp"

namespace membound_test {

TEST_CASE("softmax") {
  for_each_problem(kRows, kCols, [](const Problem& p) {
    const ConstTensorView bools = p.matrix(DType::kBool), numbers = p.matrix();
    name_op("softmax");
    const ConstTensorView* const masks[] = {nullptr, &bools, &numbers};
    for (const ConstTensorView* mask : masks) {
      softmax(p.matrix(), mask, {0.125, std::nullopt}, p.matrix(), p.stream());
      softmax(p.matrix(), mask, {1.0, 0}, p.matrix(), p.stream());
    }
    name_op("softmax_backward");
    softmax_backward(p.matrix(), p.matrix(), 1.0, p.matrix(), p.stream());
    const TensorView dy = p.matrix();
    softmax_backward(dy, p.matrix(), 0.125, dy, p.stream());
  });
  look_for_faults();
}

TEST_CASE("cross_entropy") {
  for_each_problem(kRows, kCols, [](const Problem& p) {
    const ConstTensorView labels = p.statistic(DType::kInt64), weight = p.array(p.dtype, {p.cols});
    const TensorView loss = p.statistic(), lse = p.statistic(), dlogits = p.matrix();
    const TensorView predictions = p.statistic(DType::kInt64);
    const TensorView total = p.array(loss.dtype, {}), entropy = p.statistic();
    const ConstTensorView known = entropy;
    CrossEntropyOptions options;
    CrossEntropyResults plain, gradient, all;
    gradient.dlogits = all.dlogits = &dlogits;
    all.predictions = &predictions;
    all.row_losses = &loss;
    name_op("cross_entropy");
    cross_entropy(p.matrix(), labels, nullptr, nullptr, options, loss, plain, p.stream());
    cross_entropy(p.matrix(), labels, nullptr, nullptr, options, loss, gradient, p.stream());
    cross_entropy(dlogits, labels, nullptr, nullptr, options, loss, gradient, p.stream());
    name_op("cross_entropy_backward");
    cross_entropy_backward(nullptr, p.matrix(), labels, lse, nullptr, options, dlogits, nullptr,
                           p.stream());
    options.softcap = 30.0;
    options.label_smoothing = 0.1;
    name_op("cross_entropy with options");
    gradient.entropy = &entropy;
    cross_entropy(p.matrix(), labels, nullptr, nullptr, options, loss, gradient, p.stream());
    cross_entropy_backward(nullptr, p.matrix(), labels, lse, nullptr, options, dlogits, nullptr,
                           p.stream(), {&known, &known});
    options.reduction = Reduction::kMean;
    name_op("cross_entropy with class weights and a mean");
    cross_entropy(p.matrix(), labels, &weight, nullptr, options, total, all, p.stream());
  });
  look_for_faults();
}

namespace {

constexpr Activation kKinds[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                 Activation::kSigmoid, Activation::kRelu2};

// Separate arrays of gate and up, and one that packs both.
template <class Call>
void for_each_gate(const Problem& p, Call call) {
  call(ConstTensorView(p.matrix()), ConstTensorView(p.matrix()));
  for (Packing packing : {Packing::kHalves, Packing::kInterleaved}) {
    const ConstTensorView packed = p.matrix(std::nullopt, 2 * p.cols);
    const auto parts = split_gate_up(packed, packing);
    call(parts.gate, parts.up);
  }
}

}  // namespace

TEST_CASE("gated_activation") {
  for_each_problem(kRows, kCols, [](const Problem& p) {
    for_each_gate(p, [&](const ConstTensorView& gate, const ConstTensorView& up) {
      for (Activation kind : kKinds) {
        const bool alone = kind == Activation::kRelu2;
        const ConstTensorView* with = alone ? nullptr : &up;
        const TensorView dgate = p.matrix(), dup = p.matrix();
        name_op("gated_activation");
        gated_activation(gate, with, nullptr, {.kind = kind}, p.matrix(), p.stream());
        name_op("gated_activation_backward");
        gated_activation_backward(p.matrix(), gate, with, nullptr, {.kind = kind}, &dgate,
                                  alone ? nullptr : &dup, p.stream());
      }
      const ConstTensorView scale = p.statistic();
      const TensorView dgate = p.matrix(), dup = p.matrix();
      const GatedActivationOptions options{.limit = 7.0, .up_offset = 1.0};
      name_op("gated_activation with options");
      gated_activation(gate, &up, &scale, options, p.matrix(), p.stream());
      gated_activation_backward(p.matrix(), gate, &up, &scale, options, &dgate, &dup, p.stream());
    });
  });
  look_for_faults();
}

TEST_CASE("element-wise ops") {
  for (const ElementwiseOp& op : elementwise_ops()) {
    for_each_problem(kRows, kCols, [&](const Problem& p) {
      const TensorView x = p.matrix(), dy = p.matrix();
      name_op(op.name);
      op.forward(x, p.matrix(), p.stream());
      op.forward(x, x, p.stream());
      name_op(op.name + "_backward");
      op.backward(dy, x, p.matrix(), p.stream());
      op.backward(dy, x, dy, p.stream());
    });
  }
  look_for_faults();
}

TEST_CASE("gated_activation_quant") {
  for_each_problem(kRows, kCols, [](const Problem& p) {
    for_each_gate(p, [&](const ConstTensorView& gate, const ConstTensorView& up) {
      name_op("gated_activation_quant");
      for (std::int64_t group : {0, 64, 128}) {
        if (group > 0 && p.cols % group != 0) continue;
        const TensorView scale = p.statistic(DType::kFloat32, group > 0 ? p.cols / group : 0);
        const DType codes = group == 64 ? DType::kInt8 : DType::kFloat8E5M2;
        const GatedActivationQuantOptions options{{}, group};
        gated_activation_quant(gate, &up, nullptr, options, p.matrix(codes), nullptr, &scale,
                               p.stream());
      }
      const ConstTensorView scale = p.array(DType::kFloat32, {});
      gated_activation_quant(gate, &up, nullptr, {}, p.matrix(DType::kInt8), &scale, nullptr,
                             p.stream());
    });
  });
  look_for_faults();
}

TEST_CASE("gated_activation_quant: which kernel has which rows") {
  constexpr int kH100 = 4;
  use_gpu(kH100);
  const auto kernel_of = [](std::int64_t rows, std::int64_t cols, bool one_for_all,
                            Layout layout = Layout::kContiguous) {
    const Problem p{rows, cols, DType::kBFloat16, layout, kH100};
    const ConstTensorView gate = p.matrix(), up = p.matrix(), fixed = p.array(DType::kFloat32, {});
    const TensorView scale = p.statistic(DType::kFloat32);
    gated_activation_quant(gate, &up, nullptr, {}, p.matrix(DType::kInt8),
                           one_for_all ? &fixed : nullptr, one_for_all ? nullptr : &scale,
                           p.stream());
    const std::string name = last_launched();
    for (const char* kernel : {"tile", "rows"}) {
      if (name.find("quant_" + std::string(kernel) + "_kernel") != name.npos) return kernel;
    }
    return "any";
  };
  const std::string tile = "tile", rows = "rows", any = "any";
  CHECK(kernel_of(16384, 4096, true) == tile);
  CHECK(kernel_of(16384, 4097, true) == tile);  // one row
  CHECK(kernel_of(16383, 4097, true) == rows);
  CHECK(kernel_of(16384, 4097, true, Layout::kOddRows) == rows);
  CHECK(kernel_of(16384, 4097, false) == rows);
  CHECK(kernel_of(1, 4097, false) == rows);
  CHECK(kernel_of(16384, 127, false) == any);
  CHECK(kernel_of(16384, 20001, false) == any);
  CHECK(kernel_of(16384, 4096, false) == tile);
  CHECK(kernel_of(8192, 11008, false) == rows);
  CHECK(kernel_of(64, 11008, false) == tile);
  CHECK(kernel_of(8192, 28672, false) == any);  // one block per row
  CHECK(kernel_of(64, 28672, false) == tile);
  CHECK(kernel_of(2048, 65536, false) == tile);  // a cluster per row
  look_for_faults();
}

}  // namespace membound_test
