// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "add_layer_norm";

enum Parameter {
  kX,
  kResidual,
  kWeight,
  kBias,
  kEps,
  kWeightOffset,
  kDtype,
  kNormalizedShape,
  kOut,
  kResidualOut,
  kReturnStats,
  kStream,
  kDevice,
};

constexpr const char* kText =
    R"(add_layer_norm($module, x, residual, weight=None, bias=None, *, eps=1e-06, weight_offset=0.0, dtype=None, normalized_shape=None, out=None, residual_out=None, return_stats=False, stream=None, device=None)
--

Residual addition and layer normalisation of the sum, in one pass.

``sum = x + residual``, ``rstd = 1 / sqrt(mean((sum - mean(sum)) ** 2) + eps)``,
``out = (sum - mean(sum)) * rstd * (weight + weight_offset) + bias`` (Ba, Kiros and Hinton 2016,
arXiv:1607.06450). The sum is float32 (float64 for float64): ``mean``, ``rstd`` and ``out`` come
from it before it is rounded for ``residual_out``.

Args:
    x: ``(..., cols)``, as in :func:`layer_norm`.
    residual: the shape, dtype, framework and device of ``x``, with any strides.
    weight: as in :func:`layer_norm`.
    bias: as in :func:`layer_norm`.
    eps: added to the variance; finite and not negative. torch's F.layer_norm has 1e-5 by default.
    weight_offset: as in :func:`layer_norm`.
    dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
    normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
        axes of ``x``, over all of which the norm is then, with a weight of that shape; their
        strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
    out: where to write the norm: the shape, dtype, framework and device of ``x``. It may be ``x``
        or ``residual`` itself, but may not overlap an input in part. Not for JAX arrays.
    residual_out: where to write the sum; as ``out``, but it may not overlap ``out``.
    return_stats: return ``mean`` and ``rstd`` too, each of shape ``x.shape[:-1]`` in float32
        (float64 for float64).
    stream: the CUDA stream to run on, as in :func:`rms_norm`.
    device: ``"cuda"`` or ``"cuda:1"`` carries NumPy arrays through that GPU and back, as in
        :func:`rms_norm`.

Returns:
    ``(out, residual_out)``, or with ``return_stats=True`` ``(out, residual_out, mean, rstd)``; new
    C-contiguous arrays of the framework and device of ``x`` for those that were not given.

Raises:
    What :func:`layer_norm` raises. A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x = np.array([[1.0, 2.0], [0.5, 0.0]], np.float32)
    >>> residual = np.array([[0.0, 3.0], [-0.5, 0.0]], np.float32)
    >>> mb.add_layer_norm(x, residual, eps=12.0)
    (array([[-0.5,  0.5],
           [ 0. ,  0. ]], dtype=float32), array([[1., 5.],
           [0., 0.]], dtype=float32))
    >>> y, total = mb.add_layer_norm(x, residual, out=x, residual_out=residual)
    >>> y is x, total is residual
    (True, True)
)";

nb::object call_add_layer_norm(PyObject* const* values) {
  return call_norm({.op = kName,
                    .centred = true,
                    .x = values[kX],
                    .residual = values[kResidual],
                    .weight = values[kWeight],
                    .bias = values[kBias],
                    .eps = values[kEps],
                    .weight_offset = values[kWeightOffset],
                    .dtype = values[kDtype],
                    .normalized_shape = values[kNormalizedShape],
                    .out = values[kOut],
                    .residual_out = values[kResidualOut],
                    .return_statistics = values[kReturnStats],
                    .stream = values[kStream],
                    .device = values[kDevice]});
}

}  // namespace

const Op kAddLayerNorm{
    kName,
    kText,
    {"x", "residual", "weight", "bias", "eps", "weight_offset", "dtype", "normalized_shape", "out",
     "residual_out", "return_stats", "stream", "device"},
    2,
    4,
    call_add_layer_norm};

}  // namespace membound::python
