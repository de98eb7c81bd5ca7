# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm and residual addition with RMSNorm, forward and backward."""

from membound.jax import _signatures
from membound.jax._norm import run_backward, run_forward


@_signatures.rms_norm
def rms_norm(arrays, options, normalized_shape):
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
    out, _, _, rstd = run_forward(arrays, options, normalized_shape)
    return (out, rstd) if options.return_statistics else out


@_signatures.add_rms_norm
def add_rms_norm(arrays, options, normalized_shape):
    """Residual addition and root mean square normalisation of the sum, in one pass.

    Returns ``(out, residual_out)``, or with ``return_rstd=True`` ``(out, residual_out, rstd)``; see
    :func:`membound.add_rms_norm`. The scalars are static. Reverse-mode gradients run
    :func:`add_rms_norm_backward`.

    >>> import jax.numpy as jnp
    >>> out, total = add_rms_norm(jnp.array([1.0, 2.0]), jnp.array([2.0, 2.0]), eps=12.5)
    >>> [round(float(v), 4) for v in out], total.tolist()
    ([0.6, 0.8], [3.0, 4.0])
    """
    out, residual_out, _, rstd = run_forward(arrays, options, normalized_shape)
    return (out, residual_out, rstd) if options.return_statistics else (out, residual_out)


@_signatures.rms_norm_backward
def rms_norm_backward(arrays, options, normalized_shape):
    """The gradients of :func:`rms_norm`: ``(dx, dweight)``, None for what is not wanted.

    See :func:`membound.rms_norm_backward` for the arguments. dweight has the dtype of weight.

    >>> import jax.numpy as jnp
    >>> x, weight = jnp.array([[3.0, 4.0], [4.0, -3.0]]), jnp.array([1.0, 2.0])
    >>> rstd = rms_norm(x, weight, eps=12.5, return_rstd=True)[1]
    >>> dx, dweight = rms_norm_backward(jnp.ones_like(x), x, weight, rstd)
    >>> bool(abs(dweight - jnp.array([1.4, 0.2])).max() < 1e-6)
    True
    """
    dx, _, _, dweight, _ = run_backward(arrays, options, normalized_shape)
    return dx, dweight


@_signatures.add_rms_norm_backward
def add_rms_norm_backward(arrays, options, normalized_shape):
    """The gradients of :func:`add_rms_norm`: ``(dx, dweight)``, None for what is not wanted.

    dx is that of x and of residual; with ``need_dresidual=True`` ``(dx, dresidual, dweight)``, in
    their own dtypes. See :func:`membound.add_rms_norm_backward`.

    >>> import jax.numpy as jnp
    >>> total, dtotal = jnp.array([[3.0, 4.0]]), jnp.array([[5.0, 6.0]])
    >>> dx, _ = add_rms_norm_backward(jnp.zeros((1, 2)), dtotal, total, None, jnp.array([0.2]))
    >>> dx.tolist()
    [[5.0, 6.0]]
    """
    dx, dresidual, _, dweight, _ = run_backward(arrays, options, normalized_shape)
    return (dx, dresidual, dweight) if options.need_dresidual else (dx, dweight)
