# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of an optimiser; not in the standard."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from membound import _core
from membound._core import NDArray


def adamw(
    params: Sequence[NDArray],
    grads: Sequence[NDArray],
    exp_avgs: Sequence[NDArray],
    exp_avg_sqs: Sequence[NDArray],
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    step: int,
) -> None:
    """Update all parameters by one step of AdamW, as torch.optim.AdamW does::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        p = (1 - lr * weight_decay) * p
            - lr / (1 - beta1**step) * m / (sqrt(v / (1 - beta2**step)) + eps)

    Nothing is written if an argument does not fit. The bits do not depend on the number of threads.

    Args:
        params: p, of bfloat16, float16, float32 or float64, updated in place.
        grads: g, each of its parameter's shape, in its dtype or float32.
        exp_avgs, exp_avg_sqs: m and v, zeros at first, updated in place; float32, for float64
            parameters float64.
        step: of this update, from 1 on.

    >>> p, g, m, v = (nd.full((2,), value, dtype=nd.float32) for value in (1, 3, 0, 0))
    >>> nd.adamw([p], [g], [m], [v], lr=0.5, beta1=0.5, beta2=0.5, eps=0, weight_decay=0, step=1)
    >>> p
    array([0.5, 0.5], dtype=float32)
    """
    _core.array_adamw(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        float(lr),
        float(beta1),
        float(beta2),
        float(eps),
        float(weight_decay),
        operator.index(step),
    )
