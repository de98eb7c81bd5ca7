// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "activation.hpp"

#include <algorithm>
#include <iterator>

#include "membound/ops/gated_activation_backward.hpp"
#include "membound/ops/gated_activation_quant.hpp"
#include "torch/options.hpp"

namespace membound::python::torch {

namespace {

GatedActivationOptions options_of(const Text& kind, double alpha,
                                  const std::optional<double>& limit, double up_offset,
                                  const char* op) {
  GatedActivationOptions options;
  options.op = op;
  const auto* named =
      std::find_if(std::begin(kActivations), std::end(kActivations),
                   [&](const NamedActivation& one) { return kind.view() == one.name; });
  options.kind =
      named != std::end(kActivations) ? named->kind : parse_in_python(kind, [op](PyObject* value) {
        return activation_from_python(value, op).kind;
      });
  options.alpha = alpha;
  if (limit) options.limit = *limit;
  options.up_offset = up_offset;
  return options;
}

GateForm form_of(const Text& packing, bool has_up, const char* op) {
  if (packing.view() == "halves") return has_up ? GateForm::kApart : GateForm::kHalves;
  return parse_in_python(packing,
                         [=](PyObject* value) { return gate_form_from_python(value, has_up, op); });
}

struct Numbers {
  Text kind;
  Text packing;
  double alpha;
  std::optional<double> limit;
  double up_offset;
  using Members = MembersOf<Text, Text, double, std::optional<double>, double>;

  GatedActivationOptions options(const char* op) const {
    return options_of(kind, alpha, limit, up_offset, op);
  }
  GateForm form(bool has_up, const char* op) const { return form_of(packing, has_up, op); }
};

Tensor gated_activation_pair(const Tensor& gate, const Tensor& up, const MaybeTensor& row_scale,
                             const Numbers& numbers) {
  constexpr const char* kOp = "gated_activation";
  const GatedActivationOptions options = numbers.options(kOp);
  numbers.form(true, kOp);
  Tensor out = new_like(gate.view());
  gated_activation(gate.input(), &up.input(), input_of(row_scale), options, out.view(),
                   current_stream(gate.view()));
  return out;
}

// Gate and up of one packed array; a gate alone has no up.
struct Parts {
  TensorView gate, up;
  ConstTensorView up_input;
  bool has_up;

  Parts(const TensorView& packed, GateForm form, const char* op, const char* argument)
      : gate(packed), has_up(is_packed(form)) {
    if (!has_up) return;
    const GateAndUp<void*> both = split_packed(packed, form, op, argument);
    gate = both.gate;
    up_input = up = both.up;
  }
  const ConstTensorView* input() const { return has_up ? &up_input : nullptr; }
  const TensorView* output() const { return has_up ? &up : nullptr; }
};

Tensor gated_activation_packed(const Tensor& packed, const MaybeTensor& row_scale,
                               const Numbers& numbers) {
  constexpr const char* kOp = "gated_activation";
  const GatedActivationOptions options = numbers.options(kOp);
  const Parts parts(packed.view(), numbers.form(false, kOp), kOp, "gate");
  Tensor out = new_like(parts.gate);
  gated_activation(parts.gate, parts.input(), input_of(row_scale), options, out.view(),
                   current_stream(parts.gate));
  return out;
}

std::array<Tensor, 2> quantised(const Tensor& gate, const MaybeTensor& up,
                                const MaybeTensor& row_scale, const MaybeTensor& scale,
                                const Text& kind, const Text& packing, const QuantNumbers& quant,
                                const double& alpha, const std::optional<double>& limit,
                                const double& up_offset) {
  constexpr const char* kOp = "gated_activation_quant";
  const Quantisation quantisation = quant.quantisation(kOp);
  const GatedActivationQuantOptions options{options_of(kind, alpha, limit, up_offset, kOp),
                                            quantisation.group_size,
                                            quantisation.scale_upper_bound};
  const Parts parts(gate.view(), form_of(packing, up.has_value(), kOp), kOp, "gate");
  std::array<Tensor, 2> made{new_codes(parts.gate, quantisation),
                             new_scales(parts.gate, quantisation, scale)};
  gated_activation_quant(parts.gate, up ? input_of(up) : parts.input(), input_of(row_scale),
                         options, made[0].view(), input_of(scale),
                         scale ? nullptr : &made[1].view(), current_stream(parts.gate));
  return made;
}

std::array<Tensor, 2> gated_activation_pair_backward(const Tensor& dy, const Tensor& gate,
                                                     const Tensor& up, const MaybeTensor& row_scale,
                                                     const Numbers& numbers,
                                                     const std::vector<bool>& wanted) {
  constexpr const char* kOp = "gated_activation_backward";
  const GatedActivationOptions options = numbers.options(kOp);
  numbers.form(true, kOp);
  std::array<Tensor, 2> made{new_like_if(wanted.at(0), gate.view()),
                             new_like_if(wanted.at(1), up.view())};
  gated_activation_backward(dy.input(), gate.input(), &up.input(), input_of(row_scale), options,
                            wanted.at(0) ? &made[0].view() : nullptr,
                            wanted.at(1) ? &made[1].view() : nullptr, current_stream(gate.view()));
  return made;
}

Tensor gated_activation_packed_backward(const Tensor& dy, const Tensor& packed,
                                        const MaybeTensor& row_scale, const Numbers& numbers,
                                        const std::vector<bool>&) {
  constexpr const char* kOp = "gated_activation_backward";
  const GatedActivationOptions options = numbers.options(kOp);
  const GateForm form = numbers.form(false, kOp);
  const Parts parts(packed.view(), form, kOp, "gate");
  Tensor made = new_like(packed.view());
  const Parts written(made.view(), form, kOp, "dgate");
  gated_activation_backward(dy.input(), parts.gate, parts.input(), input_of(row_scale), options,
                            &written.gate, written.output(), current_stream(parts.gate));
  return made;
}

}  // namespace

void add_activation_kernels(Kernels& all) {
  all.push_back(kernel<&gated_activation_pair>("gated_activation_forward"));
  all.push_back(kernel<&gated_activation_packed>("gated_activation_packed_forward"));
  all.push_back(kernel<&quantised>("gated_activation_quant"));
  all.push_back(kernel<&gated_activation_pair_backward>("gated_activation_backward"));
  all.push_back(kernel<&gated_activation_packed_backward>("gated_activation_packed_backward"));
}

}  // namespace membound::python::torch
