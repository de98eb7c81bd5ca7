# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and residual addition with LayerNorm, forward and backward."""

from membound.jax import _signatures
from membound.jax._norm import run_backward, run_forward


@_signatures.layer_norm
def layer_norm(arrays, options, normalized_shape):
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
    out, _, mean, rstd = run_forward(arrays, options, normalized_shape)
    return (out, mean, rstd) if options.return_statistics else out


@_signatures.add_layer_norm
def add_layer_norm(arrays, options, normalized_shape):
    """Residual addition and layer normalisation of the sum, in one pass.

    Returns ``(out, residual_out)``, or with ``return_stats=True``
    ``(out, residual_out, mean, rstd)``; see :func:`membound.add_layer_norm`. The scalars are
    static. Reverse-mode gradients run :func:`add_layer_norm_backward`.

    >>> import jax.numpy as jnp
    >>> out, total = add_layer_norm(jnp.array([1.0, 2.0]), jnp.array([0.0, 3.0]), eps=12.0)
    >>> out.tolist(), total.tolist()
    ([-0.5, 0.5], [1.0, 5.0])
    """
    out, residual_out, mean, rstd = run_forward(arrays, options, normalized_shape)
    return (out, residual_out, mean, rstd) if options.return_statistics else (out, residual_out)


@_signatures.layer_norm_backward
def layer_norm_backward(arrays, options, normalized_shape):
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
    dx, _, _, *sums = run_backward(arrays, options, normalized_shape)
    return dx, *sums


@_signatures.add_layer_norm_backward
def add_layer_norm_backward(arrays, options, normalized_shape):
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
    dx, dresidual, _, *sums = run_backward(arrays, options, normalized_shape)
    return (dx, dresidual, *sums) if options.need_dresidual else (dx, *sums)
