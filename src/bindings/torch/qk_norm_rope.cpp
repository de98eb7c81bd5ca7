// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "qk_norm_rope.hpp"

#include "membound/ops/qk_norm_rope_backward.hpp"
#include "torch/options.hpp"

namespace membound::python::torch {

namespace {

struct Numbers {
  double eps;
  double weight_offset;
  Text rounding;
  RopeNumbers rope;
  using Members = MembersOf<double, double, Text, RopeNumbers>;

  QkNormRopeOptions options(const char* op) const {
    const int place = place_of(rounding.view(), kQkNormRoundings);
    return {rope.options(op), eps, weight_offset,
            place >= 0 ? QkNormRounding(place) : parse_in_python(rounding, [op](PyObject* value) {
              return qk_norm_rounding_from_python(value, op);
            })};
  }
};

constexpr const char* kOp = "qk_norm_rope";
constexpr const char* kBackwardOp = "qk_norm_rope_backward";

template <bool kStatistics>
std::array<Tensor, kStatistics ? 4 : 2> of_q_and_k(const Tensor& q, const Tensor& k,
                                                   const MaybeTensor& q_weight,
                                                   const MaybeTensor& k_weight,
                                                   const RopeTables& tables,
                                                   const Numbers& numbers) {
  const QkNormRopeOptions options = numbers.options(kOp);
  std::array<Tensor, kStatistics ? 4 : 2> made{new_like(q.view()), new_like(k.view())};
  const TensorView *q_rstd = nullptr, *k_rstd = nullptr;
  if constexpr (kStatistics) {
    made[2] = new_rows(q.view());
    made[3] = new_rows(k.view());
    q_rstd = &made[2].view();
    k_rstd = &made[3].view();
  }
  qk_norm_rope(q.input(), &k.input(), input_of(q_weight), input_of(k_weight), tables.angles(),
               options, made[0].view(), &made[1].view(), q_rstd, k_rstd, current_stream(q.view()));
  return made;
}

template <bool kStatistics>
std::array<Tensor, 1 + kStatistics> of_q(const Tensor& q, const MaybeTensor& q_weight,
                                         const RopeTables& tables, const Numbers& numbers) {
  const QkNormRopeOptions options = numbers.options(kOp);
  std::array<Tensor, 1 + kStatistics> made{new_like(q.view())};
  const TensorView* rstd = nullptr;
  if constexpr (kStatistics) {
    made[1] = new_rows(q.view());
    rstd = &made[1].view();
  }
  qk_norm_rope(q.input(), nullptr, input_of(q_weight), nullptr, tables.angles(), options,
               made[0].view(), nullptr, rstd, nullptr, current_stream(q.view()));
  return made;
}

// Writes k and v to the tokens' slots of the caches.
Tensor cached(const Tensor& q, const Tensor& k, const MaybeTensor& q_weight,
              const MaybeTensor& k_weight, const MaybeTensor& v, const Tensor& key_cache,
              const MaybeTensor& value_cache, const Tensor& slot_mapping, const RopeTables& tables,
              const Numbers& numbers) {
  const QkNormRopeOptions options = numbers.options(kOp);
  Tensor made = new_like(q.view());
  qk_norm_rope(q.input(), k.input(), input_of(q_weight), input_of(k_weight), tables.angles(),
               options, made.view(),
               {key_cache.view(), slot_mapping.input(), input_of(v), view_of(value_cache)},
               current_stream(q.view()));
  return made;
}

// The gradients of q or of k: of its heads, and of its weight if wanted.
struct Gradient {
  const Tensor& dy;
  const Tensor& x;
  const MaybeTensor& weight;
  const Tensor& rstd;
  Tensor dx, dweight;
  bool weighted;

  Gradient(const Tensor& dy_, const Tensor& x_, const MaybeTensor& weight_, const Tensor& rstd_,
           bool wants_weights)
      : dy(dy_),
        x(x_),
        weight(weight_),
        rstd(rstd_),
        dx(new_like(dy.view())),
        dweight(new_like_if(wants_weights && weight, weight ? weight->view() : dy.view())),
        weighted(wants_weights && weight) {}
  QkNormRopeGradient as_library() const {
    return {dy.input(),    x.input(), input_of(weight),
            &rstd.input(), dx.view(), weighted ? &dweight.view() : nullptr};
  }
};

void run(const Gradient& of_q, const Gradient* of_k, const RopeTables& tables,
         const QkNormRopeOptions& options) {
  const TensorView& q = of_q.dy.view();
  MaybeTensor workspace;
  if (of_q.weighted || (of_k != nullptr && of_k->weighted)) {
    workspace = new_workspace(
        q.device, qk_norm_rope_backward_workspace(
                      of_q.dy.input(), of_k ? &of_k->dy.input() : nullptr, options.rope.layout));
  }
  const QkNormRopeGradient first = of_q.as_library();
  const QkNormRopeGradient second = of_k != nullptr ? of_k->as_library() : first;
  qk_norm_rope_backward(first, of_k != nullptr ? &second : nullptr, tables.angles(), options,
                        /*accumulate=*/false, view_of(workspace), current_stream(q));
}

std::array<Tensor, 4> of_q_and_k_backward(const Tensor& dq, const Tensor& dk, const Tensor& q,
                                          const Tensor& k, const MaybeTensor& q_weight,
                                          const MaybeTensor& k_weight, const RopeTables& tables,
                                          const Tensor& q_rstd, const Tensor& k_rstd,
                                          const Numbers& numbers, const std::vector<bool>& wanted) {
  const QkNormRopeOptions options = numbers.options(kBackwardOp);
  const bool weights = wanted.at(2) || wanted.at(3);
  Gradient of_q(dq, q, q_weight, q_rstd, weights), of_k(dk, k, k_weight, k_rstd, weights);
  run(of_q, &of_k, tables, options);
  return {std::move(of_q.dx), std::move(of_k.dx), std::move(of_q.dweight), std::move(of_k.dweight)};
}

std::array<Tensor, 2> of_q_backward(const Tensor& dq, const Tensor& q, const MaybeTensor& q_weight,
                                    const RopeTables& tables, const Tensor& q_rstd,
                                    const Numbers& numbers, const std::vector<bool>& wanted) {
  const QkNormRopeOptions options = numbers.options(kBackwardOp);
  Gradient of_q(dq, q, q_weight, q_rstd, wanted.at(1));
  run(of_q, nullptr, tables, options);
  return {std::move(of_q.dx), std::move(of_q.dweight)};
}

}  // namespace

void add_qk_norm_rope_kernels(Kernels& all) {
  all.push_back(kernel<&of_q_and_k<true>>("qk_norm_rope_forward"));
  all.push_back(kernel<&of_q_and_k<false>>("qk_norm_rope_inference"));
  all.push_back(kernel<&of_q<true>>("q_norm_rope_forward"));
  all.push_back(kernel<&of_q<false>>("q_norm_rope_inference"));
  all.push_back(kernel<&of_q_and_k_backward>("qk_norm_rope_backward"));
  all.push_back(kernel<&of_q_backward>("q_norm_rope_backward"));
  all.push_back(kernel<&cached>("qk_norm_rope_cached"));
}

}  // namespace membound::python::torch
