// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cross_entropy.hpp"

#include "core/check.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "cross_entropy";

enum Parameter {
  kLogits,
  kLabels,
  kWeight,
  kIgnoreIndex,
  kLabelSmoothing,
  kZLoss,
  kSoftcap,
  kReduction,
  kValidate,
  kOut,
  kRowLosses,
  kReturnLse,
  kReturnZLoss,
  kReturnPredictions,
  kDlogits,
  kDloss,
  kStream,
};

constexpr const char* kText =
    R"(cross_entropy($module, logits, labels, weight=None, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=None, reduction='none', validate=False, out=None, row_losses=None, return_lse=False, return_z_loss=False, return_predictions=False, dlogits=None, dloss=None, stream=None)
--

The cross entropy of each row of logits and its label; its gradient in the same pass if wanted.

With ``l = logits``, or ``softcap * tanh(logits / softcap)`` (Gemma 2), a row's label ``y``, the
weights of classes ``w``, or 1, and ``lse = log(sum(exp(l)))``, the loss of a row is the sum of

    ``(1 - label_smoothing) * w[y] * (lse - l[y])``,
    ``label_smoothing / cols * sum(w * (lse - l))`` and
    ``z_loss * w[y] * lse ** 2``

in float32 (float64 for float64): torch's ``cross_entropy``, and the z loss of PaLM (Chowdhery et al.
2022, arXiv:2204.02311) and ST-MoE, which counts by the label's weight as the rest does.

With ``dlogits`` the gradient of ``sum(dloss * loss)`` is written in the same pass, over ``logits``
itself where that is given: training needs no second matrix of logits, as in Liger-Kernel.

Args:
    logits: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides, from torch, JAX,
        CuPy or NumPy.
    labels: the column of each row: of the shape of ``logits`` less the last axis, int32 or int64,
        with any strides.
    weight: a weight of each class, ``(cols,)`` of any floating dtype. None: all are 1.
    ignore_index: the label of rows that do not count.
    label_smoothing: from 0 to 1: how much of the label all columns share.
    z_loss: the weight of the square of ``lse``; finite, not negative.
    softcap: what logits are held to, on both sides; above 0, None or infinity for no cap.
    reduction: ``"none"``: a loss for each row; ``"sum"``: their sum; ``"mean"``: that divided by the
        sum of ``w[y]`` over rows that count, NaN where there are none. Summed in one order, so that
        every run gives the same bits.
    validate: look at labels (CPU arrays only) and raise ValueError where one is neither ignored nor
        a column.
    out: where the loss goes: of the shape of ``labels``, or ``()`` with a reduction, float32
        (float64 for float64). Not for JAX arrays.
    row_losses: with a reduction, where the losses of rows go: of the shape of ``labels`` and the
        dtype of ``out``. None: a new array, which is not returned. With ``out`` and ``row_losses`` a
        reduction allocates nothing. Not for JAX arrays.
    return_lse: also return what :func:`cross_entropy_backward` takes: ``lse`` in two parts, of the
        shape of ``labels`` and a last axis of 2: the largest ``l``, and the logarithm of the sum
        relative to it. ``lse`` is their sum.
    return_z_loss: also return that part of the loss, reduced as the loss is.
    return_predictions: also return the column of each row's largest logit, the first one of several,
        NaN counting as the largest: of the shape and dtype of ``labels``, -1 in rows that do not
        count.
    dlogits: where the gradient goes: of the shape, dtype, framework and device of ``logits``. It may
        be ``logits`` itself (in place), but may not overlap it in part. None: there is none. Not for
        JAX arrays, where ``jax.grad`` works.
    dloss: the gradient of the loss: a number, or an array of the shape and dtype of ``out``. None: 1.
        With ``dlogits`` alone.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``out``, or a new array of the framework and device of ``logits``; a tuple of it and ``lse``, the
    z loss and the predictions, in this order, where these are wanted.

    A row whose label is ``ignore_index`` is not read: its loss, ``lse`` and gradient are 0. Neither
    is one whose label is no column: there they are NaN, and so is any sum or mean; with a mean, all
    gradients are. A row's bits depend on its values, label, width and dtype alone.

Raises:
    ValueError: a shape, option, device or overlap that is not as above; with ``validate`` a label.
    TypeError: an array of another framework or dtype, or an option of another type.
    RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
        ``row_losses``, ``return_lse``, ``dlogits`` or ``stream`` is given, with which none can be.
        Without them the call is that of :func:`membound.torch.cross_entropy`, which records it.
    CudaError: CUDA reports an error.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> logits = np.log(np.array([[1.0, 1.0, 2.0], [1.0, 3.0, 4.0]]))
    >>> labels = np.array([2, -100])
    >>> mb.cross_entropy(logits, labels).round(4)
    array([0.6931, 0.    ])
    >>> loss = mb.cross_entropy(logits, labels, reduction="mean", dlogits=logits)
    >>> loss.round(4)
    np.float64(0.6931)
    >>> logits.round(2)
    array([[ 0.25,  0.25, -0.5 ],
           [ 0.  ,  0.  ,  0.  ]])
)";

CrossEntropyArguments arguments_of(PyObject* const* values) {
  return {values[kIgnoreIndex], values[kLabelSmoothing], values[kZLoss],
          values[kSoftcap],     values[kReduction],      values[kValidate]};
}

nb::object call_jax(const ArrayCall& call, PyObject* const* values) {
  call.check_jax_absent(values[kOut], "out", "which cannot be written");
  call.check_jax_absent(values[kDlogits], "dlogits", "which cannot be written: jax.grad works");
  call.check_jax_absent(values[kDloss], "dloss", "whose gradients jax.grad takes");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  call.check_jax_absent(values[kRowLosses], "row_losses", "which cannot be written");
  nb::dict keywords = cross_entropy_keywords(arguments_of(values));
  for (const auto& [at, name] : {std::pair{kReturnLse, "return_lse"},
                                 {kReturnZLoss, "return_z_loss"},
                                 {kReturnPredictions, "return_predictions"}}) {
    if (values[at] != nullptr) keywords[name] = nb::handle(values[at]);
  }
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(values[kLogits]), call.check_jax_input(values[kLabels], "labels"),
                   call.check_jax_input(values[kWeight], "weight"), **keywords);
}

// The further results: the caller's arrays, or new ones.
class Results {
 public:
  Results(const ArrayCall& call, PyObject* const* values, const TensorView& logits,
          const TensorView& labels, Reduction reduction)
      : call_(call), values_(values) {
    const TensorView loss = like_loss(logits, reduction);
    const TensorView rows = like_loss(logits, Reduction::kNone);
    const bool reduces = reduction != Reduction::kNone;
    MEMBOUND_CHECK(reduces || !given(values[kRowLosses]), InvalidArgument, kName,
                   "argument 'row_losses' must be None without a reduction");
    if (reduces || given(values[kOut])) {
      returned_.append(made(given_or_null(kOut), loss, "out", loss_));
    } else {
      returned_.append(call.new_rows(values[kLogits], logits, "out", loss_));
    }
    if (flag(kReturnLse, "return_lse")) {
      returned_.append(made(nullptr, like_lse(logits), "lse", lse_));
      also_.lse = &lse_.view;
    }
    if (flag(kReturnZLoss, "return_z_loss")) {
      returned_.append(made(nullptr, loss, "z_loss", z_loss_));
      also_.z_loss = &z_loss_.view;
    }
    if (flag(kReturnPredictions, "return_predictions")) {
      TensorView wanted = rows;
      wanted.dtype = labels.dtype;
      returned_.append(made(nullptr, wanted, "predictions", predictions_));
      also_.predictions = &predictions_.view;
    }
    if (given(values[kDlogits])) {
      call.read_output(values[kDlogits], "dlogits", dlogits_);
      also_.dlogits = &dlogits_.view;
    }
    if (!reduces) return;
    held_[0] = made(given_or_null(kRowLosses), rows, "row_losses", row_losses_);
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
  PyObject* given_or_null(Parameter at) const { return given(values_[at]) ? values_[at] : nullptr; }
  bool flag(Parameter at, const char* name) const {
    return flag_or(values_[at], false, {kName, name});
  }
  nb::object made(PyObject* array, const TensorView& wanted, const char* argument,
                  LoadedArray& loaded) const {
    if (array == nullptr) return call_.new_as(values_[kLogits], wanted, argument, loaded);
    call_.read_output(array, argument, loaded);
    return nb::borrow(array);
  }

  const ArrayCall& call_;
  PyObject* const* values_;
  LoadedArray loss_, lse_, z_loss_, predictions_, dlogits_, row_losses_, row_z_losses_;
  CrossEntropyResults also_;
  nb::list returned_;
  nb::object held_[2];
};

nb::object call(PyObject* const* values) {
  const ArrayCall call(kName, values[kLogits], "logits", values[kStream]);
  if (call.is_jax()) return call_jax(call, values);
  CrossEntropyOptions options = cross_entropy_options(arguments_of(values), kName);
  MEMBOUND_CHECK(given(values[kDlogits]) || !given(values[kDloss]), InvalidArgument, kName,
                 "argument 'dloss' must be None without 'dlogits'");
  LoadedArray logits, labels;
  call.read_input(values[kLogits], "logits", logits);
  call.read_input(values[kLabels], "labels", labels);
  const MaybeInput weight(call, values[kWeight], "weight");
  const MaybeInput dloss = loss_gradient(call, values[kDloss], options, kName);
  MEMBOUND_CHECK(logits.view.rank >= 1, InvalidArgument, kName,
                 "argument 'logits' must have 1 to 64 axes, got 0");
  const Results results(call, values, logits.view, labels.view, options.reduction);
  {
    const StreamView stream = call.stream(logits.view.device);
    const GilRelease released(is_long_on_cpu(logits.view));
    cross_entropy(logits.view, labels.view, weight, dloss, options, results.loss(), results.also(),
                  stream);
  }
  call.mark_written({values[kOut], values[kRowLosses], values[kDlogits]});
  return results.returned();
}

}  // namespace

const Op kCrossEntropy{kName,
                       kText,
                       {"logits", "labels", "weight", "ignore_index", "label_smoothing", "z_loss",
                        "softcap", "reduction", "validate", "out", "row_losses", "return_lse",
                        "return_z_loss", "return_predictions", "dlogits", "dloss", "stream"},
                       2,
                       3,
                       call};

}  // namespace membound::python
