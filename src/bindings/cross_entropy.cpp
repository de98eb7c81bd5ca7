// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cross_entropy.hpp"

#include "core/check.hpp"
#include "op_arguments.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "cross_entropy";

nb::object call_jax(const ArrayCall& call, const CrossEntropyArguments& a) {
  call.check_jax_absent(a.out, "out", "which cannot be written");
  call.check_jax_absent(a.dlogits, "dlogits", "which cannot be written: jax.grad works");
  call.check_jax_absent(a.dloss, "dloss", "whose gradients jax.grad takes");
  call.check_jax_absent(a.stream, "stream", "whose stream XLA picks");
  call.check_jax_absent(a.row_losses, "row_losses", "which cannot be written");
  call.check_jax_absent(a.entropy, "entropy", "which cannot be written");
  nb::dict keywords = cross_entropy_keywords(a);
  for (const auto& [value, name] : {std::pair{a.return_lse, "return_lse"},
                                    {a.return_z_loss, "return_z_loss"},
                                    {a.return_predictions, "return_predictions"}}) {
    if (value != nullptr) keywords[name] = nb::handle(value);
  }
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(a.logits), call.check_jax_input(a.labels, "labels"),
                   call.check_jax_input(a.weight, "weight"), **keywords);
}

// What is written beside the loss: the caller's arrays, or new ones.
class Results {
 public:
  Results(const ArrayCall& call, const CrossEntropyArguments& a, const TensorView& logits,
          const TensorView& labels, Reduction reduction)
      : call_(call), logits_(a.logits) {
    const TensorView loss = like_loss(logits, reduction);
    const TensorView rows = like_loss(logits, Reduction::kNone);
    const bool reduces = reduction != Reduction::kNone;
    MEMBOUND_CHECK(reduces || !given(a.row_losses), InvalidArgument, kName,
                   "argument 'row_losses' must be None without a reduction");
    if (reduces || given(a.out)) {
      returned_.append(made(given_or_null(a.out), loss, "out", loss_));
    } else {
      returned_.append(call.new_rows(a.logits, logits, "out", loss_));
    }
    if (flag_or(a.return_lse, false, {kName, "return_lse"})) {
      returned_.append(made(nullptr, like_lse(logits), "lse", lse_));
      also_.lse = &lse_.view;
    }
    if (flag_or(a.return_z_loss, false, {kName, "return_z_loss"})) {
      returned_.append(made(nullptr, loss, "z_loss", z_loss_));
      also_.z_loss = &z_loss_.view;
    }
    if (flag_or(a.return_predictions, false, {kName, "return_predictions"})) {
      TensorView wanted = rows;
      wanted.dtype = labels.dtype;
      returned_.append(made(nullptr, wanted, "predictions", predictions_));
      also_.predictions = &predictions_.view;
    }
    if (given(a.entropy)) {
      call.read_output(a.entropy, "entropy", entropy_);
      also_.entropy = &entropy_.view;
    }
    if (given(a.dlogits)) {
      call.read_output(a.dlogits, "dlogits", dlogits_);
      also_.dlogits = &dlogits_.view;
    }
    if (!reduces) return;
    held_[0] = made(given_or_null(a.row_losses), rows, "row_losses", row_losses_);
    also_.row_losses = &row_losses_.view;
    if (also_.z_loss == nullptr) return;
    held_[1] = made(nullptr, rows, "row_z_losses", row_z_losses_);
    also_.row_z_losses = &row_z_losses_.view;
  }

  const TensorView& loss() const { return loss_.view; }
  const CrossEntropyResults& also() const { return also_; }
  nb::object returned() const {
    return nb::len(returned_) == 1 ? nb::object(returned_[0]) : nb::object(nb::tuple(returned_));
  }

 private:
  static PyObject* given_or_null(PyObject* array) { return given(array) ? array : nullptr; }
  nb::object made(PyObject* array, const TensorView& wanted, const char* argument,
                  LoadedArray& loaded) const {
    if (array == nullptr) return call_.new_as(logits_, wanted, argument, loaded);
    call_.read_output(array, argument, loaded);
    return nb::borrow(array);
  }

  const ArrayCall& call_;
  PyObject* logits_;
  LoadedArray loss_, lse_, z_loss_, predictions_, dlogits_, row_losses_, row_z_losses_, entropy_;
  CrossEntropyResults also_;
  nb::list returned_;
  nb::object held_[2];
};

}  // namespace

nb::object call_cross_entropy(const CrossEntropyArguments& a) {
  const ArrayCall call(kName, a.logits, "logits", a.stream);
  if (call.is_jax()) return call_jax(call, a);
  CrossEntropyOptions options = cross_entropy_options(a, kName);
  MEMBOUND_CHECK(given(a.dlogits) || !given(a.dloss), InvalidArgument, kName,
                 "argument 'dloss' must be None without 'dlogits'");
  LoadedArray logits, labels;
  call.read_input(a.logits, "logits", logits);
  call.read_input(a.labels, "labels", labels);
  const OptionalInput weight(call, a.weight, "weight");
  const OptionalInput dloss = loss_gradient(call, a.dloss, options, kName);
  MEMBOUND_CHECK(logits.view.rank >= 1, InvalidArgument, kName,
                 "argument 'logits' must have 1 to 64 axes, got 0");
  const Results results(call, a, logits.view, labels.view, options.reduction);
  {
    const StreamView stream = call.stream(logits.view.device);
    const GilRelease released(is_long_on_cpu(logits.view));
    cross_entropy(logits.view, labels.view, weight, dloss, options, results.loss(), results.also(),
                  stream);
  }
  call.mark_written({a.out, a.row_losses, a.entropy, a.dlogits});
  return results.returned();
}

}  // namespace membound::python
