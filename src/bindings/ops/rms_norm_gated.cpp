// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "rms_norm_gated";

enum Parameter {
  kX,
  kZ,
  kWeight,
  kNormBeforeGate,
  kEps,
  kWeightOffset,
  kRounding,
  kDtype,
  kNormalizedShape,
  kOut,
  kReturnRstd,
  kStream,
  kDevice,
};

constexpr const char* kText =
    R"(rms_norm_gated($module, x, z, weight=None, *, norm_before_gate=True, eps=1e-06, weight_offset=0.0, rounding='once', dtype=None, normalized_shape=None, out=None, return_rstd=False, stream=None, device=None)
--

Root mean square normalisation with a gate, in one pass.

With ``silu(z) = z / (1 + exp(-z))``: ``out = rms_norm(x) * silu(z)``, or with
``norm_before_gate=False`` ``out = rms_norm(x * silu(z))``. It ends a block of Mamba-2 (Dao and Gu
2024, arXiv:2405.21060) and of gated attention.

Args:
    x: ``(..., cols)``, as in :func:`rms_norm`. For a norm over groups of columns pass
        ``(..., groups, cols)``.
    z: the gate: the shape, dtype, framework and device of ``x``, with any strides.
    weight: ``(cols,)`` or ``(heads, cols)``, as in :func:`rms_norm`; None for no weight.
    norm_before_gate: True: the norm is of ``x``, and the gate multiplies the result, as in
        Qwen3-Next. False: the norm is of ``x * silu(z)``, as in Hugging Face's Mamba-2.
    eps: added to the mean of squares; finite and not negative.
    weight_offset: added to each weight. Without a weight ``x`` is
        multiplied by it alone.
    rounding: where a 16-bit result is rounded. ``"once"``: everything in float32, one rounding at
        the end. ``"before_weight"``: the normalised row is rounded before the weight comes in, and
        its product with the weight before the gate does, as in Hugging Face's modules of both
        orders.
    dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
    normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
        axes of ``x``, over all of which the norm is then, with a weight of that shape; their
        strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
    out: where to write: the shape, dtype, framework and device of ``x``. It may be ``x`` or ``z``
        itself (in place), but may not overlap an input in part. Not for JAX arrays.
    return_rstd: return ``rstd`` too, of the row that is normalised: ``x`` or ``x * silu(z)``. Its
        shape is ``x.shape[:-1]``, in float32 (float64 for float64).
    stream: the CUDA stream to run on, as in :func:`rms_norm`.
    device: as in :func:`rms_norm`.

Returns:
    ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``x``; with
    ``return_rstd=True`` the pair ``(out, rstd)``.

Raises:
    What :func:`rms_norm` raises; gradients come from :func:`rms_norm_gated_backward`.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, z = np.array([[3.0, 4.0]]), np.array([[1.0, 2.0]])
    >>> mb.rms_norm_gated(x, z, np.array([1.0, 2.0]), eps=12.5).round(3)
    array([[0.439, 2.819]])
    >>> mb.rms_norm_gated(x, z, norm_before_gate=False, eps=0.0).round(3)
    array([[0.42, 1.35]])
)";

nb::object call_rms_norm_gated(PyObject* const* values) {
  return call_norm({.op = kName,
                    .x = values[kX],
                    .z = values[kZ],
                    .weight = values[kWeight],
                    .norm_before_gate = values[kNormBeforeGate],
                    .eps = values[kEps],
                    .weight_offset = values[kWeightOffset],
                    .rounding = values[kRounding],
                    .dtype = values[kDtype],
                    .normalized_shape = values[kNormalizedShape],
                    .out = values[kOut],
                    .return_statistics = values[kReturnRstd],
                    .stream = values[kStream],
                    .device = values[kDevice]});
}

}  // namespace

const Op kRmsNormGated{kName,
                       kText,
                       {"x", "z", "weight", "norm_before_gate", "eps", "weight_offset", "rounding",
                        "dtype", "normalized_shape", "out", "return_rstd", "stream", "device"},
                       2,
                       3,
                       call_rms_norm_gated};

}  // namespace membound::python
