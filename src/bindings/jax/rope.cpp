// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "jax/call.hpp"
#include "jax/rope_attributes.hpp"
#include "membound/ops/rope_backward.hpp"
#include "rope.hpp"

namespace membound::python::jax {

namespace {

constexpr const char* kSectionNames[kMaxRopeSections] = {"section_0", "section_1", "section_2",
                                                         "section_3"};

}  // namespace

RopeOptions rope_options_of(const Call& call) {
  RopeOptions options;
  options.layout = static_cast<RopeLayout>(call.integer("layout"));
  options.interleaved = call.flag("interleaved");
  options.inverse = call.flag("inverse");
  options.validate = call.flag("validate");
  options.rotary_dim = call.attribute<std::int64_t>("rotary_dim", xla::DataType::kS64);
  options.rotary_offset = call.attribute<std::int64_t>("rotary_offset", xla::DataType::kS64);
  options.position_offset = call.attribute<std::int64_t>("position_offset", xla::DataType::kS64);
  options.attention_scaling = call.number("attention_scaling");
  options.interleaved_sections = call.flag("interleaved_sections");
  options.section_count = call.integer("section_count");
  for (int i = 0; i < kMaxRopeSections; ++i) {
    options.sections[i] = call.attribute<std::int64_t>(kSectionNames[i], xla::DataType::kS64);
  }
  return options;
}

// An array that does not exist yet: its shape and dtype, at an address distinct from all others.
TensorView traced(nb::handle described, int number) {
  const nb::tuple pair = nb::cast<nb::tuple>(described);
  const nb::tuple shape = nb::cast<nb::tuple>(pair[0]);
  TensorView view(reinterpret_cast<void*>(static_cast<std::uintptr_t>(number + 1) << 56),
                  static_cast<DType>(nb::cast<int>(pair[1])), Device::cpu(), {});
  view.rank = static_cast<std::int32_t>(std::min<std::size_t>(shape.size(), kMaxRank + 1));
  std::int64_t stride = 1;
  for (int axis = std::min(view.rank, kMaxRank) - 1; axis >= 0; --axis) {
    view.shape[axis] = nb::cast<std::int64_t>(shape[axis]);
    view.strides[axis] = stride;
    stride *= std::max<std::int64_t>(view.shape[axis], 1);
  }
  return view;
}

nb::dict rope_options_to_attributes(const RopeOptions& options, std::int64_t rotary_dim) {
  nb::dict attributes;
  attributes["layout"] = static_cast<int>(options.layout);
  attributes["interleaved"] = static_cast<int>(options.interleaved);
  attributes["inverse"] = static_cast<int>(options.inverse);
  attributes["validate"] = static_cast<int>(options.validate);
  attributes["rotary_dim"] = rotary_dim;
  attributes["rotary_offset"] = options.rotary_offset;
  attributes["position_offset"] = options.position_offset;
  attributes["attention_scaling"] = options.attention_scaling;
  attributes["interleaved_sections"] = static_cast<int>(options.interleaved_sections);
  attributes["section_count"] = options.section_count;
  for (int i = 0; i < kMaxRopeSections; ++i) attributes[kSectionNames[i]] = options.sections[i];
  return attributes;
}

PyObject* traced_option(const nb::dict& options, const char* name) {
  return options.contains(name) ? nb::handle(options[name]).ptr() : nullptr;
}

RopeArguments traced_arguments(const char* op, const nb::dict& given) {
  RopeArguments arguments{};
  arguments.op = op;
  arguments.layout = traced_option(given, "layout");
  arguments.interleaved = traced_option(given, "interleaved");
  arguments.rotary_dim = traced_option(given, "rotary_dim");
  arguments.rotary_offset = traced_option(given, "rotary_offset");
  arguments.sections = traced_option(given, "sections");
  arguments.interleaved_sections = traced_option(given, "interleaved_sections");
  arguments.attention_scaling = traced_option(given, "attention_scaling");
  arguments.inverse = traced_option(given, "inverse");
  arguments.validate = traced_option(given, "validate");
  arguments.seqlen_offsets = traced_option(given, "seqlen_offsets");
  return arguments;
}

namespace {

// The possible operands of a call, in order.
enum Operand {
  kQ,
  kK,
  kCos,
  kSin,
  kFreqs,
  kPositionIds,
  kSeqlenOffsets,
  kCuSeqlens,
  kQRead,
  kKRead,
};
constexpr int kOperands = kKRead + 1;
constexpr const char* kNames[kOperands] = {
    "q",          "k",      "cos",   "sin", "freqs", "position_ids", "seqlen_offsets",
    "cu_seqlens", "q_read", "k_read"};

// The arrays of a call, or of one element of its batch.
struct Arrays {
  std::array<MaybeArray, kOperands> in;
  MaybeArray out, k_out, dfreqs, workspace;
};
constexpr MaybeArray Arrays::* kResults[] = {&Arrays::out, &Arrays::k_out, &Arrays::dfreqs,
                                             &Arrays::workspace};

// Calls body with the views as the library's types.
template <class Body>
void with_views(const Arrays& a, Body body) {
  const OptionalView q(a.in[kQ]), k(a.in[kK]), cos(a.in[kCos]), sin(a.in[kSin]),
      freqs(a.in[kFreqs]);
  const OptionalView ids(a.in[kPositionIds]), offsets(a.in[kSeqlenOffsets]), ends(a.in[kCuSeqlens]);
  body(q, k, RopeAngles{cos, sin, freqs, ids, offsets, ends});
}

void run(const Call& call, const RopeOptions& options, const Arrays& a, bool backward) {
  with_views(a, [&](const ConstTensorView* q, const ConstTensorView* k, const RopeAngles& angles) {
    if (!backward) return rope(*q, k, angles, options, *a.out, pointer(a.k_out), call.stream);
    const OptionalView q_read(a.in[kQRead]), k_read(a.in[kKRead]);
    rope_backward(*q, k, q_read, k_read, angles, options, *a.out, pointer(a.k_out),
                  pointer(a.dfreqs), pointer(a.workspace), call.stream);
  });
}

Arrays arrays_of(const Call& call) {
  Arrays all;
  const int present = call.integer("present");  // a bit per operand
  std::int64_t next = 0;
  for (int i = 0; i < kOperands; ++i) {
    if (present >> i & 1) all.in[i] = call.operand(next++);
  }
  next = 0;
  all.out = call.result(next++);
  if (all.in[kK]) all.k_out = call.result(next++);
  if (all.in[kQRead]) {
    all.dfreqs = call.result(next++);
    all.workspace = call.result(next++);
  }
  return all;
}

// Computes the elements of a batch one after the other.
void run_batch(const Call& call, bool backward) {
  const RopeOptions options = rope_options_of(call);
  const Arrays all = arrays_of(call);
  const int axes = all.out->rank - call.integer("rank");
  const Batch batch{axes, all.out->shape};
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    Arrays one;
    for (int operand = 0; operand < kOperands; ++operand) {
      if (all.in[operand]) one.in[operand] = batch.element(*all.in[operand], i);
    }
    for (const auto result : kResults) {
      if (all.*result) one.*result = batch.element(*(all.*result), i);
    }
    run(call, options, one, backward);
  }
}

// Checks a call by shapes and dtypes, with the library's error texts. Values of positions are
// unknown.
nb::dict rope_attributes(const std::string& op, const nb::dict& arrays, const nb::dict& given) {
  const bool backward = op == "rope_backward";
  const RopeArguments arguments = traced_arguments(backward ? "rope_backward" : "rope", given);
  const RopeOptions options = rope_options(arguments);
  RopeOptions unseen = options;
  unseen.validate = false;

  Arrays all;
  for (int i = 0; i < kOperands; ++i) {
    if (arrays.contains(kNames[i])) all.in[i] = traced(arrays[kNames[i]], i);
  }
  all.out = all.in[kQ];
  all.out->data = reinterpret_cast<void*>(std::uintptr_t{kOperands + 1} << 56);
  if (all.in[kK]) {
    all.k_out = all.in[kK];
    all.k_out->data = reinterpret_cast<void*>(std::uintptr_t{kOperands + 2} << 56);
  }
  std::int64_t rotary_dim = 0;
  with_views(all,
             [&](const ConstTensorView* q, const ConstTensorView* k, const RopeAngles& angles) {
               const char* q_name = backward ? "dq" : "q";
               const char* k_name = backward ? "dk" : "k";
               rotary_dim = rope_problem({arguments.op, q_name, k_name, "out", "k_out", *q, k,
                                          angles, unseen, *all.out, pointer(all.k_out)})
                                .rotary_dim;
             });
  return rope_options_to_attributes(options, rotary_dim);
}

}  // namespace

// Operands: those of the enumeration that are present. Results: out, k_out if there is k, and the
// gradient of freqs with its workspace if there are rope's inputs.
void rope_call(const Call& call) { run_batch(call, false); }
void rope_backward_call(const Call& call) { run_batch(call, true); }

void bind_rope(nb::module_& module) {
  module.def("rope_attributes", &rope_attributes, nb::arg("op"), nb::arg("arrays"),
             nb::arg("options"),
             "Checks a call of rope by {name: (shape, dtype code)} and its options, and returns "
             "the attributes of the XLA handler.");
  module.def("rope_backward_workspace", &rope_backward_workspace, nb::arg("rotary_dim"),
             "Bytes that rope_backward sums dfreqs in on a GPU.");
}

}  // namespace membound::python::jax
