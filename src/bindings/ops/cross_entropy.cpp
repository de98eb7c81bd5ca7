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
  kIgnoreIndex,
  kLabelSmoothing,
  kZLoss,
  kSoftcap,
  kValidate,
  kOut,
  kReturnLse,
  kDlogits,
  kDloss,
  kStream,
};

constexpr const char* kText =
    R"(cross_entropy($module, logits, labels, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=None, validate=False, out=None, return_lse=False, dlogits=None, dloss=None, stream=None)
--

The cross entropy of each row of logits and its label; its gradient in the same pass if wanted.

With ``l = logits``, or ``softcap * tanh(logits / softcap)`` (Gemma 2), and a row's label ``y``,
``lse = log(sum(exp(l)))`` and

    ``loss = (1 - label_smoothing) * (lse - l[y]) + label_smoothing * (lse - mean(l)) + z_loss * lse ** 2``

in float32 (float64 for float64): torch's ``cross_entropy`` with ``reduction="none"``, and the z loss
of PaLM (Chowdhery et al. 2022, arXiv:2204.02311) and ST-MoE.

With ``dlogits`` the gradient of ``sum(dloss * loss)`` is written in the same pass, over ``logits``
itself where that is given: training needs no second matrix of logits, as in Liger-Kernel. For the
mean over ``n`` labels that count, ``dloss=1 / n``.

Args:
    logits: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides, from torch, JAX,
        CuPy or NumPy.
    labels: the column of each row: of the shape of ``logits`` less the last axis, int32 or int64,
        with any strides.
    ignore_index: the label of rows that do not count.
    label_smoothing: from 0 to 1: how much of the label all columns share.
    z_loss: the weight of the square of ``lse``; finite, not negative.
    softcap: what logits are held to, on both sides; above 0, None for no cap. Beyond float32, but
        for float64, there is none.
    validate: look at labels (CPU arrays only) and raise ValueError where one is neither ignored nor
        a column.
    out: where the loss goes: of the shape of ``labels``, float32 (float64 for float64). It may
        overlap nothing else. Not for JAX arrays.
    return_lse: also return ``lse``, which :func:`cross_entropy_backward` takes.
    dlogits: where the gradient goes: of the shape, dtype, framework and device of ``logits``. It may
        be ``logits`` itself (in place), but may not overlap it in part. None: there is none. Not for
        JAX arrays, where ``jax.grad`` works.
    dloss: what the gradient of each row is multiplied by: a number, or an array of the shape and
        dtype of ``out``. None: 1. With ``dlogits`` alone.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``out``, or a new array of the shape of ``labels`` and the framework and device of ``logits``;
    with ``return_lse`` a tuple of it and ``lse``.

    A row whose label is ``ignore_index``, or no column, is not read: its loss, ``lse`` and gradient
    are 0. A row's bits depend on its values, label, width and dtype alone.

Raises:
    ValueError: a shape, option, device or overlap that is not as above; with ``validate`` a label.
    TypeError: an array of another framework or dtype, or an option of another type.
    RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
        ``return_lse``, ``dlogits`` or ``stream`` is given, with which none can be. Without them
        the call is that of :func:`membound.torch.cross_entropy`, which records it.
    CudaError: CUDA reports an error.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> logits = np.log(np.array([[1.0, 1.0, 2.0], [1.0, 3.0, 4.0]]))
    >>> labels = np.array([2, -100])
    >>> mb.cross_entropy(logits, labels).round(4)
    array([0.6931, 0.    ])
    >>> loss = mb.cross_entropy(logits, labels, dlogits=logits, dloss=1.0)
    >>> logits.round(2)
    array([[ 0.25,  0.25, -0.5 ],
           [ 0.  ,  0.  ,  0.  ]])
)";

CrossEntropyArguments arguments_of(PyObject* const* values) {
  return {values[kIgnoreIndex], values[kLabelSmoothing], values[kZLoss], values[kSoftcap],
          values[kValidate]};
}

nb::object call_jax(const ArrayCall& call, PyObject* const* values) {
  call.check_jax_absent(values[kOut], "out", "which cannot be written");
  call.check_jax_absent(values[kDlogits], "dlogits", "which cannot be written: jax.grad works");
  call.check_jax_absent(values[kDloss], "dloss", "whose gradients jax.grad takes");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  nb::dict keywords = cross_entropy_keywords(arguments_of(values));
  if (values[kReturnLse] != nullptr) keywords["return_lse"] = nb::handle(values[kReturnLse]);
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(values[kLogits]), call.check_jax_input(values[kLabels], "labels"),
                   **keywords);
}

nb::object call(PyObject* const* values) {
  const ArrayCall call(kName, values[kLogits], "logits", values[kStream]);
  if (call.is_jax()) return call_jax(call, values);
  CrossEntropyOptions options = cross_entropy_options(arguments_of(values), kName);
  const bool wants_lse = flag_or(values[kReturnLse], false, {kName, "return_lse"});
  const bool wants_gradient = given(values[kDlogits]);
  MEMBOUND_CHECK(wants_gradient || !given(values[kDloss]), InvalidArgument, kName,
                 "argument 'dloss' must be None without 'dlogits'");
  LoadedArray logits, labels, loss, lse, dlogits;
  call.read_input(values[kLogits], "logits", logits);
  call.read_input(values[kLabels], "labels", labels);
  const LossGradient dloss(call, values[kDloss], options, kName);
  if (wants_gradient) call.read_output(values[kDlogits], "dlogits", dlogits);
  MEMBOUND_CHECK(logits.view.rank >= 1, InvalidArgument, kName,
                 "argument 'logits' must have 1 to 64 axes, got 0");
  nb::object result, also;
  if (given(values[kOut])) {
    call.read_output(values[kOut], "out", loss);
    result = nb::borrow(values[kOut]);
  } else {
    result = call.new_rows(values[kLogits], logits.view, "out", loss);
  }
  if (wants_lse) also = call.new_rows(values[kLogits], logits.view, "lse", lse);
  {
    const StreamView stream = call.stream(logits.view.device);
    const GilRelease released(is_long_on_cpu(logits.view));
    cross_entropy(logits.view, labels.view, dloss, options, loss.view,
                  wants_lse ? &lse.view : nullptr, wants_gradient ? &dlogits.view : nullptr,
                  stream);
  }
  call.mark_written({values[kOut], values[kDlogits]});
  return wants_lse ? nb::object(nb::make_tuple(result, also)) : result;
}

}  // namespace

const Op kCrossEntropy{kName,
                       kText,
                       {"logits", "labels", "ignore_index", "label_smoothing", "z_loss", "softcap",
                        "validate", "out", "return_lse", "dlogits", "dloss", "stream"},
                       2,
                       2,
                       call};

}  // namespace membound::python
