# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that qk_norm_rope and its gradients refuse beyond rope's: error texts, nothing written."""

from __future__ import annotations

import bad_calls
import numpy as np
import pytest
from bad_calls import Call, Case

import membound


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape or (2, 3, 2, 8), np.float32)


def good() -> Call:
    return {
        "q": f32(), "k": f32(2, 3, 1, 8), "q_weight": f32(8), "k_weight": f32(1, 8),
        "cos": f32(5, 4), "sin": f32(5, 4),
    }  # fmt: skip


def wide() -> Call:
    return {"q": f32(1, 1, 1, 1026), "k": None, "q_weight": None, "k_weight": None,
            "cos": f32(1, 513), "sin": f32(1, 513)}  # fmt: skip


def out_in_weight() -> Call:
    out = f32()
    return {"out": out, "q_weight": out[0, 0, 0]}


def out_beside_itself() -> Call:
    buffer = f32(3, 3, 2, 8)
    return {"q": buffer[:2], "out": buffer[1:]}


CASES: list[Case] = [
    ("no array", lambda: {"q": 1.0}, TypeError, "q"),
    ("long heads", wide, ValueError, "q"),
    ("short weight", lambda: {"q_weight": f32(6)}, ValueError, "q_weight"),
    ("weight of other heads", lambda: {"q_weight": f32(3, 8)}, ValueError, "q_weight"),
    ("weight of no axes", lambda: {"k_weight": np.float32(1)[...]}, ValueError, "k_weight"),
    ("integer weight", lambda: {"q_weight": np.ones(8, np.int32)}, TypeError, "q_weight"),
    ("k_weight without k", lambda: {"k": None}, ValueError, "k_weight"),
    ("offset without a weight", lambda: {"k_weight": None, "weight_offset": 1.0}, ValueError,
     "weight_offset"),
    ("negative eps", lambda: {"eps": -1e-6}, ValueError, "eps"),
    ("eps of another type", lambda: {"eps": "small"}, TypeError, "eps"),
    ("rounding", lambda: {"rounding": "twice"}, ValueError, "rounding"),
    ("flag", lambda: {"return_rstd": 1}, TypeError, "return_rstd"),
    ("no angles", lambda: {"cos": None, "sin": None}, ValueError, "cos"),
    ("layout", lambda: {"layout": "dhsb"}, ValueError, "layout"),
    ("out in the weight", out_in_weight, ValueError, "out"),
    ("overlapping out", out_beside_itself, ValueError, "out"),
    ("k_out without k", lambda: {"k": None, "k_weight": None, "k_out": f32(2, 3, 1, 8)},
     ValueError, "k_out"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_qk_norm_rope_refuses(call, expected, argument):
    bad_calls.check(membound.qk_norm_rope, call(), good(), expected, argument)


def cached() -> Call:
    """The further arguments of a call with caches of eight slots."""
    return {"v": f32(2, 3, 1, 8), "key_cache": f32(2, 4, 1, 8), "value_cache": f32(2, 4, 1, 8),
            "slot_mapping": np.arange(6).reshape(2, 3)}  # fmt: skip


def without(*names: str) -> Call:
    return {name: None if name in names else value for name, value in cached().items()}


def cache_over_k() -> Call:
    k = f32(2, 3, 1, 8)
    return {"k": k, "key_cache": k.reshape(6, 1, 8), "value_cache": f32(6, 1, 8)}


def cache_over_out() -> Call:
    cache = f32(2, 6, 1, 8)
    return {"value_cache": cache, "key_cache": f32(2, 6, 1, 8), "out": cache.reshape(2, 3, 2, 8)}


def one_cache_for_both() -> Call:
    cache = f32(2, 4, 1, 8)
    return {"key_cache": cache, "value_cache": cache}


def broadcast_cache() -> Call:
    return {"key_cache": np.lib.stride_tricks.as_strided(f32(8), (2, 4, 1, 8), (0, 0, 0, 4))}


# In addition to the arguments of cached().
CACHE_CASES: list[Case] = [
    ("cache without k", lambda: {"k": None, "k_weight": None}, ValueError, "k"),
    ("cache without slots", lambda: without("slot_mapping"), ValueError, "slot_mapping"),
    ("slots without a cache", lambda: without("key_cache", "value_cache", "v"), ValueError,
     "slot_mapping"),
    ("v without keys", lambda: without("key_cache"), ValueError, "v"),
    ("v without its cache", lambda: without("value_cache"), ValueError, "value_cache"),
    ("values without v", lambda: without("v"), ValueError, "value_cache"),
    ("k_out beside a cache", lambda: {"k_out": f32(2, 3, 1, 8)}, ValueError, "k_out"),
    ("statistics beside a cache", lambda: {"return_rstd": True}, ValueError, "return_rstd"),
    ("cache of other heads", lambda: {"key_cache": f32(2, 4, 2, 8)}, ValueError, "key_cache"),
    ("cache of other elements", lambda: {"key_cache": f32(8, 1, 6)}, ValueError, "key_cache"),
    ("cache of two axes", lambda: {"key_cache": f32(8, 8)}, ValueError, "key_cache"),
    ("cache of 8 bits", lambda: {"key_cache": np.ones((2, 4, 1, 8), np.uint8)}, TypeError,
     "key_cache"),
    ("cache of another dtype", lambda: {"key_cache": np.ones((2, 4, 1, 8))}, TypeError,
     "key_cache"),
    ("caches that differ", lambda: {"value_cache": f32(8, 1, 8)}, ValueError, "value_cache"),
    ("broadcast cache", broadcast_cache, ValueError, "key_cache"),
    ("v of another shape", lambda: {"v": f32(2, 3, 2, 8)}, ValueError, "v"),
    ("v of another dtype", lambda: {"v": np.ones((2, 3, 1, 8))}, TypeError, "v"),
    ("too few slots", lambda: {"slot_mapping": np.arange(5)}, ValueError, "slot_mapping"),
    ("slots of other axes", lambda: {"slot_mapping": np.arange(6).reshape(3, 2)}, ValueError,
     "slot_mapping"),
    ("slots that are no integers", lambda: {"slot_mapping": f32(2, 3)}, TypeError,
     "slot_mapping"),
    ("a slot beyond the cache", lambda: {"slot_mapping": np.arange(3, 9), "validate": True},
     ValueError, "slot_mapping"),
    ("keys over k", cache_over_k, ValueError, "key_cache"),
    ("values over out", cache_over_out, ValueError, "value_cache"),
    ("one cache for both", one_cache_for_both, ValueError, "value_cache"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CACHE_CASES],
                         ids=[c[0] for c in CACHE_CASES])  # fmt: skip
def test_qk_norm_rope_refuses_with_a_cache(call, expected, argument):
    bad_calls.check(membound.qk_norm_rope, call(), {**good(), **cached()}, expected, argument)


def good_backward() -> Call:
    return {"dq": f32(), "dk": f32(2, 3, 1, 8), **good()}


def dk_out_over_q() -> Call:
    q = f32(2, 3, 1, 8)
    return {"dq": f32(2, 3, 1, 8), "q": q, "dk_out": q}


def dweight_in_q() -> Call:
    q = f32()
    return {"q": q, "dq_weight": q[0, 0, 0]}


def same_dweights() -> Call:
    sums = f32(8)
    return {"k_weight": f32(8), "dq_weight": sums, "dk_weight": sums}


BACKWARD_CASES: list[Case] = [
    ("q of another shape", lambda: {"q": f32(2, 3, 1, 8)}, ValueError, "q"),
    ("q of another dtype", lambda: {"q": np.ones((2, 3, 2, 8))}, TypeError, "q"),
    ("no q", lambda: {"q": None}, ValueError, "q"),
    ("dk alone", lambda: {"k": None}, ValueError, "k"),
    ("rstd of another shape", lambda: {"q_rstd": f32(2, 3, 1)}, ValueError, "q_rstd"),
    ("rstd of another dtype", lambda: {"k_rstd": np.ones((2, 3, 1))}, TypeError, "k_rstd"),
    ("k_rstd without k", lambda: {"dk": None, "k": None, "k_weight": None,
                                  "k_rstd": f32(2, 3, 1)}, ValueError, "k_rstd"),
    ("dweight of another shape", lambda: {"dq_weight": f32(2, 8)}, ValueError, "dq_weight"),
    ("dweight without a weight", lambda: {"q_weight": None, "dq_weight": f32(8)}, ValueError,
     "dq_weight"),
    ("dweight not needed", lambda: {"need_dweight": False, "dq_weight": f32(8)}, ValueError,
     "dq_weight"),
    ("nothing to add to", lambda: {"accumulate": True}, ValueError, "dq_weight"),
    ("dk_out over q", dk_out_over_q, ValueError, "dk_out"),
    ("dweight in q", dweight_in_q, ValueError, "dq_weight"),
    ("one array for both sums", same_dweights, ValueError, "dq_weight"),
    ("rounding", lambda: {"rounding": None}, ValueError, "rounding"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in BACKWARD_CASES],
                         ids=[c[0] for c in BACKWARD_CASES])  # fmt: skip
def test_qk_norm_rope_backward_refuses(call, expected, argument):
    bad_calls.check(membound.qk_norm_rope_backward, call(), good_backward(), expected, argument)


def test_torch_tensors_whose_gradients_cannot_be_recorded():
    torch = pytest.importorskip("torch")
    q = torch.ones(1, 2, 1, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^qk_norm_rope: argument 'q' requires grad"):
        membound.qk_norm_rope(q, freqs=torch.ones(2), out=torch.empty(1, 2, 1, 4))
    freqs = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^qk_norm_rope: argument 'freqs' requires grad"):
        membound.qk_norm_rope(q, freqs=freqs)
    with torch.no_grad():
        membound.qk_norm_rope(q, freqs=freqs)


def test_frameworks_do_not_mix():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"argument 'q_weight' must be a torch array"):
        membound.qk_norm_rope(torch.ones(1, 2, 1, 4), None, np.ones(4), freqs=torch.ones(2))
