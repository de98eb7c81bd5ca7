// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cross_entropy.hpp"

#include "core/check.hpp"
#include "membound/ops/cross_entropy_backward.hpp"
#include "torch/kernel.hpp"

namespace membound::python::torch {

namespace {

struct Numbers {
  std::int64_t ignore_index;
  double label_smoothing;
  double z_loss;
  std::optional<double> softcap;
  bool validate;
  using Members = MembersOf<std::int64_t, double, double, std::optional<double>, bool>;

  CrossEntropyOptions options() const {
    CrossEntropyOptions options;
    options.ignore_index = ignore_index;
    options.label_smoothing = label_smoothing;
    options.z_loss = z_loss;
    if (softcap) options.softcap = *softcap;
    options.validate = validate;
    return options;
  }
};

// Also returns lse, for the gradient.
template <bool kStatistics>
std::array<Tensor, 1 + kStatistics> cross_entropy_forward(const Tensor& logits,
                                                          const Tensor& labels,
                                                          const MaybeTensor& weight,
                                                          const Numbers& numbers) {
  MEMBOUND_CHECK(logits.view().rank >= 1, InvalidArgument, "cross_entropy",
                 "argument 'logits' must have 1 to 64 axes, got 0");
  std::array<Tensor, 1 + kStatistics> made{new_rows(logits.view())};
  CrossEntropyResults also;
  if constexpr (kStatistics) {
    made[1] = new_like(like_lse(logits.view()));
    also.lse = &made[1].view();
  }
  cross_entropy(logits.input(), labels.input(), input_of(weight), nullptr, numbers.options(),
                made[0].view(), also, current_stream(logits.view()));
  return made;
}

Tensor backward(const Tensor& dloss, const Tensor& logits, const Tensor& labels, const Tensor& lse,
                const MaybeTensor& weight, const Numbers& numbers, const std::vector<bool>&) {
  Tensor made = new_like(logits.view());
  cross_entropy_backward(&dloss.input(), logits.input(), labels.input(), lse.input(),
                         input_of(weight), numbers.options(), made.view(), nullptr,
                         current_stream(logits.view()));
  return made;
}

}  // namespace

void add_cross_entropy_kernels(Kernels& all) {
  all.push_back(kernel<&cross_entropy_forward<true>>("cross_entropy_forward"));
  all.push_back(kernel<&cross_entropy_forward<false>>("cross_entropy_inference"));
  all.push_back(kernel<&backward>("cross_entropy_backward"));
}

}  // namespace membound::python::torch
