# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and residual addition with LayerNorm, forward and backward."""

from membound.jax._arguments import check_arrays
from membound.jax._norm import (
    ADD_LAYER_NORM,
    LAYER_NORM,
    backward_options,
    forward_options,
    run_backward,
    run_forward,
)


def layer_norm(
    x, weight=None, bias=None, *, eps=1e-6, weight_offset=0.0, dtype=None, normalized_shape=None,
    return_stats=False,
):  # fmt: skip
    """Layer normalisation over the last axis.

    ``(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + eps) * (weight + weight_offset) + bias``, see
    :func:`membound.layer_norm` for the arguments. The scalars are static: each new combination
    compiles once. Returns an array of x's shape and dtype, or with ``return_stats=True`` the tuple
    of it, the means and what the deviations are multiplied by, in float32 (float64 for float64).

    Reverse-mode gradients (jax.grad, jax.vjp) run :func:`layer_norm_backward`, and compute only
    those that are asked for. Forward mode and second derivatives raise.

    Sharded columns are not gathered: forward and backward take one all-reduce of 16 bytes per row
    each. The bits may then differ from those of whole rows; both are within 5 float32 ulps of the
    exact result (0.501 in 16 bits) plus 8 float32 roundings of the row's largest element. Sums are
    float64, also of float64, where a mean of 10^n standard deviations costs rstd 2 n of 16 digits.

    >>> import jax.numpy as jnp
    >>> y, mean, rstd = layer_norm(jnp.array([1.0, 5.0]), eps=12.0, return_stats=True)
    >>> y.tolist(), float(mean), float(rstd)
    ([-0.5, 0.5], 3.0, 0.25)
    """
    check_arrays("layer_norm", {"x": x, "weight": weight, "bias": bias})
    options = forward_options(LAYER_NORM, eps, weight_offset, "once", return_stats, dtype=dtype)
    out, _, mean, rstd = run_forward(x, None, None, weight, bias, options, normalized_shape)
    return (out, mean, rstd) if options.return_statistics else out


def add_layer_norm(
    x, residual, weight=None, bias=None, *, eps=1e-6, weight_offset=0.0, dtype=None,
    normalized_shape=None, return_stats=False,
):  # fmt: skip
    """Residual addition and layer normalisation of the sum, in one pass.

    Returns ``(out, residual_out)``, or with ``return_stats=True``
    ``(out, residual_out, mean, rstd)``; see :func:`membound.add_layer_norm`. The scalars are
    static. Reverse-mode gradients run :func:`add_layer_norm_backward`.

    >>> import jax.numpy as jnp
    >>> out, total = add_layer_norm(jnp.array([1.0, 2.0]), jnp.array([0.0, 3.0]), eps=12.0)
    >>> out.tolist(), total.tolist()
    ([-0.5, 0.5], [1.0, 5.0])
    """
    arrays = {"x": x, "residual": residual, "weight": weight, "bias": bias}
    check_arrays("add_layer_norm", arrays)
    options = forward_options(ADD_LAYER_NORM, eps, weight_offset, "once", return_stats, dtype=dtype)
    out, residual_out, mean, rstd = run_forward(
        x, residual, None, weight, bias, options, normalized_shape
    )
    return (out, residual_out, mean, rstd) if options.return_statistics else (out, residual_out)


def layer_norm_backward(
    dy, x, weight, mean, rstd, *, weight_offset=0.0, normalized_shape=None,
    need_dx=True, need_dweight=True, need_dbias=True,
):  # fmt: skip
    """The gradients of :func:`layer_norm`: ``(dx, dweight, dbias)``, None for what is not wanted.

    See :func:`membound.layer_norm_backward` for the arguments. dweight and dbias have the dtype of
    weight; without a weight there is no dweight, and dbias has the dtype of x.

    >>> import jax.numpy as jnp
    >>> x, weight = jnp.array([[1.0, 5.0]]), jnp.array([1.0, 2.0])
    >>> _, mean, rstd = layer_norm(x, weight, eps=12.0, return_stats=True)
    >>> dx, dweight, dbias = layer_norm_backward(jnp.ones_like(x), x, weight, mean, rstd)
    >>> dx.tolist(), dweight.tolist(), dbias.tolist()
    ([[-0.09375, 0.09375]], [-0.5, 0.5], [1.0, 1.0])
    """
    arrays = {"dy": dy, "x": x, "weight": weight, "mean": mean, "rstd": rstd}
    check_arrays("layer_norm_backward", arrays)
    options = backward_options(
        LAYER_NORM, weight_offset, "once", dx=need_dx, dweight=need_dweight, dbias=need_dbias
    )
    arrays = (dy, None, x, None, weight, mean, rstd)
    dx, _, _, *sums = run_backward(*arrays, options, normalized_shape)
    return dx, *sums


def add_layer_norm_backward(
    dy, dresidual_out, residual_out, weight, mean, rstd, *, weight_offset=0.0,
    normalized_shape=None, need_dx=True, need_dresidual=False, need_dweight=True, need_dbias=True,
):  # fmt: skip
    """The gradients of :func:`add_layer_norm`: ``(dx, dweight, dbias)``, None for the unwanted.

    dx is that of x and of residual; with ``need_dresidual=True`` dresidual follows it, in its own
    dtype. See :func:`membound.add_layer_norm_backward`.

    >>> import jax.numpy as jnp
    >>> total, dtotal = jnp.array([[1.0, 5.0]]), jnp.array([[5.0, 6.0]])
    >>> mean, rstd, dy = jnp.array([3.0]), jnp.array([0.25]), jnp.array([[0.5, 0.5]])
    >>> dx, dweight, dbias = add_layer_norm_backward(dy, dtotal, total, None, mean, rstd)
    >>> dx.tolist(), dweight, dbias.tolist()
    ([[5.0, 6.0]], None, [0.5, 0.5])
    """
    arrays = {
        "dy": dy,
        "dresidual_out": dresidual_out,
        "residual_out": residual_out,
        "weight": weight,
        "mean": mean,
        "rstd": rstd,
    }
    check_arrays("add_layer_norm_backward", arrays)
    options = backward_options(
        ADD_LAYER_NORM, weight_offset, "once",
        dx=need_dx, dresidual=need_dresidual, dweight=need_dweight, dbias=need_dbias,
    )  # fmt: skip
    inputs = (dy, dresidual_out, residual_out, None, weight, mean, rstd)
    dx, dresidual, _, *sums = run_backward(*inputs, options, normalized_shape)
    return (dx, dresidual, *sums) if need_dresidual else (dx, *sums)
