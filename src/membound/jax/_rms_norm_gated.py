# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm with a gate, forward and backward."""

from membound.jax import _signatures
from membound.jax._norm import run_backward, run_forward


@_signatures.rms_norm_gated
def rms_norm_gated(arrays, options, normalized_shape):
    """Root mean square normalisation with a gate, in one pass.

    ``rms_norm(x) * silu(z)``, or with ``norm_before_gate=False`` ``rms_norm(x * silu(z))``; see
    :func:`membound.rms_norm_gated` for the arguments. The scalars are static: each new combination
    compiles once. Returns an array of x's shape and dtype, or with ``return_rstd=True`` the pair of
    it and rstd in float32 (float64 for float64).

    Reverse-mode gradients (jax.grad, jax.vjp) run :func:`rms_norm_gated_backward`, and compute only
    those that are asked for. Forward mode and second derivatives raise. Sharded columns are not
    gathered, as in :func:`rms_norm`; the bound is 8 float32 ulps.

    >>> import jax.numpy as jnp
    >>> x, z = jnp.array([3.0, 4.0]), jnp.array([1.0, 2.0])
    >>> [round(float(v), 3) for v in rms_norm_gated(x, z, eps=12.5)]
    [0.439, 1.409]
    >>> [round(float(v), 3) for v in rms_norm_gated(x, z, norm_before_gate=False, eps=0.0)]
    [0.42, 1.35]
    """
    out, _, _, rstd = run_forward(arrays, options, normalized_shape)
    return (out, rstd) if options.return_statistics else out


@_signatures.rms_norm_gated_backward
def rms_norm_gated_backward(arrays, options, normalized_shape):
    """The gradients of :func:`rms_norm_gated`: ``(dx, dz, dweight)``, None for the unwanted.

    See :func:`membound.rms_norm_gated_backward` for the arguments. dweight has the dtype of weight.

    >>> import jax.numpy as jnp
    >>> x, z = jnp.array([[3.0, 4.0]]), jnp.array([[1.0, 2.0]])
    >>> rstd = rms_norm_gated(x, z, eps=12.5, return_rstd=True)[1]
    >>> dx, dz, dweight = rms_norm_gated_backward(jnp.ones_like(x), x, z, None, rstd)
    >>> [round(float(v), 3) for v in dz[0]], dweight
    ([0.557, 0.873], None)
    """
    dx, _, dz, dweight, _ = run_backward(arrays, options, normalized_shape)
    return dx, dz, dweight
