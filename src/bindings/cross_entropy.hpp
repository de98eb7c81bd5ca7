// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.hpp"
#include "core/check.hpp"
#include "membound/ops/cross_entropy.hpp"

// The bindings that cross_entropy and its gradient share.
namespace membound::python {

inline Reduction reduction_from_python(PyObject* value, const char* op) {
  constexpr std::pair<const char*, Reduction> kAll[] = {
      {"none", Reduction::kNone}, {"sum", Reduction::kSum}, {"mean", Reduction::kMean}};
  for (const auto& [name, reduction] : kAll) {
    if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, name) == 0) {
      return reduction;
    }
  }
  fail<InvalidArgument>(op, "argument 'reduction' must be 'none', 'sum' or 'mean', got ",
                        nb::repr(nb::handle(value)).c_str());
}

// What is computed, as the arguments of either say.
template <class Arguments>
CrossEntropyOptions cross_entropy_options(const Arguments& a, const char* op) {
  CrossEntropyOptions options;
  if (a.ignore_index != nullptr) {
    options.ignore_index = integer_from_python(a.ignore_index, {op, "ignore_index"});
  }
  options.label_smoothing = number_or(a.label_smoothing, 0.0, {op, "label_smoothing"});
  options.z_loss = number_or(a.z_loss, 0.0, {op, "z_loss"});
  if (given(a.softcap)) options.softcap = number_from_python(a.softcap, {op, "softcap"});
  if (a.reduction != nullptr) options.reduction = reduction_from_python(a.reduction, op);
  options.validate = flag_or(a.validate, false, {op, "validate"});
  return options;
}

// The gradient of the loss: an array, or a number, which becomes an option.
inline OptionalInput loss_gradient(const ArrayCall& call, PyObject* dloss,
                                   CrossEntropyOptions& options, const char* op) {
  const bool number = given(dloss) && is_number(dloss);
  if (number) options.dloss = number_from_python(dloss, {op, "dloss"});
  return {call, number ? nullptr : dloss, "dloss"};
}

// The shape of a loss, in the accumulator's dtype: one per row, or a scalar with a reduction. lse
// has one more axis of 2.
inline TensorView like_loss(const TensorView& logits, Reduction reduction) {
  TensorView wanted = logits;
  wanted.dtype = accumulate_dtype(logits.dtype);
  wanted.rank = reduction == Reduction::kNone ? logits.rank - 1 : 0;
  return wanted;
}
inline TensorView like_lse(const TensorView& logits) {
  TensorView wanted = logits;
  wanted.dtype = accumulate_dtype(logits.dtype);
  wanted.shape[logits.rank - 1] = 2;
  return wanted;
}

// The same for the call of membound.jax.
template <class Arguments>
nb::dict cross_entropy_keywords(const Arguments& a) {
  nb::dict keywords;
  for (const auto& [value, name] : {std::pair{a.ignore_index, "ignore_index"},
                                    {a.label_smoothing, "label_smoothing"},
                                    {a.z_loss, "z_loss"},
                                    {a.softcap, "softcap"},
                                    {a.reduction, "reduction"},
                                    {a.validate, "validate"}}) {
    if (value != nullptr) keywords[name] = nb::handle(value);
  }
  return keywords;
}

}  // namespace membound::python
