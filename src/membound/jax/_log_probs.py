# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of tokens from a last layer, with entropies, as policy gradients need them."""

import math

from membound.jax import _arguments, _linear_cross_entropy


def linear_log_probs(
    x, weight, labels, bias=None, *, temperature=1.0, entropy=False, softcap=None,
    chunk_rows=1024, ignore_index=-100, validate=False, axis_name=None,
):  # fmt: skip
    """Each label's log-probability under ``softmax((x @ weight.T + bias) / temperature)``.

    GRPO, PPO and DPO need these of every token, and often the entropy of each distribution. The
    logits of ``chunk_rows`` rows at a time are made, in the forward and again in the backward. The
    options are static. Forward mode and second derivatives raise.

    Args:
        x, weight, labels, bias, chunk_rows, axis_name: as of :func:`linear_cross_entropy`.
        temperature: what logits are divided by, before they are rounded to the dtype of x.
        entropy: also return the entropy of each row's distribution, with its gradient.
        softcap: what logits are held to before they are divided, as in Gemma 2; None for no cap.
        ignore_index: the label of rows that do not count, such as those of the prompt and of
            padding: their results are 0 and have no gradient.
        validate: as of :func:`membound.cross_entropy`; not with ``axis_name``.

    Returns:
        Of the shape of labels, in float32 (float64 for float64): the log-probabilities, or a tuple
        of them and the entropies in nats. They have gradients of x, weight and bias.

    >>> import jax.numpy as jnp
    >>> x, weight = jnp.ones((2, 3)), jnp.zeros((4, 3))
    >>> found, entropies = linear_log_probs(x, weight, jnp.array([0, -100]), entropy=True)
    >>> [round(float(one), 3) for one in (*found, *entropies)]
    [-1.386, 0.0, 1.386, 0.0]
    """
    op = "linear_log_probs"
    arrays = {"x": x, "weight": weight, "labels": labels, "bias": bias}
    _arguments.check_arrays(op, arrays)
    temperature = _arguments.number(op, temperature, "temperature")
    if not 0.0 < temperature < math.inf:
        raise ValueError(
            f"{op}: argument 'temperature' must be above 0 and finite, got {temperature}"
        )
    options = _linear_cross_entropy.options_of(
        op, chunk_rows, axis_name, ignore_index, 0.0, 0.0, softcap, validate, "none"
    )
    cap = options.loss.softcap / temperature  # of what is divided
    options = options._replace(
        loss=options.loss._replace(softcap=cap),
        gradient=options.gradient._replace(softcap=cap),
        temperature=temperature,
        entropy=_arguments.flag(op, entropy, "entropy"),
    )
    found = _linear_cross_entropy.called(*arrays.values(), None, options)
    if not entropy:
        return 0.0 - found  # without the sign of zeros
    return 0.0 - found[0], found[1]
