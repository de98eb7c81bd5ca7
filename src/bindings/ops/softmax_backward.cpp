// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/softmax_backward.hpp"

#include "call.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "softmax_backward";

enum Parameter { kDy, kY, kScale, kDx, kStream };

constexpr const char* kText =
    R"(softmax_backward($module, dy, y, *, scale=1.0, dx=None, stream=None)
--

The gradient of :func:`softmax`, from its result.

In full, ``dx = scale * y * (dy - sum(dy * y))`` with the sum over the last axis, in float32 (float64
for float64) with one rounding at the end. Masks and ``causal_offset`` need not be named: what they
dropped is 0 in ``y``, and so in ``dx``. With a scale of 1 it is the gradient of an added mask of the
shape of ``x``, too.

Args:
    dy: the gradient of the result: of the shape, dtype, framework and device of ``y``, with any
        strides.
    y: what :func:`softmax` returned: ``(..., cols)``, float16, bfloat16, float32 or float64, with any
        strides.
    scale: that of the forward; finite.
    dx: where to write: of the shape, dtype, framework and device of ``y``. It may be ``dy`` or ``y``
        itself (in place), but may not overlap them in part. Not for JAX arrays.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``dx``, or a new C-contiguous array of the framework, shape, dtype and device of ``y``.

Raises:
    ValueError: a shape, option, device or overlap that is not as above.
    TypeError: an array of another framework or dtype, or an option of another type.
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        never can.
    CudaError: CUDA reports an error.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> y = np.array([[0.125, 0.25, 0.625]])
    >>> mb.softmax_backward(np.array([[1.0, 0.0, 0.0]]), y)
    array([[ 0.109375, -0.03125 , -0.078125]])
    >>> mb.softmax_backward(np.array([[1.0, 0.0, 0.0]]), y, scale=2.0)
    array([[ 0.21875, -0.0625 , -0.15625]])
)";

nb::object call_jax(const ArrayCall& call, PyObject* const* values) {
  call.check_jax_absent(values[kDx], "dx", "which cannot be written");
  call.check_jax_absent(values[kStream], "stream", "whose stream XLA picks");
  nb::dict keywords;
  if (values[kScale] != nullptr) keywords["scale"] = nb::handle(values[kScale]);
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(values[kDy]), call.check_jax_input(values[kY], "y"), **keywords);
}

nb::object call(PyObject* const* values) {
  const ArrayCall call(kName, values[kDy], "dy", values[kStream]);
  if (call.is_jax()) return call_jax(call, values);
  const double scale = number_or(values[kScale], 1.0, {kName, "scale"});
  LoadedArray dy, y, dx;
  call.read_input(values[kDy], "dy", dy);
  call.read_input(values[kY], "y", y);
  const nb::object result = call.output(values[kDx], values[kY], y.view, "dx", dx);
  {
    const StreamView stream = call.stream(y.view.device);
    const GilRelease released(is_long_on_cpu(y.view));
    softmax_backward(dy.view, y.view, scale, dx.view, stream);
  }
  call.mark_written({values[kDx]});
  return result;
}

}  // namespace

const Op kSoftmaxBackward{kName, kText, {"dy", "y", "scale", "dx", "stream"}, 2, 2, call};

}  // namespace membound::python
