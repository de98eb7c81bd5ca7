// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "rms_norm";

enum Parameter {
  kX,
  kWeight,
  kEps,
  kWeightOffset,
  kRounding,
  kDtype,
  kNormalizedShape,
  kOut,
  kReturnRstd,
  kStream,
  kDevice
};

constexpr const char* kText =
    R"(rms_norm($module, x, weight=None, *, eps=1e-06, weight_offset=0.0, rounding='once', dtype=None, normalized_shape=None, out=None, return_rstd=False, stream=None, device=None)
--

Root mean square normalisation over the last axis.

``rstd = 1 / sqrt(mean(x * x) + eps)``, ``out = x * rstd * (weight + weight_offset)``
(Zhang and Sennrich 2019, arXiv:1910.07467).

Args:
    x: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides: a torch, JAX, CuPy
        or NumPy array (bfloat16 through ml_dtypes), a memoryview, or anything with ``__dlpack__``.
        It is never converted nor copied.
    weight: ``(cols,)`` of any of those dtypes, of the same framework and on the same device as
        ``x``; or ``(heads, cols)``, one for each head, for ``x`` of ``(..., heads, cols)`` with
        three axes or more; None for no weight.
    eps: added to the mean of squares; finite and not negative.
    weight_offset: added to each weight; 1.0 as in Gemma. Without a weight ``x`` is
        multiplied by it alone.
    rounding: where a 16-bit result is rounded. ``"once"``: everything in float32, one rounding at
        the end, as torch's F.rms_norm. ``"before_weight"``: ``x * rstd`` is rounded to
        the dtype of ``x``, then multiplied and rounded again, as Hugging Face's Llama-family modules.
    dtype: of the result, to which it is rounded once; by default that of ``x``, or of ``out``.
    normalized_shape: the axes to normalise: an integer for the last axis, or a tuple of the last
        axes of ``x``, over all of which the norm is then, with a weight of that shape; their
        strides must join. Needed for a weight of two axes, which says ``heads`` otherwise.
    out: where to write: the shape, dtype, framework and device of ``x``. It may be ``x`` itself
        (in place), but may not overlap an input in part. Not for JAX arrays.
    return_rstd: return ``rstd`` too, of shape ``x.shape[:-1]`` in float32 (float64 for float64).
    stream: the CUDA stream to run on: a torch or CuPy stream, an object with ``__cuda_stream__``,
        or an integer handle. By default the current stream of the array's framework. Nothing waits
        for the GPU.
    device: by default where the arrays are. ``"cuda"`` or ``"cuda:1"`` carries NumPy arrays through
        that GPU and back, in chunks; the result is there on return.

Returns:
    ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``x`` (a NumPy
    array for CPU arrays of an unknown framework); with ``return_rstd=True`` the pair
    ``(out, rstd)``.

Raises:
    TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
    ValueError: a shape, stride, device, overlap or number does not fit.
    RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out``,
        ``return_rstd`` or ``stream`` is given, with which none can be. Without them the call
        is that of :func:`membound.torch.rms_norm`, which records it.
    membound.CudaError: CUDA is not there, or a launch failed.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    >>> mb.rms_norm(x, np.array([1.0, 2.0], np.float32), eps=0.5)
    array([[0.8320503, 2.2188008],
           [0.       , 0.       ]], dtype=float32)
    >>> y, rstd = mb.rms_norm(x, out=x, eps=12.5, return_rstd=True)
    >>> y is x, rstd
    (True, array([0.2       , 0.28284273], dtype=float32))
)";

nb::object call_rms_norm(PyObject* const* values) {
  return call_norm({.op = kName,
                    .x = values[kX],
                    .weight = values[kWeight],
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

const Op kRmsNorm{kName,
                  kText,
                  {"x", "weight", "eps", "weight_offset", "rounding", "dtype", "normalized_shape",
                   "out", "return_rstd", "stream", "device"},
                  1,
                  2,
                  call_rms_norm};

}  // namespace membound::python
