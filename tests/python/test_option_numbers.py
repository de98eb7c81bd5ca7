# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers among the options: which are taken, and what is said of the others."""

from __future__ import annotations

import re

import numpy as np
import pytest

import membound


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def assign(name: str, value: object) -> None:
    setattr(membound.staging_options(), name, value)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: membound.device_properties(2**40), ValueError,
         "device_properties: argument 'device' must fit 32 bits, got 1099511627776"),
        (lambda: membound.device_properties(2**70), ValueError,
         "device_properties: argument 'device' must fit 64 bits"),
        (lambda: membound.set_cpu_threads(2**31), ValueError,
         "set_cpu_threads: argument 'count' must fit 32 bits, got 2147483648"),
        (lambda: membound.set_cpu_threads("2"), TypeError,
         "set_cpu_threads: argument 'count' must be an integer, got str"),
        (lambda: assign("slot_bytes", -1), ValueError,
         "StagingOptions: argument 'slot_bytes' must not be negative, got -1"),
        (lambda: assign("threads", 2**31), ValueError,
         "StagingOptions: argument 'threads' must fit 32 bits, got 2147483648"),
        (lambda: assign("cached_bytes", 1.5), TypeError,
         "StagingOptions: argument 'cached_bytes' must be an integer, got float"),
        (lambda: membound.embedding(np.array([0]), f32(3, 4), vocab_start=2**63 - 1), ValueError,
         "embedding: argument 'vocab_start' must be from 0 to 9223372036854775804 for a table of 3 "
         "rows, got 9223372036854775807"),
        (lambda: membound.rms_norm_quant(f32(2, 4), scale_upper_bound=1e-300), ValueError,
         "rms_norm_quant: argument 'scale_upper_bound' must be above 0 in float32, got 1e-300"),
    ],
)  # fmt: skip
def test_the_number_is_named(call, error, said):
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        call()


def test_jax_says_the_same():
    jax_numpy = pytest.importorskip("jax.numpy")
    one = jax_numpy.ones((2, 4))
    with pytest.raises(ValueError, match=r"'scale_upper_bound' must be above 0 in float32, got"):
        membound.rms_norm_quant(one, scale_upper_bound=1e-300)
    q, table = jax_numpy.ones((1, 1, 1, 4)), jax_numpy.ones((2, 2))
    for sections in (np.array(1), memoryview(np.ones((2, 2), int)), 4, "22", (2.0, 2.0)):
        with pytest.raises(TypeError, match=r"^rope: argument 'sections' must be"):
            membound.rope(q, None, table, table, sections=sections)


@pytest.mark.parametrize("framework", ["numpy", "jax.numpy"])
def test_scalars_of_numpy_are_numbers(framework):
    one = pytest.importorskip(framework)
    logits, labels = one.ones((2, 4), "float32"), one.zeros(2, "int32")
    lse = one.ones(2, "float32")
    right = membound.cross_entropy_backward(0.5, logits, labels, lse)
    for dloss in (np.float32(0.5), np.float64(0.5), np.float16(0.5)):
        found = membound.cross_entropy_backward(dloss, logits, labels, lse)
        np.testing.assert_array_equal(found, right)
    q, table = one.ones((1, 2, 1, 4), "float32"), one.ones((4, 2), "float32")
    right = membound.rope(q, None, table, table, seqlen_offsets=1)
    for start in (np.int64(1), np.int32(1), np.uint8(1)):
        found = membound.rope(q, None, table, table, seqlen_offsets=start)
        np.testing.assert_array_equal(found, right)
    for start in (True, np.float32(1), 1.0):
        with pytest.raises(TypeError, match=r"^rope: argument 'seqlen_offsets' must be"):
            membound.rope(q, None, table, table, seqlen_offsets=start)


def test_a_scalar_of_numpy_with_the_loss_itself():
    written, right = f32(2, 4), f32(2, 4)
    labels = np.zeros(2, np.int64)
    membound.cross_entropy(right, labels, dlogits=right, dloss=0.5)
    membound.cross_entropy(written, labels, dlogits=written, dloss=np.float32(0.5))
    np.testing.assert_array_equal(written, right)
