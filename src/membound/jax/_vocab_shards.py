# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of rows whose columns, the vocabulary, a mesh axis shards, inside shard_map.

Each device runs the kernels on its own columns. One all-reduce carries 8 bytes a row and device,
from which all know the whole row's log-sum-exp; logits are not gathered.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from membound.jax import _cross_entropy, _ffi, _sharding

_NO_LABEL = -100


def columns_of_device(count, axis):
    """The first column of this device, and the number of all columns."""
    return lax.axis_index(axis) * count, lax.psum(1, axis) * count


def forward(logits, labels, class_weight, options, axis, with_entropy=False):
    """This device's part of each row's loss, the row's lse in two parts, and so the entropy."""
    wide, count = _ffi.statistics_dtype(logits), logits.shape[-1]
    first, vocab = columns_of_device(count, axis)
    own, local = _local(labels, first, count, options)
    plain = options._replace(label_smoothing=0.0, z_loss=0.0, ignore_index=_NO_LABEL)
    logits, own, local = _sharding.vary_together(logits, own, local)
    given = logits, local, None, plain
    loss, here, _, _, *entropy = _cross_entropy.forward_call(*given, with_entropy)
    lse, low = _whole(here, axis)
    later = (lse - here[..., 0]) + (low - here[..., 1])  # how much the row's lse exceeds ours
    chosen, all_weights = _weights(labels, class_weight, wide, vocab, options)
    both = lse + low
    part = (1 - options.label_smoothing) * chosen * (loss + later)
    part = jnp.where(own, part + options.z_loss * chosen * both * both, 0)
    if options.label_smoothing:
        own_weights = lax.dynamic_slice(all_weights, (first,), (count,))
        smooth = plain._replace(label_smoothing=1.0)
        distance, *_ = _cross_entropy.forward_call(logits, local, own_weights, smooth)
        share = options.label_smoothing / vocab
        part += jnp.where(
            labels == options.ignore_index, 0,
            share * (count * distance + later * own_weights.sum()),
        )  # fmt: skip
    outside = ((labels < 0) | (labels >= vocab)) & (labels != options.ignore_index)
    if entropy:  # the row's distribution is a mixture of those of the devices
        share = jnp.exp(-later)
        found = jnp.where(outside, math.nan, share * (entropy[0] + later))
        entropy = [jnp.where(labels == options.ignore_index, 0, found)]
    return jnp.where(outside, math.nan, part), jnp.stack([lse, low], -1), *entropy


def backward(dloss, logits, labels, lse, class_weight, options, axis, entropy=None, dentropy=None):
    """The gradient of this device's logits, of the whole rows' losses and entropies."""
    wide, count = _ffi.statistics_dtype(logits), logits.shape[-1]
    first, vocab = columns_of_device(count, axis)
    own, local = _local(labels, first, count, options)
    chosen, all_weights = _weights(labels, class_weight, wide, vocab, options)
    smoothing, both = options.label_smoothing, lse.sum(-1)
    of_label = (1 - smoothing) * chosen
    factor = of_label + 2 * options.z_loss * chosen * both
    if smoothing:
        factor += smoothing * all_weights.sum() / vocab
    outside = ((labels < 0) | (labels >= vocab)) & (labels != options.ignore_index)
    factor = jnp.where(outside, math.nan, factor)
    plain = options._replace(label_smoothing=0.0, z_loss=0.0, ignore_index=_NO_LABEL)
    operands = _sharding.vary_together(dloss * factor, logits, local, lse, entropy, dentropy)
    *operands, entropy, dentropy = operands
    dlogits = _cross_entropy.backward_call(*operands, None, plain, entropy, dentropy)
    # The kernel takes the label of every row to be in our first column, if it is not ours.
    at = jnp.clip(local, 0)[..., None]
    value = jnp.take_along_axis(logits, at, -1).astype(wide)[..., 0]
    value, slope = capped(value, options.softcap)
    log_p = value - lse[..., 0] - lse[..., 1]
    p = jnp.exp(log_p)
    value = dloss * (p * factor - jnp.where(own, of_label, 0))
    if entropy is not None:
        value -= dentropy * jnp.where(p > 0, p * (log_p + entropy), 0)
    value = jnp.where(labels == options.ignore_index, 0, value * slope)
    flat, every = dlogits.reshape(-1, count), jnp.arange(value.size)
    flat = flat.at[every, at.reshape(-1)].set(value.reshape(-1).astype(logits.dtype))
    dlogits = flat.reshape(logits.shape)
    if smoothing:
        own_weights = lax.dynamic_slice(all_weights, (first,), (count,))
        _, slopes = capped(logits.astype(wide), options.softcap)
        share = jnp.where(labels == options.ignore_index, 0, dloss * smoothing / vocab)
        less = share[..., None] * own_weights * slopes
        dlogits = (dlogits.astype(wide) - less).astype(logits.dtype)
    return dlogits


def _local(labels, first, count, options):
    """Which labels are columns of this device, and labels for the kernel: 0 where they are not."""
    ignored = labels == options.ignore_index
    own = (labels >= first) & (labels < first + count) & ~ignored
    return own, jnp.where(ignored, _NO_LABEL, jnp.where(own, labels - first, 0))


def _whole(here, axis):
    """lse of whole rows in two parts, from those of each device's columns."""
    count = lax.psum(1, axis)
    slots = jnp.zeros((count, *here.shape), here.dtype)
    slots = _sharding.vary_together(slots, here)[0].at[lax.axis_index(axis)].set(here)
    top, low = jnp.moveaxis(lax.psum(slots, axis), -1, 0)
    largest = top.max(0)
    return largest, jax.nn.logsumexp(top - largest + low, 0)


def _weights(labels, class_weight, wide, vocab, options):
    """The weight of each label, 0 if it is ignored, and those of all classes."""
    everything = jnp.ones(vocab, wide) if class_weight is None else class_weight.astype(wide)
    chosen = everything[jnp.clip(labels, 0, vocab - 1)]
    return jnp.where(labels == options.ignore_index, 0, chosen), everything


def capped(value, softcap):
    if softcap == math.inf:
        return value, 1
    squashed = jnp.tanh(value / softcap)
    return softcap * squashed, 1 - squashed**2
