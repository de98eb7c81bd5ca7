// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/cross_entropy_backward.hpp"

#include "cross_entropy.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "cross_entropy_backward";

enum Parameter {
  kDloss,
  kLogits,
  kLabels,
  kLse,
  kWeight,
  kIgnoreIndex,
  kLabelSmoothing,
  kZLoss,
  kSoftcap,
  kReduction,
  kValidate,
  kDlogits,
  kStream,
};

constexpr const char* kText =
    R"(cross_entropy_backward($module, dloss, logits, labels, lse, weight=None, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=None, reduction='none', validate=False, dlogits=None, stream=None)
--

The gradient of :func:`cross_entropy`, from what it read and its ``lse``.

With ``l``, ``y`` and ``w`` as there, in float32 (float64 for float64) with one rounding at the end,
``dl`` is ``dloss`` times

    ``exp(l - lse) * ((1 - label_smoothing) * w[y] + label_smoothing / cols * sum(w) + 2 * z_loss * w[y] * lse)``
    less ``label_smoothing / cols * w``, less ``(1 - label_smoothing) * w[y]`` in column ``y``

and ``dlogits = dl``, with a soft cap ``dl * (1 - (l / softcap) ** 2)``: the bits that
:func:`cross_entropy` itself writes with ``dlogits``.

Args:
    dloss: the gradient of the loss: a number, or an array of its shape (that of ``labels``, or
        ``()`` with a reduction) in float32 (float64 for float64), with any strides.
    logits: what the forward read, with any strides.
    labels: what it read.
    lse: what it returned with ``return_lse=True``, in two parts. Or of the shape of ``labels``, in
        one number, as other libraries keep it; that costs the gradient digits where logits are
        large: of logits near 1e4 it is off by 1e-3.
    weight: what the forward read.
    ignore_index: as for the forward, and so the next five.
    label_smoothing: from 0 to 1.
    z_loss: finite, not negative.
    softcap: above 0, None for no cap.
    reduction: ``"none"``, ``"sum"`` or ``"mean"``.
    validate: look at labels (CPU arrays only) and raise ValueError where one is wrong.
    dlogits: where to write: of the shape, dtype, framework and device of ``logits``. It may be
        ``logits`` itself (in place), but may not overlap it in part, nor anything else. Not for JAX
        arrays.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``dlogits``, or a new C-contiguous array of the framework, shape, dtype and device of ``logits``.
    Rows whose label is ``ignore_index`` are 0; rows whose label is no column are NaN, and with a
    mean all rows then are.

Raises:
    ValueError: a shape, option, device or overlap that is not as above; with ``validate`` a label.
    TypeError: an array of another framework or dtype, or an option of another type.
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        never can.
    CudaError: CUDA reports an error.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> logits, labels = np.log(np.array([[1.0, 1.0, 2.0]])), np.array([2])
    >>> loss, lse = mb.cross_entropy(logits, labels, return_lse=True)
    >>> mb.cross_entropy_backward(1.0, logits, labels, lse).round(3)
    array([[ 0.25,  0.25, -0.5 ]])
)";

CrossEntropyArguments arguments_of(PyObject* const* values) {
  return {values[kIgnoreIndex], values[kLabelSmoothing], values[kZLoss],
          values[kSoftcap],     values[kReduction],      values[kValidate]};
}

nb::object call_jax(const ArrayCall& call, PyObject* const* values) {
  call.check_jax_absent(values[kDlogits], "dlogits", "which cannot be written");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(values[kDloss]), nb::handle(values[kLogits]),
                   call.check_jax_input(values[kLabels], "labels"),
                   call.check_jax_input(values[kLse], "lse"),
                   call.check_jax_input(values[kWeight], "weight"),
                   **cross_entropy_keywords(arguments_of(values)));
}

nb::object call(PyObject* const* values) {
  MEMBOUND_CHECK(values[kDloss] != Py_None, TypeMismatch, kName,
                 "argument 'dloss' must be a number or an array, got None");
  const ArrayCall call(kName, values[kLogits], "logits", values[kStream]);
  if (call.is_jax()) return call_jax(call, values);
  CrossEntropyOptions options = cross_entropy_options(arguments_of(values), kName);
  LoadedArray logits, labels, lse, dlogits, scale;
  call.read_input(values[kLogits], "logits", logits);
  call.read_input(values[kLabels], "labels", labels);
  call.read_input(values[kLse], "lse", lse);
  const MaybeInput weight(call, values[kWeight], "weight");
  const MaybeInput dloss = loss_gradient(call, values[kDloss], options, kName);
  const nb::object result =
      call.output(values[kDlogits], values[kLogits], logits.view, "dlogits", dlogits);
  nb::object held;
  const bool wants_scale = options.reduction == Reduction::kMean && logits.view.device.is_cuda();
  if (wants_scale) {
    held = call.new_as(values[kLogits], like_loss(logits.view, Reduction::kMean), "scale", scale);
  }
  {
    const StreamView stream = call.stream(logits.view.device);
    const GilRelease released(is_long_on_cpu(logits.view));
    cross_entropy_backward(dloss, logits.view, labels.view, lse.view, weight, options, dlogits.view,
                           wants_scale ? &scale.view : nullptr, stream);
  }
  call.mark_written({values[kDlogits]});
  return result;
}

}  // namespace

const Op kCrossEntropyBackward{
    kName,
    kText,
    {"dloss", "logits", "labels", "lse", "weight", "ignore_index", "label_smoothing", "z_loss",
     "softcap", "reduction", "validate", "dlogits", "stream"},
    4,
    5,
    call};

}  // namespace membound::python
