// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "add_rms_norm";

enum Parameter {
  kX,
  kResidual,
  kWeight,
  kEps,
  kWeightOffset,
  kRounding,
  kDtype,
  kNormalizedShape,
  kOut,
  kResidualOut,
  kReturnRstd,
  kStream,
  kDevice,
};

constexpr const char* kText =
    R"(add_rms_norm($module, x, residual, weight=None, *, eps=1e-06, weight_offset=0.0, rounding='once', dtype=None, normalized_shape=None, out=None, residual_out=None, return_rstd=False, stream=None, device=None)
--

Residual addition and root mean square normalisation of the sum, in one pass.

``sum = x + residual``, ``rstd = 1 / sqrt(mean(sum * sum) + eps)``,
``out = sum * rstd * (weight + weight_offset)`` (Zhang and Sennrich 2019, arXiv:1910.07467). The
sum is float32 (float64 for float64): ``out`` and ``rstd`` come from it before it is rounded for
``residual_out``.

Args:
    x: ``(..., cols)``, as in :func:`rms_norm`.
    residual: the shape, dtype, framework and device of ``x``, with any strides.
    weight: as in :func:`rms_norm`.
    eps: added to the mean of squares; finite and not negative.
    weight_offset: added to each weight; 1.0 as in Gemma. Without a weight ``x`` is
        multiplied by it alone.
    rounding: ``"once"`` or ``"before_weight"``, as in :func:`rms_norm`.
    dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
    normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
        axes of ``x``, over all of which the norm is then, with a weight of that shape; their
        strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
    out: where to write the norm: the shape, dtype, framework and device of ``x``. It may be ``x``
        or ``residual`` itself, but may not overlap an input in part. Not for JAX arrays.
    residual_out: where to write the sum; as ``out``, but it may not overlap ``out``.
    return_rstd: return ``rstd`` too, of shape ``x.shape[:-1]`` in float32 (float64 for float64).
    stream: the CUDA stream to run on, as in :func:`rms_norm`.
    device: ``"cuda"`` or ``"cuda:1"`` carries NumPy arrays through that GPU and back, as in
        :func:`rms_norm`.

Returns:
    ``(out, residual_out)``, or with ``return_rstd=True`` ``(out, residual_out, rstd)``; new
    C-contiguous arrays of the framework and device of ``x`` for those that were not given.

Raises:
    TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
    ValueError: a shape, stride, device, overlap or number does not fit.
    RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
        ``return_rstd`` or ``stream`` is given, with which none can be. Without them the call
        is that of :func:`membound.torch.add_rms_norm`, which records it.
    membound.CudaError: CUDA is not there, or a launch failed.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x = np.array([[1.0, 2.0], [0.5, 0.0]], np.float32)
    >>> residual = np.array([[2.0, 2.0], [-0.5, 0.0]], np.float32)
    >>> mb.add_rms_norm(x, residual, eps=12.5)
    (array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32), array([[3., 4.],
           [0., 0.]], dtype=float32))
    >>> y, total = mb.add_rms_norm(x, residual, out=x, residual_out=residual)
    >>> y is x, total is residual
    (True, True)
)";

nb::object call_add_rms_norm(PyObject* const* values) {
  return call_norm({.op = kName,
                    .x = values[kX],
                    .residual = values[kResidual],
                    .weight = values[kWeight],
                    .eps = values[kEps],
                    .weight_offset = values[kWeightOffset],
                    .rounding = values[kRounding],
                    .dtype = values[kDtype],
                    .normalized_shape = values[kNormalizedShape],
                    .out = values[kOut],
                    .residual_out = values[kResidualOut],
                    .return_statistics = values[kReturnRstd],
                    .stream = values[kStream],
                    .device = values[kDevice]});
}

}  // namespace

const Op kAddRmsNorm{kName,
                     kText,
                     {"x", "residual", "weight", "eps", "weight_offset", "rounding", "dtype",
                      "normalized_shape", "out", "residual_out", "return_rstd", "stream", "device"},
                     2,
                     3,
                     call_add_rms_norm};

}  // namespace membound::python
