# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of tokens from a last layer, with entropies, as policy gradients need them."""

from __future__ import annotations

import math

from membound.torch._adapters import adapter
from membound.torch._functions import one_call
from membound.torch._last_layer import CHUNK_ROWS, ROW_LOSSES, check_last_layer, product_dtype
from membound.torch._vocab_shards import has_sharded_vocab, sharded_row_losses


@one_call
@adapter()
def linear_log_probs(
    x, weight, labels, bias=None, *, temperature=1.0, entropy=False, softcap=None,
    chunk_rows=CHUNK_ROWS, ignore_index=-100, validate=False,
):  # fmt: skip
    """Each label's log-probability under ``softmax((x @ weight.T + bias) / temperature)``.

    GRPO, PPO and DPO need these of every token, and often the entropy of each distribution. The
    logits of ``chunk_rows`` rows at a time are made, in the forward and again in the backward, so
    that memory holds one chunk in place of all logits, their log-softmax and its gradient. Under
    torch.autocast the products are in its dtype. Second derivatives raise.

    Args:
        x: ``(rows, width)``; more axes in front are rows too.
        weight: ``(vocab, width)``.
        labels: the tokens, int32 or int64, one for each row.
        bias: ``(vocab,)``, or None.
        temperature: what logits are divided by, in the products, before they are rounded.
        entropy: also return the entropy of each row's distribution, with its gradient.
        softcap: what logits are held to before they are divided, as in Gemma 2; None for no cap.
        chunk_rows: how many rows have their logits at one time.
        ignore_index: the label of rows that do not count, such as those of the prompt and of
            padding: their results are 0 and have no gradient.
        validate: look at labels (on the CPU only) and raise ValueError where one is neither
            ignored nor in the vocabulary. Otherwise the results of its row are NaN.

    Returns:
        Of the shape of labels, in float32 (float64 for float64): the log-probabilities, or a tuple
        of them and the entropies in nats. They have gradients of x, weight and bias.

    >>> import torch
    >>> x, weight = torch.ones(2, 3, requires_grad=True), torch.zeros(4, 3)
    >>> found, entropies = linear_log_probs(x, weight, torch.tensor([0, -100]), entropy=True)
    >>> [round(one, 3) for one in (*found.tolist(), *entropies.tolist())]
    [-1.386, 0.0, 1.386, 0.0]
    """
    op = "linear_log_probs"
    check_last_layer(op, x, weight, labels, bias, None, chunk_rows)
    if not 0.0 < temperature < math.inf:
        raise ValueError(
            f"{op}: argument 'temperature' must be above 0 and finite, got {temperature}"
        )
    x = x.to(product_dtype(x))
    options = ignore_index, 0.0, 0.0, softcap, validate, temperature, entropy
    given = x, weight, bias, labels, None, chunk_rows, *options
    if has_sharded_vocab(weight):
        losses, entropies, *_ = sharded_row_losses(op, *given)
    else:
        losses, entropies = ROW_LOSSES(*given)
    found = 0.0 - losses  # without the sign of zeros
    return (found, entropies) if entropy else found
