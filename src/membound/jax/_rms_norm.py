# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm and residual addition with RMSNorm, forward and backward."""

from membound.jax._arguments import check_arrays
from membound.jax._norm import (
    ADD_RMS_NORM,
    RMS_NORM,
    backward_options,
    forward_options,
    run_backward,
    run_forward,
)


def rms_norm(
    x, weight=None, *, eps=1e-6, weight_offset=0.0, rounding="once", dtype=None,
    normalized_shape=None, return_rstd=False,
):  # fmt: skip
    """Root mean square normalisation over the last axis.

    ``x / sqrt(mean(x * x) + eps) * (weight + weight_offset)``, see :func:`membound.rms_norm` for
    the arguments. The scalars are static: each new combination compiles once. Returns an array of
    x's shape and dtype, or with ``return_rstd=True`` the pair of it and
    ``1 / sqrt(mean(x * x) + eps)`` in float32 (float64 for float64).

    Reverse-mode gradients (jax.grad, jax.vjp) run :func:`rms_norm_backward` on x, weight and rstd,
    and compute only those that are asked for. Forward mode and second derivatives raise.

    Sharded columns are not gathered: forward and backward take one all-reduce of 8 bytes per row
    each. The bits may then differ from those of whole rows; both are within 5 float32 ulps of the
    exact result, in 16 bits within 0.501.

    >>> import jax.numpy as jnp
    >>> [round(float(v), 4) for v in rms_norm(jnp.array([3.0, 4.0]), eps=0.0)]
    [0.8485, 1.1314]
    """
    check_arrays("rms_norm", {"x": x, "weight": weight})
    options = forward_options(RMS_NORM, eps, weight_offset, rounding, return_rstd, dtype=dtype)
    out, _, _, rstd = run_forward(x, None, None, weight, None, options, normalized_shape)
    return (out, rstd) if options.return_statistics else out


def add_rms_norm(
    x, residual, weight=None, *, eps=1e-6, weight_offset=0.0, rounding="once", dtype=None,
    normalized_shape=None, return_rstd=False,
):  # fmt: skip
    """Residual addition and root mean square normalisation of the sum, in one pass.

    Returns ``(out, residual_out)``, or with ``return_rstd=True`` ``(out, residual_out, rstd)``; see
    :func:`membound.add_rms_norm`. The scalars are static. Reverse-mode gradients run
    :func:`add_rms_norm_backward`.

    >>> import jax.numpy as jnp
    >>> out, total = add_rms_norm(jnp.array([1.0, 2.0]), jnp.array([2.0, 2.0]), eps=12.5)
    >>> [round(float(v), 4) for v in out], total.tolist()
    ([0.6, 0.8], [3.0, 4.0])
    """
    check_arrays("add_rms_norm", {"x": x, "residual": residual, "weight": weight})
    options = forward_options(ADD_RMS_NORM, eps, weight_offset, rounding, return_rstd, dtype=dtype)
    out, residual_out, _, rstd = run_forward(
        x, residual, None, weight, None, options, normalized_shape
    )
    return (out, residual_out, rstd) if options.return_statistics else (out, residual_out)


def rms_norm_backward(
    dy, x, weight, rstd, *, weight_offset=0.0, rounding="once", normalized_shape=None,
    need_dx=True, need_dweight=True,
):  # fmt: skip
    """The gradients of :func:`rms_norm`: ``(dx, dweight)``, None for what is not wanted.

    See :func:`membound.rms_norm_backward` for the arguments. dweight has the dtype of weight.

    >>> import jax.numpy as jnp
    >>> x, weight = jnp.array([[3.0, 4.0], [4.0, -3.0]]), jnp.array([1.0, 2.0])
    >>> rstd = rms_norm(x, weight, eps=12.5, return_rstd=True)[1]
    >>> dx, dweight = rms_norm_backward(jnp.ones_like(x), x, weight, rstd)
    >>> bool(abs(dweight - jnp.array([1.4, 0.2])).max() < 1e-6)
    True
    """
    arrays = {"dy": dy, "x": x, "weight": weight, "rstd": rstd}
    check_arrays("rms_norm_backward", arrays)
    options = backward_options(RMS_NORM, weight_offset, rounding, dx=need_dx, dweight=need_dweight)
    dx, _, _, dweight, _ = run_backward(
        dy, None, x, None, weight, None, rstd, options, normalized_shape
    )
    return dx, dweight


def add_rms_norm_backward(
    dy, dresidual_out, residual_out, weight, rstd, *, weight_offset=0.0, rounding="once",
    normalized_shape=None, need_dx=True, need_dresidual=False, need_dweight=True,
):  # fmt: skip
    """The gradients of :func:`add_rms_norm`: ``(dx, dweight)``, None for what is not wanted.

    dx is that of x and of residual; with ``need_dresidual=True`` ``(dx, dresidual, dweight)``, in
    their own dtypes. See :func:`membound.add_rms_norm_backward`.

    >>> import jax.numpy as jnp
    >>> total, dtotal = jnp.array([[3.0, 4.0]]), jnp.array([[5.0, 6.0]])
    >>> dx, _ = add_rms_norm_backward(jnp.zeros((1, 2)), dtotal, total, None, jnp.array([0.2]))
    >>> dx.tolist()
    [[5.0, 6.0]]
    """
    arrays = {
        "dy": dy,
        "dresidual_out": dresidual_out,
        "residual_out": residual_out,
        "weight": weight,
        "rstd": rstd,
    }
    check_arrays("add_rms_norm_backward", arrays)
    options = backward_options(
        ADD_RMS_NORM, weight_offset, rounding,
        dx=need_dx, dresidual=need_dresidual, dweight=need_dweight,
    )  # fmt: skip
    inputs = (dy, dresidual_out, residual_out, None, weight, None, rstd)
    dx, dresidual, _, dweight, _ = run_backward(*inputs, options, normalized_shape)
    return (dx, dresidual, dweight) if need_dresidual else (dx, dweight)
