// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "layer_norm";

enum Parameter {
  kX,
  kWeight,
  kBias,
  kEps,
  kWeightOffset,
  kDtype,
  kNormalizedShape,
  kOut,
  kReturnStats,
  kStream,
  kDevice
};

constexpr const char* kText =
    R"(layer_norm($module, x, weight=None, bias=None, *, eps=1e-06, weight_offset=0.0, dtype=None, normalized_shape=None, out=None, return_stats=False, stream=None, device=None)
--

Layer normalisation over the last axis.

``rstd = 1 / sqrt(mean((x - mean(x)) ** 2) + eps)``,
``out = (x - mean(x)) * rstd * (weight + weight_offset) + bias``
(Ba, Kiros and Hinton 2016, arXiv:1607.06450).

Args:
    x: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides: a torch, JAX, CuPy
        or NumPy array (bfloat16 through ml_dtypes), a memoryview, or anything with ``__dlpack__``.
        It is never converted nor copied.
    weight: ``(cols,)`` of any of those dtypes, of the same framework and on the same device as
        ``x``; or ``(heads, cols)``, one for each head, for ``x`` of ``(..., heads, cols)`` with
        three axes or more; None for no weight.
    bias: likewise, with a weight, whose shape it then has, or without; None for no bias.
    eps: added to the variance; finite and not negative. torch's F.layer_norm has 1e-5 by default.
    weight_offset: added to each weight; 1.0 where weights are stored less one. Must be 0 without a
        weight.
    dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
    normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
        axes of ``x``, over all of which the norm is then, with a weight of that shape; their
        strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
    out: where to write: the shape, dtype, framework and device of ``x``. It may be ``x`` itself
        (in place), but may not overlap an input in part. Not for JAX arrays.
    return_stats: return ``mean`` and ``rstd`` too, each of shape ``x.shape[:-1]`` in float32
        (float64 for float64).
    stream: the CUDA stream to run on, as in :func:`rms_norm`.
    device: ``"cuda"`` or ``"cuda:1"`` carries NumPy arrays through that GPU and back, as in
        :func:`rms_norm`.

The variance is the mean of squared deviations from the row's own mean, kept to twice the precision
of float32 (float64 for float64): a mean far above the spread costs no digits. Everything is
float32, with one rounding at the end.

Returns:
    ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``x`` (a NumPy
    array for CPU arrays of an unknown framework); with ``return_stats=True`` the tuple
    ``(out, mean, rstd)``.

Raises:
    TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
    ValueError: a shape, stride, device, overlap or number does not fit.
    RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
        ``return_stats`` or ``stream`` is given, with which none can be. Without them the call
        is that of :func:`membound.torch.layer_norm`, which records it.
    membound.CudaError: CUDA is not there, or a launch failed.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x = np.array([[1.0, 5.0], [7.0, 7.0]], np.float32)
    >>> mb.layer_norm(x, np.array([1.0, 2.0], np.float32), np.array([0.5, 0.5], np.float32), eps=0.5)
    array([[-0.4428091,  2.3856182],
           [ 0.5      ,  0.5      ]], dtype=float32)
    >>> y, mean, rstd = mb.layer_norm(x, out=x, eps=12.0, return_stats=True)
    >>> y is x, mean, rstd
    (True, array([3., 7.], dtype=float32), array([0.25      , 0.28867513], dtype=float32))
)";

nb::object call_layer_norm(PyObject* const* values) {
  return call_norm({.op = kName,
                    .centred = true,
                    .x = values[kX],
                    .weight = values[kWeight],
                    .bias = values[kBias],
                    .eps = values[kEps],
                    .weight_offset = values[kWeightOffset],
                    .dtype = values[kDtype],
                    .normalized_shape = values[kNormalizedShape],
                    .out = values[kOut],
                    .return_statistics = values[kReturnStats],
                    .stream = values[kStream],
                    .device = values[kDevice]});
}

}  // namespace

const Op kLayerNorm{kName,
                    kText,
                    {"x", "weight", "bias", "eps", "weight_offset", "dtype", "normalized_shape",
                     "out", "return_stats", "stream", "device"},
                    1,
                    3,
                    call_layer_norm};

}  // namespace membound::python
