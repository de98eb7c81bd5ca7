// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.hpp"
#include "membound/ops/cross_entropy.hpp"

// What the bindings of cross_entropy and of its gradient have in common.
namespace membound::python {

// The arguments that say what is computed; null where the caller gave none.
struct CrossEntropyArguments {
  PyObject *ignore_index, *label_smoothing, *z_loss, *softcap, *validate;
};

inline CrossEntropyOptions cross_entropy_options(const CrossEntropyArguments& a, const char* op) {
  CrossEntropyOptions options;
  if (a.ignore_index != nullptr) {
    options.ignore_index = integer_from_python(a.ignore_index, {op, "ignore_index"});
  }
  options.label_smoothing = number_or(a.label_smoothing, 0.0, {op, "label_smoothing"});
  options.z_loss = number_or(a.z_loss, 0.0, {op, "z_loss"});
  if (given(a.softcap)) options.softcap = number_from_python(a.softcap, {op, "softcap"});
  options.validate = flag_or(a.validate, false, {op, "validate"});
  return options;
}

// The gradient of the loss of each row: an array, or one number for all.
class LossGradient {
 public:
  LossGradient(const ArrayCall& call, PyObject* dloss, CrossEntropyOptions& options,
               const char* op) {
    if (!given(dloss)) return;
    if (is_number(dloss)) {
      options.dloss = number_from_python(dloss, {op, "dloss"});
      return;
    }
    call.read_input(dloss, "dloss", loaded_);
    view_ = loaded_.view;
    is_array_ = true;
  }
  operator const ConstTensorView*() const { return is_array_ ? &view_ : nullptr; }

 private:
  LoadedArray loaded_;
  ConstTensorView view_;
  bool is_array_ = false;
};

// For the call of membound.jax.
inline nb::dict cross_entropy_keywords(const CrossEntropyArguments& a) {
  nb::dict keywords;
  for (const auto& [value, name] : {std::pair{a.ignore_index, "ignore_index"},
                                    {a.label_smoothing, "label_smoothing"},
                                    {a.z_loss, "z_loss"},
                                    {a.softcap, "softcap"},
                                    {a.validate, "validate"}}) {
    if (value != nullptr) keywords[name] = nb::handle(value);
  }
  return keywords;
}

}  // namespace membound::python
