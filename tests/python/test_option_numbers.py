# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Numeric options: which values are accepted, and the errors for others."""

from __future__ import annotations

import re

import numpy as np
import pytest

import membound


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


OUTSIDE = (
    "embedding: argument 'vocab_start' must be from 0 to 9223372036854775804 for a table of 3 "
    "rows, got 9223372036854775807"
)

OR_NONE = ", or infinite for none, got 1e+60"


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
         OUTSIDE),
        (lambda: membound.rms_norm_quant(f32(2, 4), scale_upper_bound=1e-300), ValueError,
         "rms_norm_quant: argument 'scale_upper_bound' must be above 0 in float32, got 1e-300"),
        (lambda: membound.rms_norm_quant(f32(2, 4), scale_upper_bound=1e60), ValueError,
         "rms_norm_quant: argument 'scale_upper_bound' must be finite in float32" + OR_NONE),
        (lambda: membound.gated_activation(f32(2, 4), limit=1e60), ValueError,
         "gated_activation: argument 'limit' must be finite in float32" + OR_NONE),
        (lambda: membound.gated_activation(f32(2, 4), limit=1e-60), ValueError,
         "gated_activation: argument 'limit' must be above 0 in float32, got 1e-60"),
        (lambda: membound.gated_activation(f32(2, 4), alpha=1e-60), ValueError,
         "gated_activation: argument 'alpha' must be above 0 in float32, got 1e-60"),
        (lambda: membound.rms_norm(f32(2, 4), eps=True), TypeError,
         "rms_norm: argument 'eps' must be a real number, got bool"),
    ],
)  # fmt: skip
def test_the_number_is_named(call, error, said):
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        call()


def test_jax_says_the_same():
    jax_numpy = pytest.importorskip("jax.numpy")
    one = jax_numpy.ones((2, 4), "float32")
    with pytest.raises(ValueError, match=r"'scale_upper_bound' must be above 0 in float32, got"):
        membound.rms_norm_quant(one, scale_upper_bound=1e-300)
    for limit in (1e60, 1e-60):
        with pytest.raises(ValueError, match=r"'limit' must be (finite|above 0) in float32"):
            membound.gated_activation(one, limit=limit)
    with pytest.raises(TypeError, match="'eps' must be a real number, got bool"):
        membound.rms_norm(one, eps=True)
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


def of_dtype(dtype, one):
    """Calls of every function with a numeric option, with valid values."""
    x, w = one.ones((2, 4), dtype), one.ones(4, dtype)
    labels, lse, q = one.zeros(2, "int32"), one.ones(2, dtype), one.ones((1, 2, 1, 4), dtype)
    freqs = one.ones(2, "float32")
    m = membound
    return {
        ("rms_norm", "eps"): lambda v: m.rms_norm(x, w, eps=v),
        ("rms_norm", "weight_offset"): lambda v: m.rms_norm(x, w, weight_offset=v),
        ("rms_norm_quant", "eps"): lambda v: m.rms_norm_quant(x, w, dtype="int8", eps=v),
        ("layer_norm", "eps"): lambda v: m.layer_norm(x, w, eps=v),
        ("rms_norm_backward", "weight_offset"): lambda v: m.rms_norm_backward(
            x, x, w, lse, weight_offset=v
        ),
        ("softmax", "scale"): lambda v: m.softmax(x, scale=v),
        ("softmax_backward", "scale"): lambda v: m.softmax_backward(x, x, scale=v),
        ("cross_entropy", "z_loss"): lambda v: m.cross_entropy(x, labels, z_loss=v),
        ("cross_entropy_backward", "dloss"): lambda v: m.cross_entropy_backward(v, x, labels, lse),
        ("embedding", "scale"): lambda v: m.embedding(labels, x, scale=v),
        ("embedding_backward", "scale"): lambda v: m.embedding_backward(x, labels, 3, scale=v),
        ("gated_activation", "alpha"): lambda v: m.gated_activation(x, alpha=v),
        ("gated_activation", "up_offset"): lambda v: m.gated_activation(x, up_offset=v),
        ("rope", "attention_scaling"): lambda v: m.rope(q, freqs=freqs, attention_scaling=v),
        ("qk_norm_rope", "eps"): lambda v: m.qk_norm_rope(q, freqs=freqs, eps=v),
    }


NUMBERS = list(of_dtype("float32", np))


@pytest.mark.parametrize("framework", ["numpy", "jax.numpy"])
@pytest.mark.parametrize(("op", "argument"), NUMBERS)
def test_what_float32_cannot_hold(op, argument, framework):
    call = of_dtype("float32", pytest.importorskip(framework))[op, argument]
    said = rf"^{op}: argument '{argument}' must be finite in float32, got -?1e\+300(\n|$)"
    for value in (1e300,) if argument in ("eps", "z_loss", "alpha") else (1e300, -1e300):
        with pytest.raises(ValueError, match=said):
            call(value)
    with pytest.raises(ValueError, match=rf"^{op}: argument '{argument}' must be finite"):
        call(float("inf"))
    if argument == "eps":
        with pytest.raises(
            ValueError, match=r"'eps' must be 0 or above 0 in float32, got 1e-300(\n|$)"
        ):
            call(1e-300)


# An 8-bit result cannot represent values of that size.
@pytest.mark.parametrize(("op", "argument"), [n for n in NUMBERS if n[0] != "rms_norm_quant"])
def test_float64_holds_it(op, argument):
    for value in (1e300, 1e-300):
        found = of_dtype("float64", np)[op, argument](value)
        assert not np.isnan(found[0]).any()


@pytest.mark.parametrize("framework", ["numpy", "jax.numpy"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_infinite_cap_is_none_and_one_beyond_float32_is_refused(dtype, framework):
    one = pytest.importorskip(framework)
    logits = one.asarray(np.linspace(-3.0, 3.0, 8).reshape(2, 4), dtype=dtype)
    labels = one.asarray(np.array([1, 3], np.int32))
    right = membound.cross_entropy(logits, labels)
    found = membound.cross_entropy(logits, labels, softcap=float("inf"))
    np.testing.assert_array_equal(found, right)
    for cap in (1e39, 1e300):
        with pytest.raises(ValueError, match="'softcap' must be finite in float32, or infinite"):
            membound.cross_entropy(logits, labels, softcap=cap)
    with pytest.raises(ValueError, match=r"'softcap' must be above 0 in float32, got 1e-300(\n|$)"):
        membound.cross_entropy(logits, labels, softcap=1e-300)


def test_the_gradient_of_lse_without_a_cap():
    jax = pytest.importorskip("jax")
    logits = jax.numpy.linspace(-3.0, 3.0, 8, dtype="float32").reshape(2, 4)
    labels = jax.numpy.array([1, 3])

    def total(logits, cap):
        return membound.cross_entropy(logits, labels, softcap=cap, return_lse=True)[1].sum()

    right = jax.grad(total)(logits, None)
    np.testing.assert_allclose(jax.grad(total)(logits, float("inf")), right, rtol=1e-6)


def test_jax_refuses_the_numbers_of_activations():
    jax_numpy = pytest.importorskip("jax.numpy")
    x = jax_numpy.ones((2, 4))
    for argument, options in (
        ("alpha", {"alpha": -1.0}),
        ("alpha", {"alpha": 2.0, "kind": "gelu"}),
        ("limit", {"limit": 0.0}),
        ("up_offset", {"up_offset": 1.0, "kind": "relu2", "packing": "gate"}),
    ):
        with pytest.raises(ValueError, match=rf"^gated_activation: argument '{argument}' must"):
            membound.gated_activation(x, **options)


RECORDED = {
    "rms_norm": ("eps", "weight_offset"),
    "layer_norm": ("eps", "weight_offset"),
    "gated_activation": ("limit", "up_offset"),
    "softmax": ("scale", "causal_offset"),
    "soft_cap": ("cap",),
}


@pytest.mark.parametrize(("op", "option"), [(op, o) for op, some in RECORDED.items() for o in some])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_bool_is_no_number_of_torchs_either(op, option, requires_grad):
    torch, mt = pytest.importorskip("torch"), pytest.importorskip("membound.torch")
    x = torch.ones(2, 4, requires_grad=requires_grad)
    arrays = (x, x) if op == "gated_activation" else (x,)
    if op.endswith("norm"):
        arrays = (x, torch.ones(4))
    for module in (membound, mt):
        with pytest.raises(TypeError, match=rf"{op}: argument '{option}' must be an? .*got bool"):
            getattr(module, op)(*arrays, **{option: True})


@pytest.mark.parametrize("value", [np.bool_(True), np.array(True)])
def test_a_bool_of_numpy_is_no_number(value):
    with pytest.raises(TypeError, match="rms_norm: argument 'eps' must be a real number"):
        membound.rms_norm(f32(2, 4), eps=value)
    jax, mj = pytest.importorskip("jax"), pytest.importorskip("membound.jax")
    for wrong in (value, jax.numpy.ones(4)):
        with pytest.raises(TypeError, match="rms_norm: argument 'eps' must be a real number"):
            mj.rms_norm(jax.numpy.ones((2, 4)), eps=wrong)
