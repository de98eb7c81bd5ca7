// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "rope.hpp"

#include <iterator>

#include "core/check.hpp"
#include "errors.hpp"
#include "membound/ops/rope.hpp"
#include "membound/ops/rope_backward.hpp"

namespace membound::python {

namespace {

using Given = RopeArguments;

[[noreturn, gnu::cold]] void fail_sections(const Given& a) {
  PyErr_Clear();  // from 0-d arrays and 2-d memoryviews
  fail<TypeMismatch>(a.op, "argument 'sections' must be a sequence of integers, got ",
                     type_name(a.sections));
}

void read_sections(const Given& a, RopeOptions& options) {
  if (!given(a.sections)) return;
  const bool is_sequence = PySequence_Check(a.sections) && !PyUnicode_Check(a.sections);
  const Py_ssize_t count = is_sequence ? PySequence_Size(a.sections) : -1;
  if (count < 0) fail_sections(a);
  options.section_count = given_section_count(static_cast<std::size_t>(count), a.op);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const nb::object number = nb::steal(PySequence_GetItem(a.sections, i));
    if (!number.is_valid()) fail_sections(a);
    options.sections[i] = integer_from_python(number.ptr(), {a.op, "sections"});
  }
}

}  // namespace

RopeLayout rope_layout_from_python(PyObject* layout, const char* op) {
  if (layout == nullptr) return RopeLayout::kBshd;
  MEMBOUND_CHECK(PyUnicode_Check(layout), TypeMismatch, op, "argument 'layout' must be a str, got ",
                 type_name(layout));
  for (int i = 0; i < static_cast<int>(std::size(kRopeLayouts)); ++i) {
    if (PyUnicode_CompareWithASCIIString(layout, kRopeLayouts[i]) == 0) return RopeLayout(i);
  }
  fail<InvalidArgument>(op, "argument 'layout' must be 'bshd', 'sbhd', 'bhsd' or 'thd', got ",
                        repr_of(layout));
}

std::int64_t given_rotary_dim(std::int64_t rotary_dim, const char* op) {
  MEMBOUND_CHECK(rotary_dim != 0, InvalidArgument, op,
                 "argument 'rotary_dim' must be even and at least 2, got 0");
  return rotary_dim;
}

int given_section_count(std::size_t count, const char* op) {
  MEMBOUND_CHECK(count >= 1 && count <= kMaxRopeSections, InvalidArgument, op,
                 "argument 'sections' must have 1 to ", kMaxRopeSections, " numbers, got ", count);
  return static_cast<int>(count);
}

RopeOptions rope_options(const Given& a) {
  RopeOptions options;
  options.layout = rope_layout_from_python(a.layout, a.op);
  options.interleaved = flag_or(a.interleaved, false, {a.op, "interleaved"});
  options.inverse = flag_or(a.inverse, false, {a.op, "inverse"});
  options.validate = flag_or(a.validate, false, {a.op, "validate"});
  options.interleaved_sections =
      flag_or(a.interleaved_sections, false, {a.op, "interleaved_sections"});
  options.attention_scaling = number_or(a.attention_scaling, 1.0, {a.op, "attention_scaling"});
  if (given(a.rotary_dim)) {
    options.rotary_dim =
        given_rotary_dim(integer_from_python(a.rotary_dim, {a.op, "rotary_dim"}), a.op);
  }
  if (given(a.rotary_offset)) {
    options.rotary_offset = integer_from_python(a.rotary_offset, {a.op, "rotary_offset"});
  }
  if (given(a.seqlen_offsets) && is_number(a.seqlen_offsets)) {
    options.position_offset = integer_from_python(a.seqlen_offsets, {a.op, "seqlen_offsets"});
  }
  read_sections(a, options);
  return options;
}

// The array seqlen_offsets, unless it is a number.
static PyObject* offsets_array(const Given& a) {
  const bool number = a.seqlen_offsets != nullptr && is_number(a.seqlen_offsets);
  return number ? nullptr : a.seqlen_offsets;
}

nb::dict rope_keywords(const ArrayCall& call, const Given& a) {
  nb::dict keywords;
  for (const auto& [value, argument] : {std::pair{a.freqs, "freqs"},
                                        {a.position_ids, "position_ids"},
                                        {a.cu_seqlens, "cu_seqlens"},
                                        {offsets_array(a), "seqlen_offsets"}}) {
    if (given(value)) keywords[argument] = call.check_jax_input(value, argument);
  }
  for (const auto& [value, argument] : {std::pair{a.layout, "layout"},
                                        {a.interleaved, "interleaved"},
                                        {a.rotary_dim, "rotary_dim"},
                                        {a.rotary_offset, "rotary_offset"},
                                        {a.sections, "sections"},
                                        {a.interleaved_sections, "interleaved_sections"},
                                        {a.attention_scaling, "attention_scaling"},
                                        {a.inverse, "inverse"},
                                        {a.validate, "validate"}}) {
    if (value != nullptr) keywords[argument] = nb::handle(value);
  }
  if (given(a.seqlen_offsets) && offsets_array(a) == nullptr) {
    keywords["seqlen_offsets"] = nb::handle(a.seqlen_offsets);
  }
  return keywords;
}

RopeInputs::RopeInputs(const ArrayCall& call, const Given& a)
    : cos(call, a.cos, "cos"),
      sin(call, a.sin, "sin"),
      freqs(call, a.freqs, "freqs"),
      position_ids(call, a.position_ids, "position_ids"),
      seqlen_offsets(call, offsets_array(a), "seqlen_offsets"),
      cu_seqlens(call, a.cu_seqlens, "cu_seqlens") {}

namespace {

nb::object call_jax(const ArrayCall& call, const Given& a) {
  for (const auto& [value, argument] :
       {std::pair{a.out, a.out_name}, {a.k_out, a.k_out_name}, std::pair{a.dfreqs, "dfreqs"}}) {
    call.check_jax_absent(value, argument, "which cannot be written");
  }
  call.check_jax_absent(a.stream, "stream", "whose stream XLA picks");
  nb::dict keywords = rope_keywords(call, a);
  for (const auto& [value, argument] : {std::pair{a.q_read, "q"}, {a.k_read, "k"}}) {
    if (given(value)) keywords[argument] = call.check_jax_input(value, argument);
  }
  return nb::module_::import_("membound.jax")
      .attr(a.op)(nb::handle(a.q), call.check_jax_input(a.k, a.k_name),
                  call.check_jax_input(a.cos, "cos"), call.check_jax_input(a.sin, "sin"),
                  **keywords);
}

// The array that the caller gave for dfreqs, or a new one like freqs.
nb::object make_dfreqs(const ArrayCall& call, const Given& a, const OptionalInput& freqs,
                       LoadedArray& loaded) {
  MEMBOUND_CHECK(static_cast<const ConstTensorView*>(freqs), InvalidArgument, a.op,
                 "argument 'freqs' must be given with 'q', whose gradient is that of freqs");
  return call.output(a.dfreqs, a.freqs, freqs.view(), "dfreqs", loaded);
}

nb::tuple results_of(const nb::object& out, const nb::object& k_out, const nb::object& dfreqs) {
  nb::list results;
  for (const nb::object* one : {&out, &k_out, &dfreqs}) {
    if (one->is_valid()) results.append(*one);
  }
  return nb::tuple(results);
}

}  // namespace

nb::object call_rope(const Given& a) {
  const ArrayCall call(a.op, a.q, a.q_name, a.stream);
  if (call.is_jax()) return call_jax(call, a);
  const RopeOptions options = rope_options(a);
  const OptionalInput q(call, a.q, a.q_name), k(call, a.k, a.k_name);
  const RopeInputs inputs(call, a);
  const OptionalInput q_read(call, a.q_read, "q"), k_read(call, a.k_read, "k");
  const RopeAngles angles = inputs.angles();
  const bool wants_dfreqs = given(a.q_read);
  MEMBOUND_CHECK(wants_dfreqs || !(given(a.k_read) || given(a.dfreqs)), InvalidArgument, a.op,
                 "argument 'q' must be given for the gradient of freqs, got None");

  LoadedArray out, k_out, dfreqs, workspace;
  nb::object k_result, freqs_result, bytes;
  const nb::object result = call.output(a.out, a.q, q.view(), a.out_name, out);
  if (given(a.k)) {
    k_result = call.output(a.k_out, a.k, k.view(), a.k_out_name, k_out);
  } else {
    MEMBOUND_CHECK(!given(a.k_out), InvalidArgument, a.op, "argument '", a.k_out_name,
                   "' must be None without '", a.k_name, "', got ", type_name(a.k_out));
  }
  if (wants_dfreqs) {
    freqs_result = make_dfreqs(call, a, inputs.freqs, dfreqs);
    if (q.view().device.is_cuda()) {
      const TensorView& freqs = inputs.freqs.view();
      const std::int64_t pairs = freqs.rank == 1 ? freqs.shape[0] : 0;
      bytes =
          call.new_workspace(a.q, q.view().device, rope_backward_workspace(2 * pairs), workspace);
    }
  }
  {
    const StreamView stream = call.stream(q.view().device);
    const GilRelease released(is_long_on_cpu(q.view()));
    const TensorView* k_target = k_result.is_valid() ? &k_out.view : nullptr;
    if (a.backward) {
      rope_backward(*q, k, q_read, k_read, angles, options, out.view, k_target,
                    wants_dfreqs ? &dfreqs.view : nullptr,
                    bytes.is_valid() ? &workspace.view : nullptr, stream);
    } else {
      rope(*q, k, angles, options, out.view, k_target, stream);
    }
  }
  call.mark_written({a.out, a.k_out, a.dfreqs});
  if (!k_result.is_valid() && !freqs_result.is_valid()) return result;
  return results_of(result, k_result, freqs_result);
}

}  // namespace membound::python
