// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "qk_norm_rope.hpp"

#include <iterator>

#include "core/check.hpp"
#include "errors.hpp"
#include "membound/ops/qk_norm_rope_backward.hpp"

namespace membound::python {

namespace {

using Given = QkNormRopeArguments;
using GivenBackward = QkNormRopeBackwardArguments;

// The keyword arguments of membound.jax.
nb::dict jax_keywords(const ArrayCall& call, const Given& a) {
  nb::dict keywords = rope_keywords(call, a);
  for (const auto& [value, argument] :
       {std::pair{a.eps, "eps"}, {a.weight_offset, "weight_offset"}, {a.rounding, "rounding"}}) {
    if (value != nullptr) keywords[argument] = nb::handle(value);
  }
  return keywords;
}

nb::object jax_function(const ArrayCall& call, const Given& a) {
  for (const auto& [value, argument] : {std::pair{a.out, a.out_name}, {a.k_out, a.k_out_name}}) {
    call.check_jax_absent(value, argument, "which cannot be written");
  }
  for (const auto& [value, argument] : {std::pair{a.key_cache, "key_cache"},
                                        {a.value_cache, "value_cache"},
                                        {a.v, "v"},
                                        {a.slot_mapping, "slot_mapping"}}) {
    call.check_jax_absent(value, argument, "whose caches cannot be written");
  }
  call.check_jax_absent(a.stream, "stream", "whose stream XLA picks");
  return nb::module_::import_("membound.jax").attr(a.op);
}

nb::object call_jax(const ArrayCall& call, const Given& a) {
  const nb::object function = jax_function(call, a);
  nb::dict keywords = jax_keywords(call, a);
  if (a.return_rstd != nullptr) keywords["return_rstd"] = nb::handle(a.return_rstd);
  const auto input = [&](PyObject* array, const char* argument) {
    return call.check_jax_input(array, argument);
  };
  return function(nb::handle(a.q), input(a.k, "k"), input(a.q_weight, "q_weight"),
                  input(a.k_weight, "k_weight"), input(a.cos, "cos"), input(a.sin, "sin"),
                  **keywords);
}

nb::object call_jax(const ArrayCall& call, const GivenBackward& a) {
  const nb::object function = jax_function(call, a);
  nb::dict keywords = jax_keywords(call, a);
  const auto input = [&](PyObject* array, const char* argument) {
    return call.check_jax_input(array, argument);
  };
  call.check_jax_absent(a.dq_weight, "dq_weight", "which cannot be written");
  call.check_jax_absent(a.dk_weight, "dk_weight", "which cannot be written");
  for (const auto& [value, argument] : {std::pair{a.q_rstd, "q_rstd"}, {a.k_rstd, "k_rstd"}}) {
    if (given(value)) keywords[argument] = input(value, argument);
  }
  if (a.accumulate != nullptr) {
    MEMBOUND_CHECK(!flag_from_python(a.accumulate, {a.op, "accumulate"}), TypeMismatch, a.op,
                   "argument 'accumulate' must be False for JAX arrays, which "
                   "cannot be written");
  }
  if (a.need_dweight != nullptr) keywords["need_dweight"] = nb::handle(a.need_dweight);
  return function(nb::handle(a.q), input(a.k, "dk"), input(a.q_read, "q"), input(a.k_read, "k"),
                  input(a.q_weight, "q_weight"), input(a.k_weight, "k_weight"), input(a.cos, "cos"),
                  input(a.sin, "sin"), **keywords);
}

// An output: the caller's array or a new one; nothing if there is no input.
struct Output {
  LoadedArray loaded;
  nb::object object = nb::none();
  bool there = false;

  const TensorView* view() const { return there ? &loaded.view : nullptr; }
  void make(const ArrayCall& call, PyObject* array, PyObject* like, const TensorView& as,
            const char* argument) {
    object = call.output(array, like, as, argument, loaded);
    there = true;
  }
};

void check_k_absent(const Given& a, PyObject* value, const char* argument) {
  MEMBOUND_CHECK(given(a.k) || !given(value), InvalidArgument, a.op, "argument '", argument,
                 "' must be None without '", a.k_name, "', got ", type_name(value));
}

// Checks a call with a cache: required arguments, and those that exclude a cache.
void check_cache_arguments(const Given& a, bool with_rstd) {
  const char* op = a.op;
  const bool cached = given(a.key_cache);
  for (const auto& [value, argument] :
       {std::pair{a.v, "v"}, {a.value_cache, "value_cache"}, {a.slot_mapping, "slot_mapping"}}) {
    MEMBOUND_CHECK(cached || !given(value), InvalidArgument, op, "argument '", argument,
                   "' must be None without 'key_cache', got ", type_name(value));
  }
  if (!cached) return;
  MEMBOUND_CHECK(given(a.k), InvalidArgument, op,
                 "argument 'k' must be given with 'key_cache', got None");
  MEMBOUND_CHECK(given(a.slot_mapping), InvalidArgument, op,
                 "argument 'slot_mapping' must be given with 'key_cache', got None");
  MEMBOUND_CHECK(!given(a.k_out), InvalidArgument, op,
                 "argument 'k_out' must be None with 'key_cache', where k goes, got ",
                 type_name(a.k_out));
  MEMBOUND_CHECK(!with_rstd, InvalidArgument, op,
                 "argument 'return_rstd' must be False with 'key_cache', which has no gradient");
}

// An optional output array of the caller's.
class OptionalOutput {
 public:
  OptionalOutput(const ArrayCall& call, PyObject* array, const char* argument)
      : given_(given(array)) {
    if (given_) call.read_output(array, argument, loaded_);
  }
  operator const TensorView*() const { return given_ ? &loaded_.view : nullptr; }

 private:
  bool given_;
  LoadedArray loaded_;
};

nb::object call_cached(const ArrayCall& call, const Given& a, const QkNormRopeOptions& options) {
  const OptionalInput q(call, a.q, "q"), k(call, a.k, "k"), v(call, a.v, "v");
  const OptionalInput q_weight(call, a.q_weight, "q_weight"),
      k_weight(call, a.k_weight, "k_weight");
  const RopeInputs angles(call, a);
  const OptionalInput slots(call, a.slot_mapping, "slot_mapping");
  const OptionalOutput keys(call, a.key_cache, "key_cache"),
      values(call, a.value_cache, "value_cache");
  Output out;
  out.make(call, a.out, a.q, q.view(), "out");
  {
    const ConstTensorView* const mapping = slots;
    const TensorView* const key_cache = keys;
    const StreamView stream = call.stream(q.view().device);
    const GilRelease released(is_long_on_cpu(q.view()));
    qk_norm_rope(*q, *k, q_weight, k_weight, angles.angles(), options, out.loaded.view,
                 {*key_cache, *mapping, v, values}, stream);
  }
  call.mark_written({a.out, a.key_cache, a.value_cache});
  return out.object;
}

}  // namespace

QkNormRounding qk_norm_rounding_from_python(PyObject* rounding, const char* op) {
  if (rounding == nullptr) return QkNormRounding::kOnce;
  const int count = PyUnicode_Check(rounding) ? static_cast<int>(std::size(kQkNormRoundings)) : 0;
  for (int i = 0; i < count; ++i) {
    if (PyUnicode_CompareWithASCIIString(rounding, kQkNormRoundings[i]) == 0) {
      return QkNormRounding(i);
    }
  }
  fail<InvalidArgument>(
      op, "argument 'rounding' must be 'once', 'before_weight' or 'before_rotation', got ",
      repr_of(rounding));
}

QkNormRopeOptions qk_norm_rope_options(const Given& a) {
  QkNormRopeOptions options;
  options.rope = rope_options(a);
  options.eps = number_or(a.eps, 1e-6, {a.op, "eps"});
  options.weight_offset = number_or(a.weight_offset, 0.0, {a.op, "weight_offset"});
  options.rounding = qk_norm_rounding_from_python(a.rounding, a.op);
  return options;
}

nb::object call_qk_norm_rope(const Given& a) {
  const ArrayCall call(a.op, a.q, "q", a.stream);
  if (call.is_jax()) return call_jax(call, a);
  const QkNormRopeOptions options = qk_norm_rope_options(a);
  const bool with_rstd = flag_or(a.return_rstd, false, {a.op, "return_rstd"});
  check_cache_arguments(a, with_rstd);
  if (given(a.key_cache)) return call_cached(call, a, options);
  const OptionalInput q(call, a.q, "q"), k(call, a.k, "k");
  const OptionalInput q_weight(call, a.q_weight, "q_weight"),
      k_weight(call, a.k_weight, "k_weight");
  const RopeInputs angles(call, a);
  check_k_absent(a, a.k_out, "k_out");

  Output out, k_out;
  LoadedArray q_rstd, k_rstd;
  nb::list results;
  out.make(call, a.out, a.q, q.view(), "out");
  results.append(out.object);
  if (given(a.k)) {
    k_out.make(call, a.k_out, a.k, k.view(), "k_out");
    results.append(k_out.object);
  }
  if (with_rstd) {
    results.append(call.new_rows(a.q, q.view(), "q_rstd", q_rstd));
    if (k_out.there) results.append(call.new_rows(a.k, k.view(), "k_rstd", k_rstd));
  }
  {
    const StreamView stream = call.stream(q.view().device);
    const GilRelease released(is_long_on_cpu(q.view()));
    qk_norm_rope(*q, k, q_weight, k_weight, angles.angles(), options, out.loaded.view, k_out.view(),
                 with_rstd ? &q_rstd.view : nullptr,
                 with_rstd && k_out.there ? &k_rstd.view : nullptr, stream);
  }
  call.mark_written({a.out, a.k_out});
  if (nb::len(results) == 1) return out.object;
  return nb::tuple(results);
}

nb::object call_qk_norm_rope_backward(const GivenBackward& a) {
  const ArrayCall call(a.op, a.q, "dq", a.stream);
  if (call.is_jax()) return call_jax(call, a);
  const QkNormRopeOptions options = qk_norm_rope_options(a);
  const bool accumulate = flag_or(a.accumulate, false, {a.op, "accumulate"});
  const bool need = flag_or(a.need_dweight, true, {a.op, "need_dweight"});
  const OptionalInput dq(call, a.q, "dq"), dk(call, a.k, "dk");
  const OptionalInput q(call, a.q_read, "q"), k(call, a.k_read, "k");
  const OptionalInput weights[] = {{call, a.q_weight, "q_weight"}, {call, a.k_weight, "k_weight"}};
  const OptionalInput q_rstd(call, a.q_rstd, "q_rstd"), k_rstd(call, a.k_rstd, "k_rstd");
  const RopeInputs angles(call, a);
  const bool two = given(a.k);
  MEMBOUND_CHECK(given(a.q_read), InvalidArgument, a.op, "argument 'q' must be given, got None");
  MEMBOUND_CHECK(two == given(a.k_read), InvalidArgument, a.op,
                 "argument 'k' must be given with 'dk', and only then");
  check_k_absent(a, a.k_out, "dk_out");
  check_k_absent(a, a.k_weight, "k_weight");
  check_k_absent(a, a.k_rstd, "k_rstd");
  check_k_absent(a, a.dk_weight, "dk_weight");

  Output dq_out, dk_out, dweights[2];
  dq_out.make(call, a.out, a.q, dq.view(), "dq_out");
  if (two) dk_out.make(call, a.k_out, a.k, dk.view(), "dk_out");
  PyObject* const given_dweights[] = {a.dq_weight, a.dk_weight};
  PyObject* const like[] = {a.q_weight, a.k_weight};
  constexpr const char* kNames[] = {"dq_weight", "dk_weight"};
  for (int i = 0; i < 2; ++i) {
    const bool there = given(given_dweights[i]);
    MEMBOUND_CHECK(need || !there, InvalidArgument, a.op, "argument '", kNames[i],
                   "' must be None with need_dweight=False, got an array");
    MEMBOUND_CHECK(!there || given(like[i]), InvalidArgument, a.op, "argument '", kNames[i],
                   "' must be None without its weight, got an array");
    MEMBOUND_CHECK(!accumulate || !need || there || !given(like[i]), InvalidArgument, a.op,
                   "argument '", kNames[i], "' must be given with accumulate=True: it is added to");
    if (need && given(like[i])) {
      dweights[i].make(call, given_dweights[i], like[i], weights[i].view(), kNames[i]);
    }
  }
  LoadedArray workspace;
  nb::object bytes;
  if (dweights[0].there || dweights[1].there) {
    const std::int64_t size = qk_norm_rope_backward_workspace(*dq, dk, options.rope.layout);
    bytes = call.new_workspace(a.q, dq.view().device, size, workspace);
  }
  {
    const StreamView stream = call.stream(dq.view().device);
    const GilRelease released(is_long_on_cpu(dq.view()));
    const QkNormRopeGradient of_q{
        *dq, *q, weights[0], q_rstd, dq_out.loaded.view, dweights[0].view()};
    // An empty view if there is no k.
    const QkNormRopeGradient of_k{two ? *dk : *dq,
                                  two ? *k : *q,
                                  weights[1],
                                  k_rstd,
                                  two ? dk_out.loaded.view : dq_out.loaded.view,
                                  dweights[1].view()};
    qk_norm_rope_backward(of_q, two ? &of_k : nullptr, angles.angles(), options, accumulate,
                          bytes.is_valid() ? &workspace.view : nullptr, stream);
  }
  call.mark_written({a.out, a.k_out, a.dq_weight, a.dk_weight});
  return nb::make_tuple(dq_out.object, dk_out.object, dweights[0].object, dweights[1].object);
}

}  // namespace membound::python
