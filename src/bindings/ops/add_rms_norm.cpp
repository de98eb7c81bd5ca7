// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_rms_norm.hpp"

#include "core/check.hpp"
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
  kOut,
  kResidualOut,
  kReturnRstd,
  kStream,
  kDevice,
};

constexpr const char* kText =
    R"(add_rms_norm($module, x, residual, weight=None, *, eps=1e-06, weight_offset=0.0, rounding='once', out=None, residual_out=None, return_rstd=False, stream=None, device=None)
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
    weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without a weight.
    rounding: ``"once"`` or ``"before_weight"``, as in :func:`rms_norm`.
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
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        does not do: call it under ``torch.no_grad()`` or pass ``x.detach()``, and take the
        gradients from :func:`add_rms_norm_backward`. ``membound.jax`` does record them.
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

// A core call on the arrays that were read; residual_out and out may be the inputs.
struct Arrays {
  LoadedArray x, residual, weight, out, residual_out, rstd;
  bool weighted = false;
  bool return_rstd = false;

  template <class Where>
  void run(const RmsNormOptions& options, const TensorView& out_view,
           const TensorView& residual_out_view, Where where) const {
    const ConstTensorView weight_view(weight.view);
    membound::add_rms_norm(x.view, residual.view, weighted ? &weight_view : nullptr, options,
                           out_view, residual_out_view, return_rstd ? &rstd.view : nullptr, where);
  }
};

nb::object call_jax(const ArrayCall& call, PyObject* const* values, const RmsNormOptions& options,
                    bool return_rstd) {
  const nb::handle residual = call.check_jax_input(values[kResidual], "residual");
  const nb::handle weight = call.check_jax_input(values[kWeight], "weight");
  call.check_jax_absent(values[kOut], "out", "which cannot be written");
  call.check_jax_absent(values[kResidualOut], "residual_out", "which cannot be written");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  call.check_jax_absent(values[kDevice], "device", "which stay where they are");
  const nb::object op = nb::module_::import_("membound.jax").attr(kName);
  return op(nb::handle(values[kX]), residual, weight, nb::arg("eps") = options.eps,
            nb::arg("weight_offset") = options.weight_offset,
            nb::arg("rounding") = rounding_name(options.rounding),
            nb::arg("return_rstd") = return_rstd);
}

nb::object call_add_rms_norm(PyObject* const* values) {
  const ArrayCall call(kName, values[kX], "x", values[kStream]);
  const RmsNormOptions options =
      norm_options(kName, values[kEps], values[kWeightOffset], values[kRounding]);
  Arrays arrays;
  auto& [x, residual, weight, out, residual_out, rstd, weighted, return_rstd] = arrays;
  return_rstd = flag_or(values[kReturnRstd], false, {kName, "return_rstd"});
  if (call.is_jax()) return call_jax(call, values, options, return_rstd);

  call.read_input(values[kX], "x", x);
  call.read_input(values[kResidual], "residual", residual);
  weighted = given(values[kWeight]);
  if (weighted) call.read_input(values[kWeight], "weight", weight);
  const auto staging = call.staging_device(values[kDevice], x.view.device);
  const nb::object y = call.output(values[kOut], values[kX], x.view, "out", out);
  const nb::object sum =
      call.output(values[kResidualOut], values[kX], x.view, "residual_out", residual_out);
  nb::object rstd_array;
  if (return_rstd) rstd_array = call.new_rows(values[kX], x.view, rstd);
  if (staging) {
    const GilRelease released(true);
    arrays.run(options, out.view, residual_out.view, *staging);
  } else {
    const StreamView stream = call.stream(x.view.device);
    const GilRelease released(is_long_on_cpu(x.view));
    arrays.run(options, out.view, residual_out.view, stream);
  }
  call.mark_written(values[kOut], values[kResidualOut]);
  return return_rstd ? nb::make_tuple(y, sum, rstd_array) : nb::make_tuple(y, sum);
}

constexpr const char* kFusedName = "fused_add_rms_norm";

constexpr const char* kFusedText =
    R"(fused_add_rms_norm($module, input, residual, weight, epsilon=1e-06)
--

:func:`add_rms_norm` in place, by the name and with the arguments that vLLM and flashinfer use.

``residual`` becomes ``input + residual`` and ``input`` the norm of that sum. The sum is normalised
before it is rounded, as in flashinfer.

Args:
    input: ``(..., cols)``, float16, bfloat16, float32 or float64; written. Not a JAX array.
    residual: the shape, dtype, framework and device of ``input``; written.
    weight: ``(cols,)`` of any of those dtypes, or None.
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
  enum { kInput, kFusedResidual, kFusedWeight, kEpsilon };
  const ArrayCall call(kFusedName, values[kInput], "input", nullptr);
  MEMBOUND_CHECK(!call.is_jax(), TypeMismatch, kFusedName,
                 "argument 'input' must not be a JAX array, which cannot be written");
  RmsNormOptions options;
  options.eps = number_or(values[kEpsilon], options.eps, {kFusedName, "epsilon"});
  Arrays arrays;
  call.read_output(values[kInput], "input", arrays.x);
  call.read_output(values[kFusedResidual], "residual", arrays.residual);
  arrays.weighted = given(values[kFusedWeight]);
  if (arrays.weighted) call.read_input(values[kFusedWeight], "weight", arrays.weight);
  const StreamView stream = call.stream(arrays.x.view.device);
  {
    const GilRelease released(is_long_on_cpu(arrays.x.view));
    arrays.run(options, arrays.x.view, arrays.residual.view, stream);
  }
  call.mark_written(values[kInput], values[kFusedResidual]);
  return nb::none();
}

}  // namespace

const Op kAddRmsNorm{kName,
                     kText,
                     {"x", "residual", "weight", "eps", "weight_offset", "rounding", "out",
                      "residual_out", "return_rstd", "stream", "device"},
                     2,
                     3,
                     call_add_rms_norm};

const Op kFusedAddRmsNorm{kFusedName, kFusedText, {"input", "residual", "weight", "epsilon"},
                          3,          4,          call_fused_add_rms_norm};

}  // namespace membound::python
