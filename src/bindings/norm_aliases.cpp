// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Norms with the names and arguments of other libraries.
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr double kGemmaOffset = 1.0;

enum Parameter { kX, kWeight, kEps, kNormalizedShape, kOut, kReturnRstd, kStream, kDevice };

constexpr const char* kGemmaText =
    R"(gemma_rms_norm($module, x, weight, *, eps=1e-06, normalized_shape=None, out=None, return_rstd=False, stream=None, device=None)
--

:func:`rms_norm` with ``weight_offset=1``, as in Gemma: its weights are stored less one.

``out = x * rstd * (weight + 1)``, all in float32 with one rounding at the end.

Args:
    x: ``(..., cols)``, as in :func:`rms_norm`.
    weight: ``(cols,)`` or ``(heads, cols)``, as in :func:`rms_norm`, but not None.
    eps: added to the mean of squares; finite and not negative.
    normalized_shape: as in :func:`rms_norm`.
    out: where to write; it may be ``x`` itself.
    return_rstd: return ``rstd`` too, for ``rms_norm_backward(..., weight_offset=1)``.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.
    device: as in :func:`rms_norm`.

Returns:
    What :func:`rms_norm` returns.

Raises:
    What :func:`rms_norm` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, weight = np.array([[3.0, 4.0]]), np.array([0.0, 1.0])
    >>> mb.gemma_rms_norm(x, weight, eps=12.5)
    array([[0.6, 1.6]])
    >>> mb.rms_norm(x, weight, eps=12.5, weight_offset=1.0)
    array([[0.6, 1.6]])
)";

nb::object call_gemma_rms_norm(PyObject* const* values) {
  return call_norm({.op = "gemma_rms_norm",
                    .x = values[kX],
                    .weight = values[kWeight],
                    .eps = values[kEps],
                    .normalized_shape = values[kNormalizedShape],
                    .out = values[kOut],
                    .return_statistics = values[kReturnRstd],
                    .stream = values[kStream],
                    .device = values[kDevice],
                    .default_weight_offset = kGemmaOffset});
}

constexpr const char* kFusedText =
    R"(fused_add_rms_norm($module, input, residual, weight, epsilon=1e-06)
--

:func:`add_rms_norm` in place, by the name and with the arguments that vLLM and flashinfer use.

``residual`` becomes ``input + residual`` and ``input`` the norm of that sum. The sum is normalised
before it is rounded, as in flashinfer.

Args:
    input: ``(..., cols)``, float16, bfloat16, float32 or float64; written. Not a JAX array.
    residual: the shape, dtype, framework and device of ``input``; written.
    weight: ``(cols,)`` or ``(heads, cols)`` of any of those dtypes, or None.
    epsilon: added to the mean of squares; finite and not negative.

Raises:
    What :func:`add_rms_norm` raises for ``x = input`` and ``eps = epsilon``.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, residual = np.array([[1.0, 2.0]]), np.array([[2.0, 2.0]])
    >>> mb.fused_add_rms_norm(x, residual, np.array([1.0, 0.5]), 12.5)
    >>> x, residual
    (array([[0.6, 0.4]]), array([[3., 4.]]))
)";

nb::object call_fused_add_rms_norm(PyObject* const* values) {
  return call_fused_add_norm("fused_add_rms_norm", values, 0.0);
}

constexpr const char* kGemmaFusedText =
    R"(gemma_fused_add_rms_norm($module, input, residual, weight, epsilon=1e-06)
--

:func:`fused_add_rms_norm` with one added to each weight, as flashinfer's gemma_fused_add_rmsnorm.

Args:
    input: ``(..., cols)``, float16, bfloat16, float32 or float64; written. Not a JAX array.
    residual: the shape, dtype, framework and device of ``input``; written.
    weight: ``(cols,)`` or ``(heads, cols)`` of any of those dtypes.
    epsilon: added to the mean of squares; finite and not negative.

Raises:
    What :func:`add_rms_norm` raises for ``x = input`` and ``eps = epsilon``.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, residual = np.array([[1.0, 2.0]]), np.array([[2.0, 2.0]])
    >>> mb.gemma_fused_add_rms_norm(x, residual, np.array([0.0, -0.5]), 12.5)
    >>> x, residual
    (array([[0.6, 0.4]]), array([[3., 4.]]))
)";

nb::object call_gemma_fused_add_rms_norm(PyObject* const* values) {
  return call_fused_add_norm("gemma_fused_add_rms_norm", values, kGemmaOffset);
}

}  // namespace

const Op kGemmaRmsNorm{
    "gemma_rms_norm",
    kGemmaText,
    {"x", "weight", "eps", "normalized_shape", "out", "return_rstd", "stream", "device"},
    2,
    2,
    call_gemma_rms_norm};

const Op kFusedAddRmsNorm{
    "fused_add_rms_norm",   kFusedText, {"input", "residual", "weight", "epsilon"}, 3, 4,
    call_fused_add_rms_norm};

const Op kGemmaFusedAddRmsNorm{
    "gemma_fused_add_rms_norm",   kGemmaFusedText, {"input", "residual", "weight", "epsilon"}, 3, 4,
    call_gemma_fused_add_rms_norm};

}  // namespace membound::python
