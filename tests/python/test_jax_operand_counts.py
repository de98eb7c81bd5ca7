# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of our XLA targets with too few operands or results, as another version would make them."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from membound import _core, _elementwise
from membound import jax as mbj
from membound.jax import _ffi

X, W, ROWS = jnp.ones((2, 3, 64)), jnp.ones(64), jnp.ones((2, 3))
IDS = jnp.zeros((2, 3), jnp.int32)
Q, K, COS = jnp.ones((1, 3, 4, 8)), jnp.ones((1, 3, 2, 8)), jnp.ones((3, 4))
HEAD = jnp.ones(8)

# One call of each target, through the function that users call.
CALLS = {
    "rms_norm": lambda: mbj.rms_norm(X, W),
    "add_rms_norm": lambda: mbj.add_rms_norm(X, X, W),
    "rms_norm_backward": lambda: mbj.rms_norm_backward(X, X, W, ROWS),
    "add_rms_norm_backward": lambda: mbj.add_rms_norm_backward(X, X, X, W, ROWS),
    "rms_norm_quant": lambda: mbj.rms_norm_quant(X, W),
    "add_rms_norm_quant": lambda: mbj.add_rms_norm_quant(X, X, W),
    "layer_norm": lambda: mbj.layer_norm(X, W, W),
    "add_layer_norm": lambda: mbj.add_layer_norm(X, X, W, W),
    "layer_norm_backward": lambda: mbj.layer_norm_backward(X, X, W, ROWS, ROWS),
    "add_layer_norm_backward": lambda: mbj.add_layer_norm_backward(X, X, X, W, ROWS, ROWS),
    "rms_norm_gated": lambda: mbj.rms_norm_gated(X, X, W),
    "rms_norm_gated_backward": lambda: mbj.rms_norm_gated_backward(X, X, X, W, ROWS),
    "gated_activation": lambda: mbj.gated_activation(X, X),
    "gated_activation_backward": lambda: mbj.gated_activation_backward(X, X, X),
    "gated_activation_quant": lambda: mbj.gated_activation_quant(X, X),
    "rope": lambda: mbj.rope(Q, K, COS, COS),
    "rope_backward": lambda: mbj.rope_backward(Q, K, COS, COS),
    "qk_norm_rope": lambda: mbj.qk_norm_rope(Q, K, HEAD, HEAD, COS, COS),
    "qk_norm_rope_backward": lambda: mbj.qk_norm_rope_backward(
        Q, K, Q, K, HEAD, HEAD, COS, COS
    ),
    "embedding": lambda: mbj.embedding(IDS, W.reshape(8, 8)),
    "embedding_backward": lambda: mbj.embedding_backward(X, IDS, 5),
    "cross_entropy": lambda: mbj.cross_entropy(X, IDS),
    "cross_entropy_backward": lambda: mbj.cross_entropy_backward(ROWS, X, IDS, ROWS),
    "softmax": lambda: mbj.softmax(X),
    "softmax_backward": lambda: mbj.softmax_backward(X, X),
}  # fmt: skip
for op, of in _elementwise.OPS.items():
    numbers = [values[0] for values in of.samples.values()]
    CALLS[op] = functools.partial(getattr(mbj, op), *[X] * len(of.inputs), *numbers)


def test_every_target_has_a_call():
    assert {f"membound_{name}" for name in CALLS} == set(_core.jax_ffi_targets())


@pytest.mark.parametrize("name", CALLS)
def test_too_few_operands_or_results_are_an_error(name, monkeypatch):
    made = {}
    ffi_call = _ffi.ffi.ffi_call

    def remembering(target, results, **options):
        def call(*operands, **attributes):
            made[target] = (results, operands, attributes)
            return ffi_call(target, results, **options)(*operands, **attributes)

        return call

    monkeypatch.setattr(_ffi.ffi, "ffi_call", remembering)
    jax.clear_caches()
    jax.make_jaxpr(CALLS[name])()
    monkeypatch.undo()
    results, operands, attributes = made[f"membound_{name}"]
    results = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results]
    operands = [jnp.zeros(one.shape, one.dtype) for one in operands]

    def run(count, made_results):
        function = _ffi.ffi.ffi_call(f"membound_{name}", made_results, has_side_effect=True)
        return jax.block_until_ready(function(*operands[:count], **attributes))

    for count in range(len(operands)):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.*lacks operand"):
            run(count, results)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.*lacks result 0"):
        run(len(operands), [])
    run(len(operands), results)
