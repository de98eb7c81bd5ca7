// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/rms_norm.hpp"

#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "rms_norm";

enum Parameter { kX, kWeight, kEps, kWeightOffset, kRounding, kOut, kReturnRstd, kStream, kDevice };

constexpr const char* kText =
    R"(rms_norm($module, x, weight=None, *, eps=1e-06, weight_offset=0.0, rounding='once', out=None, return_rstd=False, stream=None, device=None)
--

Root mean square normalisation over the last axis.

``rstd = 1 / sqrt(mean(x * x) + eps)``, ``out = x * rstd * (weight + weight_offset)``
(Zhang and Sennrich 2019, arXiv:1910.07467).

Args:
    x: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides: a torch, JAX, CuPy
        or NumPy array (bfloat16 through ml_dtypes), a memoryview, or anything with ``__dlpack__``.
        It is never converted nor copied.
    weight: ``(cols,)`` of any of those dtypes, of the same framework and on the same device as
        ``x``; None for no weight.
    eps: added to the mean of squares; finite and not negative.
    weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without a weight.
    rounding: where a 16-bit result is rounded. ``"once"``: everything in float32, one rounding at
        the end, as torch's F.rms_norm. ``"before_weight"``: ``x * rstd`` is rounded, then
        multiplied and rounded again, as Hugging Face's Llama-family modules.
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
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        does not do: call it under ``torch.no_grad()`` or pass ``x.detach()``, and take the
        gradients from :func:`rms_norm_backward`. ``membound.jax`` does record them.
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

nb::object call_jax(const ArrayCall& call, PyObject* const* values, const RmsNormOptions& options,
                    bool return_rstd) {
  const nb::handle weight = call.check_jax_input(values[kWeight], "weight");
  call.check_jax_absent(values[kOut], "out", "which cannot be written");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  call.check_jax_absent(values[kDevice], "device", "which stay where they are");
  const nb::object op = nb::module_::import_("membound.jax").attr(kName);
  return op(nb::handle(values[kX]), weight, nb::arg("eps") = options.eps,
            nb::arg("weight_offset") = options.weight_offset,
            nb::arg("rounding") = rounding_name(options.rounding),
            nb::arg("return_rstd") = return_rstd);
}

nb::object call_rms_norm(PyObject* const* values) {
  const ArrayCall call(kName, values[kX], "x", values[kStream]);
  const RmsNormOptions options =
      norm_options(kName, values[kEps], values[kWeightOffset], values[kRounding]);
  const bool return_rstd = flag_or(values[kReturnRstd], false, {kName, "return_rstd"});
  if (call.is_jax()) return call_jax(call, values, options, return_rstd);

  LoadedArray x, weight, out, rstd;
  call.read_input(values[kX], "x", x);
  const bool weighted = given(values[kWeight]);
  if (weighted) call.read_input(values[kWeight], "weight", weight);
  const auto staging = call.staging_device(values[kDevice], x.view.device);
  nb::object result = call.output(values[kOut], values[kX], x.view, "out", out);
  nb::object rstd_result;
  if (return_rstd) rstd_result = call.new_rows(values[kX], x.view, rstd);

  const ConstTensorView weight_view(weight.view);
  const ConstTensorView* weight_or_none = weighted ? &weight_view : nullptr;
  const TensorView* rstd_or_none = return_rstd ? &rstd.view : nullptr;
  if (staging) {
    const GilRelease released(true);
    membound::rms_norm(x.view, weight_or_none, options, out.view, rstd_or_none, *staging);
  } else {
    const StreamView stream = call.stream(x.view.device);
    const GilRelease released(is_long_on_cpu(x.view));
    membound::rms_norm(x.view, weight_or_none, options, out.view, rstd_or_none, stream);
  }
  call.mark_written(values[kOut]);
  return return_rstd ? nb::make_tuple(result, rstd_result) : result;
}

}  // namespace

const Op kRmsNorm{
    kName,
    kText,
    {"x", "weight", "eps", "weight_offset", "rounding", "out", "return_rstd", "stream", "device"},
    1,
    2,
    call_rms_norm};

}  // namespace membound::python
