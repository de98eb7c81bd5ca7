# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""validate=True for JAX arrays: ValueError for concrete arrays, XLA's error for traced ones."""

from __future__ import annotations

import arrays
import numpy as np
import pytest

import membound

jax = pytest.importorskip("jax")


def calls():
    """Calls with an id of 7, which is out of range, or with the given id in its place."""
    one = arrays.framework("jax-cpu")
    x, q = one.array(np.ones((2, 3), np.float32)), one.array(np.ones((1, 2, 1, 4), np.float32))
    table = one.array(np.ones((3, 2), np.float32))
    rows, lse = one.array(np.ones((3, 4), np.float32)), one.array(np.ones(2, np.float32))
    bad = one.array(np.array([2, 7], np.int32))
    m, given = membound, {"validate": True}
    return bad, {
        "embedding": lambda i: m.embedding(i, rows, **given),
        "embedding_backward": lambda i: m.embedding_backward(x, i, 3, **given),
        "cross_entropy": lambda i: m.cross_entropy(x, i, **given),
        "cross_entropy_backward": lambda i: m.cross_entropy_backward(1.0, x, i, lse, **given),
        "rope": lambda i: m.rope(q, None, table, table, position_ids=i[None], **given),
        "rope_backward": lambda i: m.rope_backward(q, None, table, table, position_ids=i[None],
                                                   **given),
        "qk_norm_rope": lambda i: m.qk_norm_rope(q, None, None, None, table, table,
                                                 position_ids=i[None], **given),
        "qk_norm_rope_backward": lambda i: m.qk_norm_rope_backward(
            q, None, q, None, None, None, table, table, position_ids=i[None], **given
        ),
    }  # fmt: skip


@pytest.mark.parametrize("op", list(calls()[1]))
def test_a_value_that_is_outside(op):
    bad, by_op = calls()
    good = jax.numpy.clip(bad, 0, 2)
    right = by_op[op](good)
    for found, wanted in zip(jax.tree.leaves(jax.jit(by_op[op])(good)), jax.tree.leaves(right),
                             strict=True):  # fmt: skip
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ValueError, match=rf"^{op}: argument '\w+' must .* from 0 to 2, .*got 7"):
        by_op[op](bad)
    raised_by_xla = ValueError, jax.errors.JaxRuntimeError
    with pytest.raises(raised_by_xla, match=rf"{op}: argument '\w+' must"):
        jax.block_until_ready(jax.jit(by_op[op])(bad))


def test_validate_is_a_bool():
    ids = jax.numpy.zeros(2, int)
    for validate in (1, np.ones(2)):
        with pytest.raises(TypeError, match="'validate' must be a bool"):
            membound.embedding(ids, jax.numpy.ones((3, 4)), validate=validate)
