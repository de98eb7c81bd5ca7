// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "qk_norm_rope.hpp"

#include <nanobind/stl/string.h>

#include <array>

#include "jax/rope_attributes.hpp"
#include "ops/qk_norm_rope_backward.hpp"

namespace membound::python::jax {

namespace {

// The possible operands of a call, in order.
enum Operand {
  kQ,
  kK,
  kQWeight,
  kKWeight,
  kCos,
  kSin,
  kFreqs,
  kPositionIds,
  kSeqlenOffsets,
  kCuSeqlens,
  kDq,
  kDk,
  kQRstd,
  kKRstd,
  kOperands,
};
constexpr const char* kNames[kOperands] = {
    "q",   "k",     "q_weight",     "k_weight",       "cos",
    "sin", "freqs", "position_ids", "seqlen_offsets", "cu_seqlens",
    "dq",  "dk",    "q_rstd",       "k_rstd"};

// The results for q, or for k: the output and rstd, or the gradients of heads and weight.
struct Arrays {
  std::array<MaybeArray, kOperands> in;
  MaybeArray heads[2], others[2], workspace;
};

// Calls body with the angles as the library's type.
template <class Body>
void with_angles(const Arrays& a, Body body) {
  const OptionalView cos(a.in[kCos]), sin(a.in[kSin]), freqs(a.in[kFreqs]);
  const OptionalView ids(a.in[kPositionIds]), offsets(a.in[kSeqlenOffsets]);
  const OptionalView ends(a.in[kCuSeqlens]);
  body(RopeAngles{cos, sin, freqs, ids, offsets, ends});
}

// Calls body(call) with the arrays of a forward call.
template <class Body>
void forward_call(const Arrays& a, const QkNormRopeOptions& options, Body body) {
  with_angles(a, [&](const RopeAngles& angles) {
    const OptionalView k(a.in[kK]), q_weight(a.in[kQWeight]), k_weight(a.in[kKWeight]);
    const ConstTensorView q = *a.in[kQ];
    body(QkNormRopeCall{q, k, q_weight, k_weight, angles, options, *a.heads[0], pointer(a.heads[1]),
                        pointer(a.others[0]), pointer(a.others[1])});
  });
}

// Calls body(q, k, angles) with the arrays of a backward call.
template <class Body>
void backward_call(const Arrays& a, Body body) {
  with_angles(a, [&](const RopeAngles& angles) {
    const OptionalView q_weight(a.in[kQWeight]), k_weight(a.in[kKWeight]);
    const OptionalView q_rstd(a.in[kQRstd]), k_rstd(a.in[kKRstd]);
    const bool two = a.in[kDk].has_value();
    const ConstTensorView q = *a.in[kQ], dq = *a.in[kDq];
    const ConstTensorView k = two ? *a.in[kK] : *a.in[kQ], dk = two ? *a.in[kDk] : *a.in[kDq];
    const QkNormRopeGradient of_q{dq, q, q_weight, q_rstd, *a.heads[0], pointer(a.others[0])};
    const QkNormRopeGradient of_k{
        dk, k, k_weight, k_rstd, two ? *a.heads[1] : *a.heads[0], pointer(a.others[1])};
    body(of_q, two ? &of_k : nullptr, angles);
  });
}

QkNormRopeOptions options_of(const Call& call) {
  QkNormRopeOptions options;
  options.rope = rope_options_of(call);
  options.eps = call.number("eps");
  options.weight_offset = call.number("weight_offset");
  options.rounding = static_cast<QkNormRounding>(call.integer("rounding"));
  return options;
}

// Results: for q, then for k, the heads and the further results that are wanted; last the workspace
// of sums.
Arrays arrays_of(const Call& call, bool backward) {
  Arrays all;
  const int present = call.integer("present");  // a bit per operand
  const bool others = call.flag("others");
  std::int64_t next = 0;
  for (int i = 0; i < kOperands; ++i) {
    if (present >> i & 1) all.in[i] = call.operand(next++);
  }
  next = 0;
  for (int i = 0; i < 2; ++i) {
    if (i == 0 || all.in[kK]) all.heads[i] = call.result(next++);
  }
  for (int i = 0; i < 2; ++i) {
    const bool there = backward ? all.in[i == 0 ? kQWeight : kKWeight].has_value()
                                : i == 0 || all.in[kK].has_value();
    if (others && there) all.others[i] = call.result(next++);
  }
  if (backward && (all.others[0] || all.others[1])) all.workspace = call.result(next++);
  return all;
}

// Calls body(one) for each element of the batch.
template <class Body>
void each_element(const Call& call, const Arrays& all, Body body) {
  const Batch batch{all.heads[0]->rank - call.integer("rank"), all.heads[0]->shape};
  const auto element = [&](const MaybeArray& array, std::int64_t i) {
    return array ? MaybeArray(batch.element(*array, i)) : MaybeArray();
  };
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    Arrays one;
    for (int operand = 0; operand < kOperands; ++operand) {
      one.in[operand] = element(all.in[operand], i);
    }
    for (int array = 0; array < 2; ++array) {
      one.heads[array] = element(all.heads[array], i);
      one.others[array] = element(all.others[array], i);
    }
    one.workspace = element(all.workspace, i);
    body(one);
  }
}

// Checks a call by shapes and dtypes, with the library's error texts. Values of positions are
// unknown.
nb::dict qk_norm_rope_attributes(const std::string& name, const nb::dict& arrays,
                                 const nb::dict& given) {
  const bool backward = name == "qk_norm_rope_backward";
  QkNormRopeArguments arguments{};
  static_cast<RopeArguments&>(arguments) =
      traced_arguments(backward ? "qk_norm_rope_backward" : "qk_norm_rope", given);
  arguments.eps = traced_option(given, "eps");
  arguments.weight_offset = traced_option(given, "weight_offset");
  arguments.rounding = traced_option(given, "rounding");
  const QkNormRopeOptions options = qk_norm_rope_options(arguments);
  QkNormRopeOptions unseen = options;
  unseen.rope.validate = false;

  Arrays all;
  for (int i = 0; i < kOperands; ++i) {
    if (arrays.contains(kNames[i])) all.in[i] = traced(arrays[kNames[i]], i);
  }
  const auto written = [&](const MaybeArray& like, int number) {
    MaybeArray made = like;
    if (made) made->data = reinterpret_cast<void*>(std::uintptr_t(kOperands + number + 1) << 56);
    return made;
  };
  std::int64_t rotary_dim = 0, workspace = 0;
  all.heads[0] = written(all.in[backward ? kDq : kQ], 0);
  all.heads[1] = written(all.in[backward ? kDk : kK], 1);
  if (backward) {
    all.others[0] = written(all.in[kQWeight], 2);
    all.others[1] = written(all.in[kKWeight], 3);
    backward_call(all, [&](const QkNormRopeGradient& q, const QkNormRopeGradient* k,
                           const RopeAngles& angles) {
      rotary_dim = qk_norm_rope_backward_problem(q, k, angles, unseen, false).rope.rotary_dim;
      workspace = qk_norm_rope_backward_workspace(q.dy, k ? &k->dy : nullptr, unseen.rope.layout);
    });
  } else {
    forward_call(all, unseen, [&](const QkNormRopeCall& call) {
      rotary_dim = qk_norm_rope_problem(call).rope.rotary_dim;
    });
  }
  nb::dict attributes = rope_options_to_attributes(options.rope, rotary_dim);
  attributes["eps"] = options.eps;
  attributes["weight_offset"] = options.weight_offset;
  attributes["rounding"] = static_cast<int>(options.rounding);
  // Rounded up so that each element of a batch is aligned; not an attribute of the handler.
  attributes["workspace"] = (workspace + 15) / 16 * 16;
  return attributes;
}

}  // namespace

void qk_norm_rope_call(const Call& call) {
  const QkNormRopeOptions options = options_of(call);
  each_element(call, arrays_of(call, false), [&](const Arrays& one) {
    forward_call(one, options, [&](const QkNormRopeCall& a) {
      qk_norm_rope(a.q, a.k, a.q_weight, a.k_weight, a.angles, a.options, a.out, a.k_out, a.q_rstd,
                   a.k_rstd, call.stream);
    });
  });
}

void qk_norm_rope_backward_call(const Call& call) {
  const QkNormRopeOptions options = options_of(call);
  each_element(call, arrays_of(call, true), [&](const Arrays& one) {
    backward_call(one, [&](const QkNormRopeGradient& q, const QkNormRopeGradient* k,
                           const RopeAngles& angles) {
      qk_norm_rope_backward(q, k, angles, options, false, pointer(one.workspace), call.stream);
    });
  });
}

void bind_qk_norm_rope(nb::module_& module) {
  module.def("qk_norm_rope_attributes", &qk_norm_rope_attributes, nb::arg("op"), nb::arg("arrays"),
             nb::arg("options"),
             "Checks a call of qk_norm_rope by {name: (shape, dtype code)} and its options, and "
             "returns the attributes of the XLA handler and the bytes of its workspace.");
}

}  // namespace membound::python::jax
