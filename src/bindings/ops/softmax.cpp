// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/softmax.hpp"

#include "call.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "softmax";

enum Parameter { kX, kMask, kScale, kCausalOffset, kOut, kStream };

constexpr const char* kText =
    R"(softmax($module, x, mask=None, *, scale=1.0, causal_offset=None, out=None, stream=None)
--

Softmax of ``scale * x + mask`` over the last axis, in one pass.

With ``l = scale * x + mask``, ``out = exp(l - max(l)) / sum(exp(l - max(l)))``, in float32 (float64
for float64) with one rounding at the end: torch's ``softmax`` of ``l``, and what stands between the
two products of its ``scaled_dot_product_attention``, whose masks these are.

Args:
    x: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides, from torch, JAX,
        CuPy or NumPy.
    mask: from the framework and device of ``x``, with any strides and a shape that broadcasts to
        that of ``x``. bool: True keeps an element and False drops it, whatever it is. Floating
        (float64 with float64, else any of float16, bfloat16 and float32): it is added. None for no
        mask.
    scale: multiplies ``x``; finite.
    causal_offset: row ``i`` of the last axis but one keeps columns ``j <= i + causal_offset``: 0
        where queries and keys start together, ``keys - queries`` where they end together. What it
        drops is not read. None keeps all.
    out: where to write: of the shape, dtype, framework and device of ``x``. It may be ``x`` itself
        (in place), but may not overlap it in part, nor the mask. Not for JAX arrays.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``x``.

    Elements that are dropped are 0. A row that the mask drops as a whole is NaN, as torch's
    ``softmax`` of infinities below 0 is, and so is a row with NaN or infinity above 0 among what it
    keeps; a row of which ``causal_offset`` keeps nothing is 0. A row's bits depend on its values,
    mask, width and dtype alone.

Raises:
    ValueError: a shape, option, device or overlap that is not as above.
    TypeError: an array of another framework or dtype, or an option of another type.
    RuntimeError: a torch tensor requires grad while gradients are recorded, and ``out`` or
        ``stream`` is given, with which none can be. Without them the call is that of
        :func:`membound.torch.softmax`, which records it.
    CudaError: CUDA reports an error.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x = np.log(np.array([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]]))
    >>> mb.softmax(x).round(3)
    array([[0.125, 0.25 , 0.625],
           [0.125, 0.25 , 0.625]])
    >>> mb.softmax(x, np.array([True, False, True]), causal_offset=1).round(3)
    array([[1.   , 0.   , 0.   ],
           [0.167, 0.   , 0.833]])
)";

nb::object call_jax(const ArrayCall& call, PyObject* const* values) {
  call.check_jax_absent(values[kOut], "out", "which cannot be written");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  nb::dict keywords;
  if (values[kScale] != nullptr) keywords["scale"] = nb::handle(values[kScale]);
  if (values[kCausalOffset] != nullptr) {
    keywords["causal_offset"] = nb::handle(values[kCausalOffset]);
  }
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(values[kX]), call.check_jax_input(values[kMask], "mask"), **keywords);
}

SoftmaxOptions options_of(PyObject* const* values) {
  SoftmaxOptions options;
  options.scale = number_or(values[kScale], 1.0, {kName, "scale"});
  if (given(values[kCausalOffset])) {
    options.causal_offset = integer_from_python(values[kCausalOffset], {kName, "causal_offset"});
  }
  return options;
}

nb::object call(PyObject* const* values) {
  const ArrayCall call(kName, values[kX], "x", values[kStream]);
  if (call.is_jax()) return call_jax(call, values);
  const SoftmaxOptions options = options_of(values);
  LoadedArray x, mask, out;
  call.read_input(values[kX], "x", x);
  const bool masked = given(values[kMask]);
  ConstTensorView mask_view;
  if (masked) {
    call.read_input(values[kMask], "mask", mask);
    mask_view = mask.view;
  }
  const nb::object result = call.output(values[kOut], values[kX], x.view, "out", out);
  {
    const StreamView stream = call.stream(x.view.device);
    const GilRelease released(is_long_on_cpu(x.view));
    softmax(x.view, masked ? &mask_view : nullptr, options, out.view, stream);
  }
  call.mark_written({values[kOut]});
  return result;
}

}  // namespace

const Op kSoftmax{kName, kText, {"x", "mask", "scale", "causal_offset", "out", "stream"},
                  1,     2,     call};

}  // namespace membound::python
