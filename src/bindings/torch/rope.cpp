// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/rope_backward.hpp"
#include "torch/options.hpp"

namespace membound::python::torch {

namespace {

// Learned frequencies have the same forward, but it is another operator with another kernel.
template <bool kLearned>
std::array<Tensor, 2> rope_of_q_and_k(const Tensor& q, const Tensor& k, const RopeTables& tables,
                                      const RopeNumbers& numbers) {
  const RopeOptions options = numbers.options("rope");
  std::array<Tensor, 2> made{new_like(q.view()), new_like(k.view())};
  rope(q.input(), &k.input(), tables.angles(), options, made[0].view(), &made[1].view(),
       current_stream(q.view()));
  return made;
}

template <bool kLearned>
Tensor rope_of_q(const Tensor& q, const RopeTables& tables, const RopeNumbers& numbers) {
  const RopeOptions options = numbers.options("rope");
  Tensor made = new_like(q.view());
  rope(q.input(), nullptr, tables.angles(), options, made.view(), nullptr,
       current_stream(q.view()));
  return made;
}

// Without a gradient of frequencies the backward reads neither q nor k.
std::array<Tensor, 2> rope_of_q_and_k_backward(const Tensor& dq, const Tensor& dk,
                                               const RopeTables& tables, const RopeNumbers& numbers,
                                               const std::vector<bool>&) {
  const RopeOptions options = numbers.options("rope_backward");
  std::array<Tensor, 2> made{new_like(dq.view()), new_like(dk.view())};
  rope_backward(dq.input(), &dk.input(), nullptr, nullptr, tables.angles(), options, made[0].view(),
                &made[1].view(), nullptr, nullptr, current_stream(dq.view()));
  return made;
}

Tensor rope_of_q_backward(const Tensor& dq, const RopeTables& tables, const RopeNumbers& numbers,
                          const std::vector<bool>&) {
  const RopeOptions options = numbers.options("rope_backward");
  Tensor made = new_like(dq.view());
  rope_backward(dq.input(), nullptr, nullptr, nullptr, tables.angles(), options, made.view(),
                nullptr, nullptr, nullptr, current_stream(dq.view()));
  return made;
}

}  // namespace

void add_rope_kernels(Kernels& all) {
  all.push_back(kernel<&rope_of_q_and_k<false>>("rope_forward"));
  all.push_back(kernel<&rope_of_q_and_k<true>>("rope_learned_forward"));
  all.push_back(kernel<&rope_of_q<false>>("rope_q_forward"));
  all.push_back(kernel<&rope_of_q<true>>("rope_q_learned_forward"));
  all.push_back(kernel<&rope_of_q_and_k_backward>("rope_backward"));
  all.push_back(kernel<&rope_of_q_backward>("rope_q_backward"));
}

}  // namespace membound::python::torch
